"""One quota tree for domains that different processes lead."""
