"""RoomLending: how much of each leaf the lender offers to one borrower.

Offers follow what pods of the borrower use and request, as far as there is room at the leaf and at every level above it. What waiting
pods of the lender need is not offered, or comes back: first what is offered and not claimed, then what is held and not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from multisched.framework.context import Nominations
from multisched.model.objects import Pod
from multisched.model.slice_parts import NOTHING, QUOTA_ROOM, SliceAmount, SliceOffer, buckets_for
from multisched.plugins.quota.level_use import PendingDemands
from multisched.plugins.quota.quota_ledger import Level
from multisched.plugins.quota.shared.leaf_counts import LeafKey
from multisched.plugins.quota.shared.outlook import Outlook, free_of
from multisched.plugins.quota.shared.room import QuotaRoom
from multisched.plugins.slices.lender_slices import LenderSlices
from multisched.plugins.slices.sides import LendingSide

PENDING_PER_STEP: Final = 1_000
"""Pending pods that are counted before other tasks run."""
PENDING_PER_S: Final = 20_000
"""Pending pods that are counted per second at most."""
LEAVES_PER_STEP: Final = 50
MORE_PERCENT: Final = 10
"""Percentage offered in addition to the requests of pending pods, so that the next pods need no further write."""
TRIM_EVERY_S: Final = 15.0
"""Interval of the checks that lower offers which no other process needs."""
WANT_BY_S: Final = 30
"""When a recalled part should be returned."""


class Demand:
    """The requests of pending pods, per borrower and leaf. All sides of a lender share one count."""

    def __init__(self, room: QuotaRoom, pending: Callable[[], Iterable[Pod]]) -> None:
        self._room = room
        self._pending = pending
        self._counted_at = (-1, -1)
        self._counts_from_s = 0.0
        self._of: dict[LeafKey, SliceAmount] = {}

    def of(self, key: LeafKey) -> SliceAmount:
        return self._of.get(key, NOTHING)

    def leaves_of(self, domain: str) -> Collection[str]:
        return {leaf for one, leaf in self._of if one == domain}

    async def count(self, now_s: float) -> None:
        """Counts again if pods of borrowers have changed. Pauses between pods, and longer between counts of many pods."""
        room, ledger = self._room, self._room.ledger
        version = room.demand_version, ledger.generation
        if version == self._counted_at or now_s < self._counts_from_s:
            return
        of_domain = {domain: PendingDemands(ledger) for domain in room.sharing.borrowers}
        pending = list(self._pending())
        self._counts_from_s = now_s + len(pending) / PENDING_PER_S
        for first in range(0, len(pending), PENDING_PER_STEP):
            by_domain: dict[str, list[Pod]] = {}
            for pod in pending[first : first + PENDING_PER_STEP]:
                if domain := room.domain_of(pod):
                    by_domain.setdefault(domain, []).append(pod)
            for domain, pods in by_domain.items():
                of_domain[domain].add(pods)
            await asyncio.sleep(0)
        found: dict[LeafKey, SliceAmount] = {}
        for domain, demands in of_domain.items():
            for pod, count in demands.of_pods():
                if levels := ledger.levels_of(pod):
                    key = domain, levels[0].name
                    items = tuple((name, count * amount) for name, amount in ledger.amounts.items(pod))
                    found[key] = found.get(key, NOTHING) + room.pods.amount(levels, items)
        self._of, self._counted_at = found, version


class RoomLending(LendingSide):
    """The quota room that the lender offers to one borrower."""

    offer_every_s = 1.0
    raise_every_s = 0.0

    def __init__(self, room: QuotaRoom, domain: str, demand: Demand, nominations: Nominations) -> None:
        super().__init__(room.loan(domain), room)
        self.room = room
        self.domain = domain
        self.demand = demand
        self.nominations = nominations
        self._trims_from_s = 0.0

    def _new_machine(self, namespace: str) -> LenderSlices:
        tree = self.room.ledger.tree
        leaves = 0 if tree is None else sum(1 for _ in tree.leaves())
        return LenderSlices(*self.key, namespace, buckets_for(leaves), QUOTA_ROOM)

    def _forget_offers(self) -> None:
        self._trims_from_s = 0.0

    def refresh(self) -> bool:
        return self.room.refresh_kept(self.domain)

    def _refresh_some(self, machine: LenderSlices, keys: Collection[str]) -> bool:
        return self.room.refresh_kept(self.domain, keys)

    def _charged(self, machine: LenderSlices) -> dict[str, SliceAmount]:
        """Returns what pods of the borrower use, of each leaf."""
        pods = self.room.pods
        return {leaf: pods.used((self.domain, leaf)) for leaf in {*machine.slice_keys(), *pods.leaves_of(self.domain)}}

    # -- offers ----------------------------------------------------------------------------------------------------

    async def offer(self, now_s: float, may_write: Callable[[], bool], *, raises: bool) -> None:
        """Decides what is offered of each leaf. Pauses between leaves."""
        await self.demand.count(now_s)
        machine = self.machine
        assert machine is not None, "a term has begun"
        leaves = {
            *self.demand.leaves_of(self.domain),
            *machine.slice_keys(),
            *self.room.pods.leaves_of(self.domain),
        }
        trims = now_s >= self._trims_from_s
        if trims:
            self._trims_from_s = now_s + TRIM_EVERY_S
        ordered = sorted(leaves)
        for first in range(0, len(ordered), LEAVES_PER_STEP):
            await asyncio.sleep(0)
            if not may_write():
                return
            look = _Look(self, now_s, trims=trims)
            for leaf in ordered[first : first + LEAVES_PER_STEP]:
                look.offer(machine, leaf)

    def offers(self) -> dict[LeafKey, SliceAmount]:
        """Returns what is offered now to every borrower, by leaf."""
        return {
            (domain, leaf): machine.offer_of(leaf).amount
            for (_, domain), machine in self.room.lent.items()
            for leaf in machine.slice_keys()
        }


class _Look:
    """One step in which offers are decided: nothing else changes meanwhile."""

    def __init__(self, side: RoomLending, now_s: float, *, trims: bool) -> None:
        self._side, self._room, self._domain = side, side.room, side.domain
        self._now_s = now_s
        self._trims = trims
        needs = self._room.needs.look(now_s, self._room.ledger.levels)
        self._outlook = Outlook(self._room, side.offers(), needs)
        nominated = self._outlook.nominated(side.nominations.pods(), needs)
        self._nominated = [amounts for domain, amounts in nominated.items() if domain != self._domain]

    def offer(self, machine: LenderSlices, leaf: str) -> None:
        """Raises or lowers the offer of one leaf; `Level.kept` counts it when this returns."""
        levels, before = self._room.levels_at(leaf), machine.offer_of(leaf).amount
        held = machine.held(leaf)
        target = self._target(levels, leaf, before, held) if levels else NOTHING
        if target == before:
            if self._side.demand.of((self._domain, leaf)):
                machine.announce(leaf, leaf)
            return
        self._outlook.offered((self._domain, leaf), target)
        if target.is_within(before) and not held.is_within(target):
            machine.recall(leaf, target, int(self._now_s) + WANT_BY_S)
        else:
            room = self._room_of(machine, leaf, levels)
            machine.offer(leaf, leaf, SliceOffer(target), room, typical=_ones(target | before))
        self._room.refresh_kept(self._domain, (leaf,))

    def _target(self, levels: tuple[Level, ...], leaf: str, before: SliceAmount, held: SliceAmount) -> SliceAmount:
        """Returns what should be offered."""
        key = self._domain, leaf
        used, demand, active = self._room.pods.used(key), self._side.demand.of(key), self._outlook.active(key)
        if self._side.has_no_leader:
            demand = NOTHING
        wanted = used + demand + _percent(demand, MORE_PERCENT)
        free = self._outlook.free(levels, self._nominated, with_needs=True)
        most = _changed_by(before | active, free) | active
        if _is_entitled(levels[0], demand):
            without_needs = self._outlook.free(levels, self._nominated, with_needs=False)
            most |= (used + demand) & _changed_by(before | active, without_needs)
        target = (wanted | held) & most
        if not used.is_within(held | target):
            target |= used  # it is in use, and not in what the borrower may hold: a new tree, for example
        target = target.capped()
        is_covered = (used + demand).is_within(before)
        if is_covered and target.is_within(before) and not self._trims and not _is_short(free):
            return before
        return target

    def _room_of(self, machine: LenderSlices, leaf: str, levels: tuple[Level, ...]) -> SliceAmount:
        """Returns by how much what is reserved may rise now: up to what is in use, or by what is free at every level (S1)."""
        used, reserved = self._room.pods.used((self._domain, leaf)), machine.reserved(leaf)
        free = free_of(levels, lambda level, name: level.kept.get(name, 0))
        return ((reserved | used) + (SliceAmount.of(free) | NOTHING) - reserved) | NOTHING


def _percent(amount: SliceAmount, percent: int) -> SliceAmount:
    return SliceAmount.of({name: -(-one * percent // 100) for name, one in amount.amounts().items()})


def _ones(amount: SliceAmount) -> SliceAmount:
    return SliceAmount.of(dict.fromkeys(amount.amounts(), 1))


def _is_short(free: Mapping[str, int]) -> bool:
    return any(amount < 0 for amount in free.values())


def _changed_by(amount: SliceAmount, free: Mapping[str, int]) -> SliceAmount:
    """Returns the amount after each resource has changed by what is free; never below zero."""
    return (amount + SliceAmount.of(free)) | NOTHING


def _is_entitled(leaf: Level, demand: SliceAmount) -> bool:
    """Reports whether the leaf's min covers all that is requested in addition to what is used."""
    amounts = demand.amounts()
    return (
        bool(demand)
        and any(amounts.get(name) for name in leaf.min)
        and all(
            leaf.used.get(name, 0) + amounts.get(name, 0) <= most
            for name, most in leaf.min.items()
            if amounts.get(name)
        )
    )
