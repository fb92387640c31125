"""Threads and processes outside the event loop: isolated plugins and background tasks."""
