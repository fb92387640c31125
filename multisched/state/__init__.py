"""The only mutable truth: node table, cluster cache, commit, overlays, domain rows, audit. Synchronous throughout."""
