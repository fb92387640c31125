"""Plugins that simulated domains run in addition to the default ones."""
