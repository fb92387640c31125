"""Patches and server-side apply."""
