"""Plugins that simulated domains run beside the default ones."""
