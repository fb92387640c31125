"""Disruptions of a simulated cluster: one file per theme, each with a table of disruptions and their weights."""
