"""Replays pods and SliceSets in the order in which the API server stored them. Pure.

All objects share the versions of one etcd, so that what was stored before what is known exactly, whatever the watches lag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.real.slice_history import NOTHING, Amount, is_within, larger

BROKEN_MAX: Final = 1_000


@dataclass(frozen=True)
class PodEntry:
    """A pod that begins or ceases to hold capacity of a node."""

    version: int
    node: str
    amount: Amount
    is_borrower: bool
    holds: bool


@dataclass(frozen=True)
class SliceEntry:
    """A version of a SliceSet; one that was removed offers and holds nothing."""

    version: int
    name: str
    offers: Mapping[str, Amount]
    held: Mapping[str, Amount]


class SliceReplay:
    """What must hold at every version, of each node:

    S1: what pods of the lender request + the larger of offered and held <= allocatable.
    S2: what pods of the borrower request <= held.
    """

    def __init__(self, allocatable: Mapping[str, Amount], names: Mapping[str, str]) -> None:
        """`allocatable`: by name of the node. `names`: by its uid."""
        self._allocatable = allocatable
        self._names = names
        self._uids: defaultdict[str, list[str]] = defaultdict(list)
        for uid, name in names.items():
            self._uids[name].append(uid)
        self._borrowed: defaultdict[str, Amount] = defaultdict(lambda: NOTHING)
        self._own: defaultdict[str, Amount] = defaultdict(lambda: NOTHING)
        self._offers: dict[str, Mapping[str, Amount]] = {}
        self._held: dict[str, Mapping[str, Amount]] = {}
        self.broken: list[str] = []

    def take(self, entry: PodEntry | SliceEntry) -> None:
        if isinstance(entry, SliceEntry):
            uids = {*entry.offers, *entry.held, *self._offers.get(entry.name, ()), *self._held.get(entry.name, ())}
            self._offers[entry.name], self._held[entry.name] = entry.offers, entry.held
            for node in sorted(self._names[uid] for uid in uids if uid in self._names):
                self._check(node, entry.version)
            return
        sums = self._borrowed if entry.is_borrower else self._own
        sums[entry.node] = _plus(sums[entry.node], entry.amount, 1 if entry.holds else -1)
        if entry.holds:
            self._check(entry.node, entry.version)

    def _check(self, node: str, version: int) -> None:
        held, kept = NOTHING, NOTHING
        for uid in self._uids[node]:
            for name, offers in self._offers.items():
                of_one = self._held[name].get(uid, NOTHING)
                held = _plus(held, of_one, 1)
                kept = _plus(kept, larger(of_one, offers.get(uid, NOTHING)), 1)
        borrowed, own, has = self._borrowed[node], self._own[node], self._allocatable.get(node, NOTHING)
        if len(self.broken) >= BROKEN_MAX:
            return
        if not is_within(borrowed, held):
            self.broken.append(
                f"S2: pods of the borrower request {borrowed} of {node}, and {held} is held, at version {version}"
            )
        if not is_within(_plus(own, kept, 1), has):
            self.broken.append(
                f"S1: pods of the lender request {own} of {node}, {kept} is kept, of {has}, at version {version}"
            )


def _plus(one: Amount, other: Amount, sign: int) -> Amount:
    return one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2]
