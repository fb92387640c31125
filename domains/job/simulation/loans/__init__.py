"""Simulated days of idle capacity on loan: the workload `loanDay`."""
