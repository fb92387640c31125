"""Converts a KubeSchedulerConfiguration, and reports settings that cannot be converted."""
