"""Judges a history of the API server: no node overcommitted, and the invariants S1 to S3 of published slices.

Shares no code with the product. It sees what the API server has stored, in order, and whether a leader or a person wrote it. What a
person writes into a SliceSet does not count: the amounts that hold are those that leaders wrote, which the person may restore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Amount = tuple[int, int, int]
"""milli-CPU, bytes of memory, pods."""
ZERO: Amount = (0, 0, 0)
LENDER, BORROWER = "lender", "borrower"


def plus(one: Amount, other: Amount) -> Amount:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def larger(one: Amount, other: Amount) -> Amount:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def exceeds(one: Amount, limit: Amount) -> bool:
    return any(have > may for have, may in zip(one, limit, strict=True))


def amounts(entries: Mapping[str, Any]) -> dict[str, Amount]:
    return {uid: (entry["cpuMilli"], entry["memoryBytes"], entry["pods"]) for uid, entry in entries.items()}


@dataclass(slots=True)
class Written:
    """What leaders have written into one object."""

    offers: dict[str, Amount] = field(default_factory=dict)
    held: dict[str, Amount] = field(default_factory=dict)
    lost: dict[str, Amount] = field(default_factory=dict)
    """Reserved when the object was removed by force; until a leader of the borrower has counted its pods again."""

    def reserved(self, node: str) -> Amount:
        both = larger(self.offers.get(node, ZERO), self.held.get(node, ZERO))
        return larger(both, self.lost.get(node, ZERO))


class SliceJudge:
    """Takes each change when the API server stores it. `violations`: what was broken, with the number of the change."""

    def __init__(self, allocatable: Mapping[str, Amount]) -> None:
        self.violations: list[str] = []
        self._allocatable = allocatable
        self._objects: dict[str, Written] = {}
        self._pods: dict[str, tuple[str, str, Amount]] = {}
        self._changes = 0

    def on_pod(self, uid: str, node: str, side: str, amount: Amount) -> None:
        """The pod is bound to the node."""
        self._pods[uid] = node, side, amount
        self._judge()

    def on_pod_gone(self, uid: str) -> None:
        del self._pods[uid]
        self._judge()

    def on_slice_set(self, document: Mapping[str, Any], changed: str, *, by_leader: bool) -> None:
        """`changed`: spec or status."""
        if by_leader:
            written = self._objects.setdefault(document["metadata"]["name"], Written())
            half = document[changed]
            if changed == "spec":
                written.offers = amounts(half["offers"])
            elif half["complete"]:
                self._judge_held(written, amounts(half["held"]))
                written.held, written.lost = amounts(half["held"]), {}
        self._judge()

    def on_slice_set_gone(self, name: str) -> None:
        written = self._objects.setdefault(name, Written())
        written.lost = {node: written.reserved(node) for node in self._allocatable}
        written.offers, written.held = {}, {}
        self._judge()

    def _judge_held(self, written: Written, held: Mapping[str, Amount]) -> None:
        for node, amount in held.items():
            before = written.held.get(node, ZERO) if not written.lost else written.lost.get(node, ZERO)
            if exceeds(amount, larger(written.offers.get(node, ZERO), before)):
                self._violated(
                    f"S3: {amount} of {node} held, above {written.offers.get(node)} offered and {before} held before"
                )

    def _judge(self) -> None:
        self._changes += 1
        for node, allocatable in self._allocatable.items():
            bound = {LENDER: ZERO, BORROWER: ZERO}
            for where, side, amount in self._pods.values():
                if where == node:
                    bound[side] = plus(bound[side], amount)
            reserved = held = ZERO
            for written in self._objects.values():
                reserved = plus(reserved, written.reserved(node))
                held = plus(held, larger(written.held.get(node, ZERO), written.lost.get(node, ZERO)))
            if exceeds(plus(bound[LENDER], bound[BORROWER]), allocatable):
                self._violated(f"overcommitted: {bound} on {node} with {allocatable}")
            if exceeds(plus(bound[LENDER], reserved), allocatable):
                self._violated(
                    f"S1: {bound[LENDER]} bound by the lender and {reserved} reserved on {node} with {allocatable}"
                )
            if exceeds(bound[BORROWER], held):
                self._violated(f"S2: {bound[BORROWER]} bound by the borrower on {node}, {held} held")

    def _violated(self, text: str) -> None:
        self.violations.append(f"change {self._changes}: {text}")
