"""Parts of nodes, or of quotas, that one domain lends to another one in another process."""
