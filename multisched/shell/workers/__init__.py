"""Threads and processes beside the event loop: isolated plugins and background work."""
