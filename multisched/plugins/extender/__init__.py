"""HTTP extenders as one plugin per domain."""
