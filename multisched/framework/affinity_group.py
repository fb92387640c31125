"""AffinityGroup: one pod affinity in one namespace, with the rows of its pods. Owned by `PodDemands`; its rows by `DemandRows`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from multisched.framework.term_columns import Block
from multisched.model.placement import PodAffinity, PodDemand
from multisched.model.selectors import Operator

TAGS_MAX: Final = 16
"""Largest number of labels by which one group is indexed; a group that needs more is treated as if it could match any pod."""

ANY_LABELS: Final = None
"""The tag of groups that may match any pod."""

Tag = tuple[str, str] | None
Tags = tuple[Tag, ...]


class AffinityGroup:
    """One pod affinity in one namespace, and the rows of the placed pods that have it."""

    __slots__ = ("affinity", "block", "left_out", "namespace", "number", "places", "tags")

    def __init__(
        self,
        affinity: PodAffinity,
        namespace: str,
        number: int,
        block: Block,
        left_out: frozenset[str],
        tags: Tags,
    ) -> None:
        self.tags = tags
        """Its terms can match only pods with one of these labels."""
        self.affinity = affinity
        self.namespace = namespace
        self.number = number
        self.block = block
        self.left_out = left_out
        """Topology keys that no node has: terms with these keys are left out."""
        self.places: dict[int, int] = {}
        """Row -> index into the columns of `DemandRows`."""

    @property
    def terms(self) -> int:
        return self.block.end - self.block.start

    @property
    def size(self) -> int:
        """Number of entries of the group in the columns: itself, terms, requirements and their values."""
        return 1 + self.terms + sum(s.end - s.start + s.values_end - s.values_start for s in self.block.spans)


def tags_of(demands: Iterable[PodDemand]) -> Tags:
    """Returns labels such that none of the terms matches a pod that has none of the labels."""
    found: set[Tag] = set()
    for demand in demands:
        named = [r for r in demand.selector.requirements if r.operator is Operator.IN]
        pivot = min(named, key=lambda requirement: len(requirement.values), default=None)
        if pivot is None or len(found) + len(pivot.values) > TAGS_MAX:
            return (ANY_LABELS,)
        found.update((pivot.key, value) for value in pivot.values)
    return tuple(found)
