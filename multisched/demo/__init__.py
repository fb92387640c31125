"""The demo: an embedded cluster in a separate process, the scheduler in this one, a scripted workload, and a live screen."""
