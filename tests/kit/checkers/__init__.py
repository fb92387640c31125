"""Checks of a simulated program against the API server's objects and against what the program has observed."""
