"""The conditions of a run, drawn from its seed: configurations, replicas, sizes."""
