"""Counts in messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Returns `1 pod`, `2 pods`, `0 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def verb(number: int, one: str, many: str) -> str:
    """Returns the form of a verb for the number: `verb(count, "is", "are")`."""
    return one if number == 1 else many
