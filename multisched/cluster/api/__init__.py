"""The embedded API server: from request to answer."""
