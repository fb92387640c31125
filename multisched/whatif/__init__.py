"""Questions tried on a copy of the cluster: explain, fixes, what-if, and trials of repairs."""
