"""Equivalence classes: what pods of one kind share of masks, scores and columns."""
