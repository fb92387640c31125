"""Defaults, admission and validation of the embedded API server."""
