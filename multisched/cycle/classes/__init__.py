"""Equivalence classes: masks, scores and columns that identical pods share."""
