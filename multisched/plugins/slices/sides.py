"""What the sides of nodes and of quotas have in common: their machines, claims in blocks, and the slices of a dead borrower.

A slice is found by its key: the uid of a node, or the name of a leaf.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from multisched.framework.context import WaitingPods
from multisched.framework.slice_writes import SlicePorts, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.slices.borrower_slices import BorrowerSlices, claim_block
from multisched.plugins.slices.lender_slices import LenderSlices

KEYS_PER_STEP: Final = 500
"""Slices that are looked at before other tasks run."""
CLAIMS_PER_STEP: Final = 200
ADOPT_EVERY_S: Final = 5.0
"""Pause between two looks whether a borrower that does not return slices is dead."""
LINGER_S: Final = 15.0
"""What no pod has used for this time is released, at the latest after twice the time."""
BLOCK_PERCENT: Final = 10
"""What a claim takes in addition to the pods that wait for it. Each further one takes twice as much more as the one before, until
something that was claimed is not used."""
WRITE_PAUSE_MAX_S: Final = 4.0
"""Longest pause after a write, while changes go on."""
RETURN_EVERY_S: Final = 10.0
"""A recalled slice that is no longer in use is returned after this time at the latest; sooner if few others are still in use."""
PARTS_EVERY: Final = 3
"""Parts of slices that are still in use are returned with every third such return."""
DOUBLED_MAX: Final = 4
"""How often that is doubled."""

LoanKey = tuple[str, str]
"""Lender and borrower."""


class Machines:
    """The state machines of one process, of all its domains."""

    def __init__(self) -> None:
        self.lent: dict[LoanKey, LenderSlices] = {}
        self.borrowed: dict[LoanKey, BorrowerSlices] = {}
        self.terms: dict[tuple[str, LoanKey], int] = {}
        """("lender" or "borrower", loan) -> number of the holding of the lease in which its machine began its term."""
        self.taking_over = asyncio.Lock()
        """Held while machines begin a term: several domains decide by a lender's Lease."""


class LendingSide(ABC):
    """The slices that one domain lends to another one."""

    role = "lender"
    write_pause_max_s = WRITE_PAUSE_MAX_S
    offer_every_s = 5.0
    """Pause between two regular looks at what is offered."""
    raise_every_s = 15.0
    """Pause between two looks at which more is offered than before: what pods of the lender free in this time is one write. It is twice
    as long while pods of the lender wait for what is lent. 0: none."""

    def __init__(self, key: LoanKey, machines: Machines) -> None:
        self.key = key
        self._machines = machines
        self._adopts_from_s = 0.0
        self.is_unled = False
        """No process leads the borrower: nothing is offered that it does not hold."""

    @property
    def machine(self) -> LenderSlices | None:
        """None before the first term."""
        return self._machines.lent.get(self.key)

    def begin_term(self, listed: Sequence[SliceSet], namespace: str) -> None:
        machine = self.machine
        if machine is None:
            machine = self._machines.lent[self.key] = self._made(namespace)
        machine.begin_term(listed)
        self._forget_offers()
        self.refresh()

    @abstractmethod
    def _made(self, namespace: str) -> LenderSlices:
        """Returns a machine without objects."""

    @abstractmethod
    def _forget_offers(self) -> None:
        """Forgets what was offered in the term before."""

    @abstractmethod
    def refresh(self) -> bool:
        """Reads again what is reserved; returns True if that is less somewhere."""

    @abstractmethod
    def _refresh_some(self, machine: LenderSlices, keys: Collection[str]) -> bool:
        """Does the same for some slices, of which the machine may have changed."""

    def change(self, name: str, change: Callable[[LenderSlices], bool]) -> bool:
        """Lets the machine take what concerns one object; returns True if less is reserved somewhere.

        `change` returns False if nothing has changed."""
        machine = self.machine
        if machine is None:
            return False
        was_blind, before = machine.is_blind, machine.keys_in(name)
        if not change(machine):
            return False
        is_less = self._refresh_some(machine, before | machine.keys_in(name))
        return self.refresh() if machine.is_blind != was_blind else is_less

    def has_offers(self) -> bool:
        """Reports whether something is offered now."""
        machine = self.machine
        return machine is not None and any(machine.offer_of(key).amount for key in machine.slice_keys())

    def gather_s(self) -> float:
        """Returns how long waiting pods of the lender are gathered before it takes back what they need."""
        return 0.0

    def is_short(self) -> bool:
        """Reports whether pods of the lender wait for what is lent."""
        return False

    @abstractmethod
    async def offer(self, now_s: float, may_write: Callable[[], bool], *, raises: bool) -> None:
        """Decides what is offered; without `raises` only less than before. Pauses between slices."""

    def due_count(self) -> int:
        """Returns how many objects may need a request."""
        return 0 if self.machine is None else self.machine.due_count

    def next_requests(self, most: int) -> list[SliceRequest]:
        """Returns the requests that are needed of `most` objects."""
        return [] if self.machine is None else self.machine.next_requests(most)

    # -- a dead borrower -------------------------------------------------------------------------------------------

    async def adopt_of_dead(self, ports: SlicePorts, now_s: float) -> None:
        """Takes over what a borrower without a leader holds beyond its pods, if something of that was recalled."""
        machine = self.machine
        if machine is None or now_s < self._adopts_from_s:
            return
        self._adopts_from_s = now_s + ADOPT_EVERY_S
        if not self.is_unled and not await self._is_recalled(machine):
            return
        known = machine.known()
        self.is_unled = await ports.is_unled(self.key[1])
        if not self.is_unled:
            return
        await ports.relist()
        charged = self._charged(machine)
        for one in known:
            keys, held = _keys_of(one), {} if one.status is None else dict(one.status.held)
            of_one = {key: amount for key, amount in charged.items() if key in keys and amount}
            if one.status is None or not one.status.is_complete or of_one != held:
                machine.adopt(one, of_one)
        self.refresh()

    @staticmethod
    async def _is_recalled(machine: LenderSlices) -> bool:
        """Reports whether more is held of a slice than is offered. Pauses between slices."""
        for count, key in enumerate(machine.slice_keys(), 1):
            if not machine.held(key).is_within(machine.offer_of(key).amount):
                return True
            if count % KEYS_PER_STEP == 0:
                await asyncio.sleep(0)
        return False

    @abstractmethod
    def _charged(self, machine: LenderSlices) -> dict[str, SliceAmount]:
        """Returns key -> what the borrower's pods request of each slice of the loan."""

    def totals(self) -> Mapping[str, SliceAmount]:
        """Returns what is offered, held and reserved of all slices; without reserves while it is not known what is held."""
        machine, totals = self.machine, dict.fromkeys(("offered", "held", "reserved"), NOTHING)
        if machine is None or machine.is_blind:
            return totals
        for key in machine.slice_keys():
            totals["offered"] += machine.offer_of(key).amount
            totals["held"] += machine.held(key)
            totals["reserved"] += machine.reserved(key)
        return totals


class _Wanted(msgspec.Struct):
    """What should be held of one slice."""

    amount: SliceAmount = NOTHING
    most: SliceAmount = NOTHING
    """The most that was needed since `BorrowingSide` began to count."""
    most_before: SliceAmount = NOTHING
    """The same of the time before."""


class BorrowingSide(ABC):
    """The slices that one domain borrows from another one."""

    role = "borrower"
    write_pause_max_s = WRITE_PAUSE_MAX_S
    withdrawn: str
    """Why a waiting pod is rejected: less is offered than before."""
    claims_ahead = False
    """The next pods may use other slices than those for which pods wait."""

    def __init__(self, key: LoanKey, machines: Machines) -> None:
        self.key = key
        self._machines = machines
        self._wanted: dict[str, _Wanted] = {}
        self._doubled = 0
        """How often the block of a claim was doubled: it grows while pods keep coming."""
        self._counts_until_s = 0.0
        """When what was needed before is forgotten."""
        self._returns_from_s, self._returns = 0.0, 0

    @property
    def machine(self) -> BorrowerSlices | None:
        """None before the first term."""
        return self._machines.borrowed.get(self.key)

    def begin_term(self, listed: Sequence[SliceSet], namespace: str) -> None:
        machine = self.machine
        if machine is None:
            machine = self._machines.borrowed[self.key] = self._made(namespace)
        machine.begin_term(listed)
        self._wanted.clear()
        self.refresh()

    @abstractmethod
    def _made(self, namespace: str) -> BorrowerSlices:
        """Returns a machine without objects."""

    def settle(self) -> None:
        machine = self.machine
        assert machine is not None, "a term has begun"
        machine.settle()
        for key in machine.slice_keys():
            if held := machine.held(key):
                self._wanted[key] = _Wanted(held, most=held)

    @abstractmethod
    def refresh(self) -> bool:
        """Reads again what is offered; returns True if that is more somewhere."""

    @abstractmethod
    def _refresh_some(self, machine: BorrowerSlices, keys: Collection[str]) -> bool:
        """Does the same for some slices, of which the machine may have changed."""

    def change(self, name: str, change: Callable[[BorrowerSlices], bool]) -> bool:
        """Lets the machine take what concerns one object; returns True if more is offered somewhere.

        `change` returns False if nothing has changed."""
        machine = self.machine
        if machine is None:
            return False
        were_readable, before = machine.are_offers_readable(), machine.keys_in(name)
        if not change(machine):
            return False
        if machine.are_offers_readable() != were_readable:
            return self.refresh()
        return self._refresh_some(machine, before | machine.keys_in(name))

    def totals(self) -> Mapping[str, SliceAmount]:
        """Returns what is offered, held and usable of all slices."""
        machine, totals = self.machine, dict.fromkeys(("offered", "held", "usable"), NOTHING)
        for key in () if machine is None else machine.slice_keys():
            assert machine is not None, "it has slices"
            totals["offered"] += machine.offered_of(key)
            totals["held"] += machine.held(key)
            totals["usable"] += machine.usable(key)
        return totals

    # -- what is charged -------------------------------------------------------------------------------------------

    @abstractmethod
    def _taken_touched(self) -> Iterable[str]:
        """Returns the keys of slices of which pods have changed since the last call."""

    @abstractmethod
    def charged(self, key: str) -> SliceAmount:
        """Returns what pods request of the slice, without waiting ones. If the slice is not lent any more, no more than what is held."""

    @abstractmethod
    def charged_keys(self) -> set[str]:
        """Returns the keys of all slices for which something may be charged."""

    def is_needed(self) -> bool:
        """Reports whether the domain lacks something if nothing is offered."""
        return True

    @abstractmethod
    def is_lent(self, key: str) -> bool:
        """Reports whether there is such a slice now."""

    @abstractmethod
    def waiting(self) -> Collection[str]:
        """Returns the keys of slices for whose claim pods wait."""

    @abstractmethod
    def waiting_for(self, key: str) -> Mapping[str, SliceAmount]:
        """Returns uid -> amount of the pods that wait for a claim of the slice, in the order they came."""

    @abstractmethod
    def claim(self, uid: str) -> None:
        """Notes that enough was claimed for a waiting pod: it is charged from now on."""

    # -- claims ----------------------------------------------------------------------------------------------------

    def due_count(self) -> int:
        """Returns how many objects may need a request."""
        machine = self.machine
        if machine is None:
            return 0
        machine.touch(self._taken_touched())
        return machine.due_count

    def next_requests(self, most: int) -> list[SliceRequest]:
        """Returns the requests that are needed of `most` objects."""
        if not self.due_count():
            return []
        assert self.machine is not None, "an object of it is due"
        return self.machine.next_requests(_Charged(self), most)

    async def want(self) -> None:
        """Claims what pods wait for. Pauses between the slices."""
        machine = self.machine
        assert machine is not None, "a term has begun"
        claimed, percent = list[str](), BLOCK_PERCENT << self._doubled
        for count, key in enumerate(list(self.waiting()), 1):
            if count % CLAIMS_PER_STEP == 0:
                await asyncio.sleep(0)
            pods = self.waiting_for(key)
            if not pods or not self.is_lent(key):
                continue
            need = sum_of((self.charged(key), *pods.values()))
            wanted = self._wanted.get(key) or _Wanted()
            wanted.most |= need
            if not need.is_within(wanted.amount):
                self._set(machine, key, wanted, claim_block(need, machine.offered_of(key), percent) | wanted.amount)
                claimed.append(key)
        if claimed and self._doubled and self.claims_ahead:  # pods keep coming
            await self._want_ahead(machine, machine.keys_with(claimed), percent)
        self._doubled = min(self._doubled + bool(claimed), DOUBLED_MAX)

    async def _want_ahead(self, machine: BorrowerSlices, keys: Iterable[str], percent: int) -> None:
        """Claims `percent` of what all pods on these slices need in addition, for the next pods: of each slice the same share of what is
        not claimed yet. Pauses between the slices."""
        need = left = NOTHING
        left_of: dict[str, SliceAmount] = {}
        for count, key in enumerate(keys, 1):
            if count % CLAIMS_PER_STEP == 0:
                await asyncio.sleep(0)
            if not self.is_lent(key):
                continue
            need += sum_of((self.charged(key), *self.waiting_for(key).values()))
            offered, wanted = machine.offered_of(key), self._wanted.get(key)
            unclaimed = (offered - (NOTHING if wanted is None else wanted.amount)) | NOTHING
            amounts = unclaimed.amounts()
            if offered and all(amounts.get(name, 0) for name, amount in offered.amounts().items() if amount):
                left_of[key] = unclaimed
                left += unclaimed
        needs = need.amounts()
        shares = (percent * needs.get(name, 0) / (100 * amount) for name, amount in left.amounts().items() if amount)
        share = min(1.0, max(shares, default=0.0))
        for count, (key, unclaimed) in enumerate(left_of.items(), 1):
            if count % CLAIMS_PER_STEP == 0:
                await asyncio.sleep(0)
            wanted = self._wanted.get(key) or _Wanted()
            more = {name: int(share * amount) for name, amount in unclaimed.amounts().items()}
            self._set(machine, key, wanted, wanted.amount + SliceAmount.of(more))

    async def release(self, now_s: float) -> None:
        """Releases what no pod has used for a while, and slices that are not lent any more. Pauses between the slices."""
        machine = self.machine
        assert machine is not None, "a term has begun"
        if now_s >= self._returns_from_s:
            self._returns_from_s = now_s + RETURN_EVERY_S
            self._returns = (self._returns + 1) % PARTS_EVERY
            machine.return_kept(parts=not self._returns)
        is_over, is_unused = now_s >= self._counts_until_s, False
        if is_over:
            self._counts_until_s = now_s + LINGER_S
        for count, key in enumerate(list(self._wanted), 1):
            if count % CLAIMS_PER_STEP == 0:
                await asyncio.sleep(0)
            wanted = self._wanted.get(key)
            if wanted is None:
                continue
            if not self.is_lent(key):
                self._set(machine, key, wanted, NOTHING)
                continue
            need = sum_of((self.charged(key), *self.waiting_for(key).values()))
            wanted.most |= need
            if is_over:
                most = wanted.most | wanted.most_before
                wanted.most, wanted.most_before = need, wanted.most
                offered = machine.offered_of(key)
                kept = claim_block(most, offered, 0)
                if kept != wanted.amount and claim_block(most, offered, BLOCK_PERCENT).is_within(wanted.amount):
                    is_unused |= not (wanted.amount & offered).is_within(kept)
                    self._set(machine, key, wanted, kept)
        if is_unused:
            self._doubled //= 2

    def _set(self, machine: BorrowerSlices, key: str, wanted: _Wanted, amount: SliceAmount) -> None:
        machine.want(key, amount)
        if not amount.is_within(wanted.amount):
            wanted.most_before |= amount  # it has time until it must have been used
        wanted.amount = amount
        if amount:
            self._wanted[key] = wanted
        else:
            self._wanted.pop(key, None)

    def may_use(self, key: str, amount: SliceAmount, now_s: float) -> bool:
        """Reports whether enough of the slice is claimed for a waiting pod, in addition to what is charged."""
        machine = self.machine
        if machine is None or not self.is_lent(key):
            return False
        return (self.charged(key) + amount).is_within(machine.limit(key, int(now_s)))

    def release_waiting(self, keys: Iterable[str], pods: WaitingPods, plugin: str, now_s: float) -> None:
        """Allows pods at Permit for which enough is claimed, and rejects those for which too little is offered now."""
        machine = self.machine
        waiting = {key: found for key in keys if (found := self.waiting_for(key)) and self.is_lent(key)}
        if machine is None or not waiting:
            return
        at_permit = {pod.uid for pod in pods.waiting()}
        for key, found in waiting.items():
            for uid in [uid for uid in found if uid in at_permit]:
                amount = self.waiting_for(key).get(uid)
                if amount is None:
                    continue
                if self.may_use(key, amount, now_s):
                    self.claim(uid)
                    pods.allow(uid, plugin)
                elif not (self.charged(key) + amount).is_within(machine.offered_of(key)):
                    pods.reject(uid, plugin, self.withdrawn)


class _Charged(Mapping[str, SliceAmount]):
    """Key -> what is charged, computed when it is first read: most slices are never read."""

    def __init__(self, side: BorrowingSide) -> None:
        self._side = side

    def __getitem__(self, key: str) -> SliceAmount:
        return self._side.charged(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._side.charged_keys())

    def __len__(self) -> int:
        return len(self._side.charged_keys())


def sum_of(amounts: Iterable[SliceAmount]) -> SliceAmount:
    total = NOTHING
    for amount in amounts:
        total += amount
    return total


def _keys_of(one: SliceSet) -> set[str]:
    offers = set() if one.spec is None else set(one.spec.offers)
    return offers if one.status is None else offers.union(one.status.held)
