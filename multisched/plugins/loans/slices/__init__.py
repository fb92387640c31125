"""Parts of nodes that one domain lends to another one in another process."""
