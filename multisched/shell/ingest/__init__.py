"""From the watch to the cache and the queues."""
