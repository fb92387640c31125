"""Checks at the API server: each binding, lease, status and Event, when it is sent and when it takes effect."""
