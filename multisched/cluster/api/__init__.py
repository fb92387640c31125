"""The embedded API server: from request to response."""
