"""Outlook: how much of each level will be in use once all that is recalled has been returned, and all that is needed was taken.

Computed anew for each look of the lender. It decides what is offered and recalled; whether an offer fits now is decided by what is
reserved (`RoomLending`), so a wrong outlook costs time, and never puts a level over its max.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from multisched.model.objects import Pod
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.quota.pod_amounts import Items
from multisched.plugins.quota.quota_ledger import Level
from multisched.plugins.quota.shared.leaf_counts import LeafKey
from multisched.plugins.quota.shared.room import QuotaRoom
from multisched.plugins.quota.shared.room_needs import RoomNeed

UNLIMITED: Final = 1 << 62
TakenOf = Callable[[Level, str], int]


class Outlook:
    """The levels of the tree in force, as they will be."""

    def __init__(
        self, room: QuotaRoom, offers: Mapping[LeafKey, SliceAmount], needs: Iterable[tuple[str, RoomNeed]]
    ) -> None:
        """`offers`: what is offered now, by leaf."""
        self._room = room
        self._more: dict[int, Counter[str]] = {}
        """Position of a level -> resource -> amount in addition to what is used."""
        self._needed: dict[int, Counter[str]] = {}
        self._ending: dict[LeafKey, SliceAmount] = {}
        """Leaf -> the amount that its terminating pods use."""
        ledger, needs = room.ledger, list(needs)
        ending = {*ledger.terminating, *(uid for _, need in needs for uid in need.victims if ledger.holds(uid))}
        equal = Counter[tuple[LeafKey | None, int, Items]]()  # thousands of equal pods may be terminating
        for uid in ending:
            levels, items = ledger.levels_and_amounts_of(uid)
            counted = room.pods.pods.get(uid)
            equal[None if counted is None else counted.key, levels[0].at, items] += 1
        for (key, at, items), pods in equal.items():
            levels, together = ledger.paths[at], tuple((name, pods * amount) for name, amount in items)
            self._add(self._more, levels, dict(together), -1)
            if key is not None:
                self._ending[key] = self._ending.get(key, NOTHING) + room.pods.amount(levels, together)
        self._offers = dict(offers)
        for key, offered in offers.items():
            self._add(self._more, room.levels_at(key[1]), self._unused(key, offered).amounts(), 1)
        for _, need in needs:
            self._add(self._needed, need.levels, dict(need.items), 1)

    def nominated(
        self, pods: Sequence[Pod], needs: Iterable[tuple[str, RoomNeed]]
    ) -> dict[str, dict[int, Counter[str]]]:
        """Returns, by domain of these nominated pods, level -> resource -> amount. Pods that are no borrower's are of domain ''."""
        known, found = {uid for uid, _ in needs}, dict[str, dict[int, Counter[str]]]()
        ledger = self._room.ledger
        for pod in pods:
            if pod.uid not in known and not ledger.holds(pod.uid):
                of_domain = found.setdefault(self._room.domain_of(pod), {})
                self._add(of_domain, ledger.levels_of(pod), ledger.amounts.of(pod), 1)
        return found

    def active(self, key: LeafKey) -> SliceAmount:
        """Returns what the borrower's pods use, without terminating ones."""
        return self._room.pods.used(key) - self._ending.get(key, NOTHING)

    def offered(self, key: LeafKey, amount: SliceAmount) -> None:
        """Notes another offer of a leaf."""
        levels = self._room.levels_at(key[1])
        self._add(self._more, levels, self._unused(key, self._offers.get(key, NOTHING)).amounts(), -1)
        self._offers[key] = amount
        self._add(self._more, levels, self._unused(key, amount).amounts(), 1)

    def _unused(self, key: LeafKey, offered: SliceAmount) -> SliceAmount:
        return (offered - self.active(key)) | NOTHING

    @staticmethod
    def _add(to: dict[int, Counter[str]], levels: Iterable[Level], amounts: Mapping[str, int], sign: int) -> None:
        for level in levels:
            of_level = to.setdefault(level.at, Counter())
            for name, amount in amounts.items():
                of_level[name] += sign * amount

    def free(
        self, levels: Sequence[Level], others: Sequence[Mapping[int, Mapping[str, int]]], *, with_needs: bool
    ) -> dict[str, int]:
        """Returns resource -> what a leaf will have free, up to the root; negative if too much is in use or offered.

        `others`: nominated amounts that are not available. `with_needs`: neither are those that pods of the lender need.
        """
        taken = [self._more, *others, *([self._needed] if with_needs else [])]
        return free_of(levels, lambda level, name: sum(one[level.at].get(name, 0) for one in taken if level.at in one))


def free_of(levels: Sequence[Level], taken: TakenOf) -> dict[str, int]:
    """Returns resource -> what can be added at the leaf without exceeding a max, for resources with a max.

    `taken`: level, resource -> amount in addition to what is used and guaranteed. An idle guarantee of a level is reserved above it
    already.
    """
    found: dict[str, int] = {}
    idle: Counter[str] = Counter()
    for level in levels:
        for name, most in level.max.items():
            free = most - level.used_and_reserved(name) - taken(level, name) + idle[name]
            found[name] = min(found.get(name, UNLIMITED), free)
        for name in level.guarantee:
            idle[name] += max(0, level.reserved.get(name, 0) - level.reserved_below.get(name, 0))
    return found
