"""A demander: one affinity in one namespace, as placed pods have it. Owned by `PodDemands`; its places by `DemandPlaces`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from multisched.framework.term_columns import Block
from multisched.model.placement import PodAffinity, PodDemand
from multisched.model.selectors import Operator

TAGS_MAX: Final = 16
"""Labels by which one demander is known; one with more may be about any pod."""

ANY_LABELS: Final = None
"""The tag of demanders that may be about any pod."""

Tag = tuple[str, str] | None
Tags = tuple[Tag, ...]


class Demander:
    """One affinity in one namespace, and where its pods stand."""

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
        """Only pods with one of these labels can be meant."""
        self.affinity = affinity
        self.namespace = namespace
        self.number = number
        self.block = block
        self.left_out = left_out
        """Topology keys that no node has: its terms by these are left out."""
        self.places: dict[int, int] = {}
        """Row -> where it stands in the columns of places."""

    @property
    def terms(self) -> int:
        return self.block.end - self.block.start

    @property
    def size(self) -> int:
        """What it takes of the columns: itself, terms, requirements and their values."""
        return 1 + self.terms + sum(s.end - s.start + s.values_end - s.values_start for s in self.block.spans)


def tags_of(demands: Iterable[PodDemand]) -> Tags:
    """Labels of which a pod must have one for any of the terms to be about it."""
    found: set[Tag] = set()
    for demand in demands:
        named = [r for r in demand.selector.requirements if r.operator is Operator.IN]
        pivot = min(named, key=lambda requirement: len(requirement.values), default=None)
        if pivot is None or len(found) + len(pivot.values) > TAGS_MAX:
            return (ANY_LABELS,)
        found.update((pivot.key, value) for value in pivot.values)
    return tuple(found)
