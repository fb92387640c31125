"""Loans: one domain's nodes work for another, and come back in time."""
