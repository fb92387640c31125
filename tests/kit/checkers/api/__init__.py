"""Checks at the API server: each binding, lease, status and Event, as it is sent and as it takes effect."""
