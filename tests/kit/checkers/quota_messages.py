"""Checks messages about quotas, such as `quota root.a: cpu 3 used and 500m nominated, 2 requested, max 4`.

A tree that was observed must have this max, and the amounts must exceed it. The numbers are not counts of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from multisched.verify.quantities import quantity, quota_units
from multisched.verify.quota_tree import QuotaTree

Bound = tuple[str, str, int]
"""Path of a level, resource, and the level's max."""

_SENTENCE: Final = re.compile(
    r"quota (\S+): (\S+) (\S+) used(?: and (\S+) nominated)?(?: and (\S+) guaranteed to others)?,"
    r" (\S+) requested, max (\w+)"
)


def bounds_of(tree: QuotaTree | None) -> set[Bound]:
    """Returns every max of the tree."""
    levels = () if tree is None else tree.root.below()
    return {(level.path, resource, most) for level in levels for resource, most in level.max.items()}


def without_sentences(message: str) -> str:
    """Returns the message without sentences about quotas."""
    return _SENTENCE.sub("a quota", message)


def fault_of_sentences(message: str, bounds: Collection[Bound]) -> str:
    """Returns a sentence that is false for each tree with these bounds; empty for none."""
    for found in _SENTENCE.finditer(message):
        path, resource, *amounts, most = found.groups()
        units = [quota_units(resource, quantity(amount)) for amount in amounts if amount is not None]
        bound = quota_units(resource, quantity(most))
        if (path, resource, bound) not in bounds:
            return f"{found[0]}, and no tree had that max"
        if sum(units) <= bound:
            return f"{found[0]}, and that is within the max"
    return ""
