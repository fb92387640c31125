"""Scenarios that end a run, one in each: a known end, and nothing else that helps or hinders."""
