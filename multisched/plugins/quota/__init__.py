"""Elastic quotas: each team is sure of its minimum, borrows what others leave idle, and gives it back."""
