"""Scenarios that end a run, one in each: the result is known, and nothing else helps or hinders."""
