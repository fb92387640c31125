"""The only mutable state of the cluster: node table, cluster cache, commit, overlays, domain rows. All synchronous."""
