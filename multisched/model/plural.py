"""Counts in sentences for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 pod`, `2 pods`, `0 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def verb(number: int, one: str, many: str) -> str:
    """The form of a verb that goes with the number: `verb(count, "is", "are")`."""
    return one if number == 1 else many
