"""Reads a KubeSchedulerConfiguration, and says what of it cannot be carried over."""
