"""The audit: compares the cache with the API server, and repairs it."""
