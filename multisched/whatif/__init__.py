"""Questions answered on a copy of the cluster: explain, fixes, what-if, quotas and repair plans."""
