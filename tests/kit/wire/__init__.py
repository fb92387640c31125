"""Connections between a program and the API server or its extenders, which fail in named ways, drawn from a seed."""
