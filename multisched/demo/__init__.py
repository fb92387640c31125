"""The demo: an embedded cluster in a process of its own, the scheduler in this one, a workload with a story, and a live screen."""
