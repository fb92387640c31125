"""Loans: a domain uses capacity of another domain's nodes, and returns it in time."""
