"""LendingSide and BorrowingSide: what slices of nodes and slices of quotas have in common. They decide; the driver sends.

The state machines of slices, claims in blocks, pods at Permit, and the slices of a dead borrower, which is one without a leader.
A slice has a key: the uid of a node, or the name of a leaf of the quota tree.
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

KEYS_PER_STEP: Final = 100
"""Slices that are checked before other tasks run."""
CLAIMS_PER_STEP: Final = 50
"""Claimed slices that are checked before other tasks run."""
ADOPT_EVERY_S: Final = 5.0
"""Interval between checks whether a borrower that does not return recalled slices is dead."""
KEEP_UNUSED_S: Final = 15.0
"""A claimed amount that no pod has used for this time is released; at the latest after twice the time."""
BLOCK_PERCENT: Final = 10
"""A claim is this much larger than the need of the pods. The percentage is doubled with each claim, at most DOUBLINGS_MAX times, and
halved when a claimed amount is released without use."""
DOUBLINGS_MAX: Final = 4
WRITE_PAUSE_MAX_S: Final = 4.0
"""Longest pause after a write while more changes arrive."""
RETURN_EVERY_S: Final = 10.0
"""A recalled slice that is no longer in use is returned after at most this time; earlier if many recalled slices are unused."""
PARTS_EVERY_RETURNS: Final = 3
"""Every third time, unused parts of recalled slices are returned, too, although other parts of these slices are still in use."""

LoanKey = tuple[str, str]
"""Lender and borrower."""


class SliceMachines:
    """The state machines of all slices that domains of one process lend or borrow."""

    def __init__(self) -> None:
        self.lent: dict[LoanKey, LenderSlices] = {}
        self.borrowed: dict[LoanKey, BorrowerSlices] = {}
        self.terms: dict[tuple[str, LoanKey], int] = {}
        """("lender" or "borrower", loan) -> term of the lease in which its machine last began. A term is one holding of the lease."""
        self.taking_over = asyncio.Lock()
        """Held while a machine begins a term: several domains may share the Lease of the lender, and begin at the same time."""


class LendingSide(ABC):
    """The slices that one domain lends to another one."""

    role = "lender"
    write_pause_max_s = WRITE_PAUSE_MAX_S
    offer_every_s = 5.0
    """Interval between regular decisions about offers."""
    raise_every_s = 15.0
    """Interval between decisions that may raise offers: capacity that the lender's pods free within one interval needs one write only.
    The interval is twice as long while pods of the lender wait for lent capacity. 0: each decision may raise offers."""

    def __init__(self, key: LoanKey, machines: SliceMachines) -> None:
        self.key = key
        self._machines = machines
        self._adopts_from_s = 0.0
        self.has_no_leader = False
        """No process leads the borrower, so no more is offered than the borrower holds."""

    @property
    def machine(self) -> LenderSlices | None:
        """The lender's state machine; None before the first term."""
        return self._machines.lent.get(self.key)

    def begin_term(self, listed: Sequence[SliceSet], namespace: str) -> None:
        machine = self.machine
        if machine is None:
            machine = self._machines.lent[self.key] = self._new_machine(namespace)
        machine.begin_term(listed)
        self._forget_offers()
        self.refresh()

    @abstractmethod
    def _new_machine(self, namespace: str) -> LenderSlices:
        """Returns a machine without objects."""

    @abstractmethod
    def _forget_offers(self) -> None:
        """Forgets the decisions about offers of the previous term."""

    @abstractmethod
    def refresh(self) -> bool:
        """Reads the reserved amounts of all slices from the machine. Returns True if an amount has decreased."""

    @abstractmethod
    def _refresh_some(self, machine: LenderSlices, keys: Collection[str]) -> bool:
        """Does the same for the slices with these keys."""

    def change(self, name: str, change: Callable[[LenderSlices], bool]) -> bool:
        """Applies `change` to the machine and refreshes the slices of the object `name`. Returns True if a reserved amount has decreased.

        `change` returns whether it changed the machine."""
        machine = self.machine
        if machine is None:
            return False
        was_held_unknown, before = machine.is_held_unknown, machine.keys_in(name)
        if not change(machine):
            return False
        is_less = self._refresh_some(machine, before | machine.keys_in(name))
        return self.refresh() if machine.is_held_unknown != was_held_unknown else is_less

    def has_offers(self) -> bool:
        """Reports whether any slice is offered now."""
        machine = self.machine
        return machine is not None and any(machine.offer_of(key).amount for key in machine.slice_keys())

    def gather_s(self) -> float:
        """Returns for how long waiting pods of the lender are collected, so that slices are recalled for all of them together."""
        return 0.0

    def is_short(self) -> bool:
        """Reports whether pods of the lender wait for capacity that is lent."""
        return False

    @abstractmethod
    async def offer(self, now_s: float, may_write: Callable[[], bool], *, raises: bool) -> None:
        """Decides the offer of each slice. If `raises` is False, offers are only lowered. Lets other tasks run between slices."""

    def due_count(self) -> int:
        """Returns the number of objects that may need a request."""
        return 0 if self.machine is None else self.machine.due_count

    def next_requests(self, most: int) -> list[SliceRequest]:
        """Returns the requests that are due, for at most `most` objects."""
        return [] if self.machine is None else self.machine.next_requests(most)

    # -- a dead borrower -------------------------------------------------------------------------------------------

    async def adopt_of_dead(self, ports: SlicePorts, now_s: float) -> None:
        """If the borrower is dead and has not returned a recalled amount, sets what it holds to what its pods request.

        The lender writes the borrower's half of the objects for this.
        """
        machine = self.machine
        if machine is None or now_s < self._adopts_from_s:
            return
        self._adopts_from_s = now_s + ADOPT_EVERY_S
        if not self.has_no_leader and not await self._is_recalled(machine):
            return
        known = machine.known()
        self.has_no_leader = await ports.has_no_leader(self.key[1])
        if not self.has_no_leader:
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
        """Reports whether more of a slice is held than is offered. Lets other tasks run between slices."""
        for count, key in enumerate(machine.slice_keys(), 1):
            if not machine.held(key).is_within(machine.offer_of(key).amount):
                return True
            if count % KEYS_PER_STEP == 0:
                await asyncio.sleep(0)
        return False

    @abstractmethod
    def _charged(self, machine: LenderSlices) -> dict[str, SliceAmount]:
        """Returns key of a slice -> amount that the borrower's pods request of it."""

    def totals(self) -> Mapping[str, SliceAmount]:
        """Returns the sums of the offered, held and reserved amounts; zeros while it is unknown what the borrower holds."""
        machine, totals = self.machine, dict.fromkeys(("offered", "held", "reserved"), NOTHING)
        if machine is None or machine.is_held_unknown:
            return totals
        for key in machine.slice_keys():
            totals["offered"] += machine.offer_of(key).amount
            totals["held"] += machine.held(key)
            totals["reserved"] += machine.reserved(key)
        return totals


class _Wanted(msgspec.Struct):
    """The claim that the borrower wants on one slice."""

    amount: SliceAmount = NOTHING
    peak: SliceAmount = NOTHING
    """Highest need in the current interval of KEEP_UNUSED_S."""
    previous_peak: SliceAmount = NOTHING
    """Highest need in the previous interval."""


class BorrowingSide(ABC):
    """The slices that one domain borrows from another one."""

    role = "borrower"
    write_pause_max_s = WRITE_PAUSE_MAX_S
    withdrawn: str
    """Message of the rejection of a pod at Permit whose slice is no longer offered."""
    claims_ahead = False
    """Slices for which no pod waits are claimed, too, because later pods may use any slice of the loan."""

    def __init__(self, key: LoanKey, machines: SliceMachines) -> None:
        self.key = key
        self._machines = machines
        self._wanted: dict[str, _Wanted] = {}
        self._doublings = 0
        """How many times BLOCK_PERCENT is doubled at present."""
        self._counts_until_s = 0.0
        """End of the current interval of KEEP_UNUSED_S."""
        self._returns_from_s, self._returns = 0.0, 0
        """Time of the next return (RETURN_EVERY_S), and the number of returns modulo PARTS_EVERY_RETURNS."""

    @property
    def machine(self) -> BorrowerSlices | None:
        """The borrower's state machine; None before the first term."""
        return self._machines.borrowed.get(self.key)

    def begin_term(self, listed: Sequence[SliceSet], namespace: str) -> None:
        machine = self.machine
        if machine is None:
            machine = self._machines.borrowed[self.key] = self._new_machine(namespace)
        machine.begin_term(listed)
        self._wanted.clear()
        self.refresh()

    @abstractmethod
    def _new_machine(self, namespace: str) -> BorrowerSlices:
        """Returns a machine without objects."""

    def settle(self) -> None:
        """Records that the cache has all pods, so that `charged` is complete. See `BorrowerSlices.settle`."""
        machine = self.machine
        assert machine is not None, "a term has begun"
        machine.settle()
        for key in machine.slice_keys():
            if held := machine.held(key):
                self._wanted[key] = _Wanted(held, peak=held)

    @abstractmethod
    def refresh(self) -> bool:
        """Reads the offered amounts of all slices from the machine. Returns True if an amount has increased."""

    @abstractmethod
    def _refresh_some(self, machine: BorrowerSlices, keys: Collection[str]) -> bool:
        """Does the same for the slices with these keys."""

    def change(self, name: str, change: Callable[[BorrowerSlices], bool]) -> bool:
        """Applies `change` to the machine and refreshes the slices of the object `name`. Returns True if an offer has increased.

        `change` returns whether it changed the machine."""
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
        """Returns the sums of the offered, held and usable amounts of all slices."""
        machine, totals = self.machine, dict.fromkeys(("offered", "held", "usable"), NOTHING)
        for key in () if machine is None else machine.slice_keys():
            assert machine is not None, "it has slices"
            totals["offered"] += machine.offered_of(key)
            totals["held"] += machine.held(key)
            totals["usable"] += machine.usable(key)
        return totals

    # -- what is charged -------------------------------------------------------------------------------------------

    @abstractmethod
    def _take_touched(self) -> Iterable[str]:
        """Returns the keys of slices whose pods have changed since the last call."""

    @abstractmethod
    def charged(self, key: str) -> SliceAmount:
        """Returns the amount that pods request of the slice, without `waiting_for`. For a slice that is no longer lent, it is at most the
        held amount.
        """

    @abstractmethod
    def charged_keys(self) -> set[str]:
        """Returns the keys of all slices whose charged amount may be more than zero."""

    def is_needed(self) -> bool:
        """Reports whether pods of the domain would have to wait if nothing were offered."""
        return True

    @abstractmethod
    def is_lent(self, key: str) -> bool:
        """Reports whether the slice is part of the loan now."""

    @abstractmethod
    def waiting(self) -> Collection[str]:
        """Returns the keys of slices for which pods wait at Permit until enough is claimed."""

    @abstractmethod
    def waiting_for(self, key: str) -> Mapping[str, SliceAmount]:
        """Returns uid -> amount of the pods that wait until enough of the slice is claimed, in the order of their arrival."""

    @abstractmethod
    def claim(self, uid: str) -> None:
        """Charges a waiting pod from now on, because enough is claimed for it."""

    # -- claims ----------------------------------------------------------------------------------------------------

    def due_count(self) -> int:
        """Returns the number of objects that may need a request."""
        machine = self.machine
        if machine is None:
            return 0
        machine.touch(self._take_touched())
        return machine.due_count

    def next_requests(self, most: int) -> list[SliceRequest]:
        """Returns the requests that are due, for at most `most` objects."""
        if not self.due_count():
            return []
        assert self.machine is not None, "an object of it is due"
        return self.machine.next_requests(_Charged(self), most)

    async def want(self) -> None:
        """Raises the wanted claims to what waiting pods need, and a block more. Lets other tasks run between slices."""
        machine = self.machine
        assert machine is not None, "a term has begun"
        claimed, percent = list[str](), BLOCK_PERCENT << self._doublings
        for count, key in enumerate(list(self.waiting()), 1):
            if count % CLAIMS_PER_STEP == 0:
                await asyncio.sleep(0)
            pods = self.waiting_for(key)
            if not pods or not self.is_lent(key):
                continue
            need = sum_of((self.charged(key), *pods.values()))
            wanted = self._wanted.get(key) or _Wanted()
            wanted.peak |= need
            if not need.is_within(wanted.amount):
                self._set(machine, key, wanted, claim_block(need, machine.offered_of(key), percent) | wanted.amount)
                claimed.append(key)
        if claimed and self._doublings and self.claims_ahead:  # more pods will probably arrive
            await asyncio.sleep(0)
            await self._want_ahead(machine, machine.keys_with(claimed), percent)
        self._doublings = min(self._doublings + bool(claimed), DOUBLINGS_MAX)

    async def _want_ahead(self, machine: BorrowerSlices, keys: Iterable[str], percent: int) -> None:
        """Claims more of these slices for later pods: in total `percent` of what all pods on the slices need, and of each slice the same
        share of its unclaimed offer. Lets other tasks run between slices.
        """
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
        """Lowers the wanted claims to what pods needed in two intervals of KEEP_UNUSED_S, and drops slices that are no longer lent.

        Lets other tasks run between slices.
        """
        machine = self.machine
        assert machine is not None, "a term has begun"
        if now_s >= self._returns_from_s:
            self._returns_from_s = now_s + RETURN_EVERY_S
            self._returns = (self._returns + 1) % PARTS_EVERY_RETURNS
            machine.return_kept(parts=not self._returns)
        is_over, is_unused = now_s >= self._counts_until_s, False
        if is_over:
            self._counts_until_s = now_s + KEEP_UNUSED_S
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
            wanted.peak |= need
            if is_over:
                most = wanted.peak | wanted.previous_peak
                wanted.peak, wanted.previous_peak = need, wanted.peak
                offered = machine.offered_of(key)
                kept = claim_block(most, offered, 0)
                if kept != wanted.amount and claim_block(most, offered, BLOCK_PERCENT).is_within(wanted.amount):
                    is_unused |= not (wanted.amount & offered).is_within(kept)
                    self._set(machine, key, wanted, kept)
        if is_unused:
            self._doublings //= 2

    def _set(self, machine: BorrowerSlices, key: str, wanted: _Wanted, amount: SliceAmount) -> None:
        machine.want(key, amount)
        if not amount.is_within(wanted.amount):
            wanted.previous_peak |= amount  # a new claim is not released before it has been unused for KEEP_UNUSED_S
        wanted.amount = amount
        if amount:
            self._wanted[key] = wanted
        else:
            self._wanted.pop(key, None)

    def may_use(self, key: str, amount: SliceAmount, now_s: float) -> bool:
        """Reports whether enough of the slice is claimed for a pod with this amount in addition to the charged pods."""
        machine = self.machine
        if machine is None or not self.is_lent(key):
            return False
        return (self.charged(key) + amount).is_within(machine.limit(key, int(now_s)))

    def release_waiting(self, keys: Iterable[str], pods: WaitingPods, plugin: str, now_s: float) -> None:
        """Allows pods at Permit for which enough is claimed, and rejects pods for which too little is offered now."""
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
    """Key -> charged amount, computed when it is read, because most keys are never read."""

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
