"""Ingest: applies watch events to the cache and the queues."""
