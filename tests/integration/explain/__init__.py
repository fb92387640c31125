"""Explanations of a running program, over an embedded API server."""
