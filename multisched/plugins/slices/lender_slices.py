"""LenderSlices: the lender's state machine of a loan between processes: offers per slice, and the amounts reserved for them.

Its inputs are decisions about offers, versions from the watch, and responses; its outputs are requests (`next_requests`). It has no clock
and does no I/O.

Invariant S1, which the caller must ensure at each commit and each offer: the amount charged to the lender + `reserved(key)` <= the
capacity of the node, or the max of the quota. `reserved` is what the borrower may hold now, or later without another decision of this
process. For each object it is the largest of the offer, the held amount, and each offer whose write may still take effect. It increases
when an offer is decided, before the write is sent. It decreases when a version of the object shows a lower amount.

A status that cannot be trusted (it was edited by hand, restored, or removed with the object) lowers nothing. Then the reserved amounts
stay until the borrower has written a complete status, or the lender has, after it adopted the slices of a dead borrower. If it is also
unknown which amounts were held before (`is_held_unknown`), any slice may be held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from multisched.framework.slice_writes import SliceAnswer, SliceCall, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import (
    EVERYTHING,
    NO_OFFER,
    NOTHING,
    SLICES_MAX,
    SliceAmount,
    SliceOffer,
    SliceSpec,
    SliceStatus,
    bucket_of,
)
from multisched.model.version import NO_VERSION, Version
from multisched.plugins.slices.tracked_slices import SliceMachine, TrackedSlices

WRITTEN_CHANGE: Final = 10
"""An offer is changed only if a resource changes by at least one part in this many, or by the amount of a typical pod."""
OBJECTS_MAX: Final = 1_024
"""Objects of one loan: 262,144 slices."""


class _Offered(TrackedSlices):
    """One object, with the lender's knowledge about it."""

    def __init__(self, blank: SliceSet) -> None:
        super().__init__(blank)
        self.desired: dict[str, SliceOffer] = {}
        """Key -> the offer that is decided for it, and must be written to this object."""
        self.floors: dict[str, SliceAmount] = {}
        """Key -> amount that is reserved at least, until a complete status is seen."""
        self.is_held_unknown = False
        """The status cannot be trusted, and it is unknown what was held before: any slice may be held."""
        self.adopted: SliceStatus | None = None
        """The status to write for a dead borrower."""
        self.is_created_here = False
        """This leader created the object, so no former leader can have offered anything in it."""
        self.is_announced = False
        """The object must be created although nothing is offered in it yet."""

    def level(self, key: str) -> SliceAmount:
        """Returns the amount of the slice that the borrower may hold by this object, including offers in flight.

        Not for an object with `is_held_unknown`.
        """
        seen = self.seen
        offered = NO_OFFER if seen is None or seen.spec is None else seen.spec.offers.get(key, NO_OFFER)
        level = offered.amount
        if seen is not None and seen.status is not None and key in seen.status.held:
            level |= seen.status.held[key]
        if key in self.floors:
            level |= self.floors[key]
        for spec in self.unresolved_specs() if self.unresolved else ():
            level |= spec.offers.get(key, NO_OFFER).amount
        return level

    def slice_keys(self) -> set[str]:
        found = self.floors.keys() | self.desired.keys()
        if self.seen is not None:
            found |= set() if self.seen.spec is None else self.seen.spec.offers.keys()
            found |= set() if self.seen.status is None else self.seen.status.held.keys()
        return found.union(*(spec.offers for spec in self.unresolved_specs()))

    def held(self, key: str) -> SliceAmount:
        status = None if self.seen is None else self.seen.status
        return NOTHING if status is None else status.held.get(key, NOTHING)

    def levels(self) -> dict[str, SliceAmount]:
        return {key: level for key in self.slice_keys() if (level := self.level(key))}


class LenderSlices(SliceMachine[_Offered]):
    """The offers of one lender to one borrower. Used by the leader of the lender only."""

    def __init__(self, lender: str, borrower: str, namespace: str, buckets: int, part: str = "") -> None:
        """`buckets`: number of objects over which slices are spread (`buckets_for`). `part`: see `slice_set_prefix`."""
        super().__init__(lender, borrower, namespace, part, _Offered)
        self._lender = lender
        self._borrower = borrower
        self._buckets = buckets
        self._home: dict[str, _Offered] = {}
        """Key -> the object with its offer."""
        self._held_unknown: set[str] = set()
        """Names of the objects with `is_held_unknown`."""

    # -- terms -----------------------------------------------------------------------------------------------------

    def begin_term(self, listed: Iterable[SliceSet]) -> None:
        """Starts a term as a new leader. `listed`: a consistent list of all SliceSets that began in this term.

        Until `is_ready` returns True, offers of the former leader may be in flight, so the caller must not list pods and must place none.
        """
        self._has_term = True
        self._home.clear()
        found = {one.name: one for one in listed if self._is_concerned(one)}
        for tracked in self._objects.values():
            tracked.begin_term()
            tracked.adopted = None
            tracked.is_created_here = False
            tracked.desired.clear()
        for name in self._objects.keys() - found.keys():
            self._vanish(self._objects[name])
        for one in found.values():
            tracked = self._tracked(one.name)
            self._take(tracked, one, is_answer=True)
            self._continue_offers(tracked)
        for tracked in self._objects.values():
            self._changed(tracked)

    def is_ready(self) -> bool:
        """Reports whether this leader owns every object, so that no offer of a former leader can take effect any more."""
        return self._has_term and all(
            one.is_owned or one.seen is None or one.is_created_here for one in self._objects.values()
        )

    # -- decisions -------------------------------------------------------------------------------------------------

    def reserved(self, key: str) -> SliceAmount:
        """Returns the amount that the caller must subtract from the free capacity of the node or leaf: see S1."""
        if self._held_unknown:
            return EVERYTHING
        total = NOTHING
        for tracked in self._of(key):
            level = tracked.level(key)
            total += level | tracked.desired[key].amount if key in tracked.desired else level
        return total.capped()

    def held(self, key: str) -> SliceAmount:
        """Returns what the borrower holds of the slice, as last seen."""
        total = NOTHING
        for tracked in self._of(key):
            total += tracked.held(key)
        return total

    def offer(self, key: str, name: str, wanted: SliceOffer, room: SliceAmount, typical: SliceAmount = NOTHING) -> None:
        """Offers up to `wanted` of the slice. The amount is reserved from now on.

        `name`: name of the node or leaf. `room`: the capacity minus the amount charged to the lender and minus `reserved` of all its
        borrowers; the caller computes it in the same step. `typical`: the amount of a typical pod. A change that is smaller than `typical`
        and than one part in WRITTEN_CHANGE is ignored.
        """
        home = self._home.get(key) or self._find_home(key, name)
        if home is None:
            return
        before = home.desired.get(key, NO_OFFER).amount
        amount = wanted.amount & ((home.level(key) | before) + (room | NOTHING))
        if _is_worth_a_write(before, amount, typical):
            self._home[key] = home
            self._desire(home, key, SliceOffer(amount, wanted.until_s))

    def announce(self, key: str, name: str) -> None:
        """Creates the object for a slice even if nothing can be offered, so that the borrower sees that slices are served."""
        home = self._home.get(key) or self._find_home(key, name)
        if home is not None and home.seen is None and not home.is_announced:
            home.is_announced = True
            self._due[home.blank.name] = home

    def withdraw(self, key: str) -> None:
        """Lowers the offer to the held amount. One write is enough: a claim in flight either precedes it, or fails."""
        home = self._home.get(key)
        if home is not None:
            before = home.desired[key]
            self._desire(home, key, msgspec.structs.replace(before, amount=before.amount & self.held(key)))

    def recall(self, key: str, amount: SliceAmount, want_by_s: int) -> None:
        """Asks the borrower to return all but `amount` until `want_by_s`. The rest stays reserved until the borrower has returned it."""
        home = self._home.get(key)
        if home is not None:
            before = home.desired[key]
            self._desire(home, key, SliceOffer(before.amount & amount, before.until_s, want_by_s))

    def _desire(self, home: _Offered, key: str, offer: SliceOffer) -> None:
        home.desired[key] = offer
        self._due[home.blank.name] = home
        if key not in home.indexed:
            self._put(key, home)

    def adopt(self, known: SliceSet, charged: Mapping[str, SliceAmount]) -> bool:
        """Sets what a dead borrower holds to what its pods request. Returns False if the object has changed since `known`.

        The caller must have found the borrower's lease free for a bind deadline, then read `known`, and then listed pods consistently.
        `charged`: key -> requests of the borrower's pods.
        """
        tracked = self._objects.get(known.name)
        if tracked is None or not tracked.is_owned or tracked.seen is None or tracked.seen.version != known.version:
            return False
        held = {key: amount for key, amount in charged.items() if amount}
        for key, amount in held.items():
            tracked.floors[key] = tracked.floors.get(key, NOTHING) | amount
        tracked.adopted = SliceStatus(
            tracked.seen.borrower_epoch + 1, tracked.next_writes(SliceStatus), is_complete=True, held=held
        )
        return self._changed(tracked)

    def slice_keys(self) -> set[str]:
        """Returns the keys of all slices that are offered or may be held."""
        return set(self._by_key)

    @property
    def is_held_unknown(self) -> bool:
        """True while it is unknown what is held. Then everything is reserved."""
        return bool(self._held_unknown)

    def offer_of(self, key: str) -> SliceOffer:
        """Returns the offer that was decided last. It may not be written yet."""
        home = self._home.get(key)
        return NO_OFFER if home is None else home.desired[key]

    def known(self) -> list[SliceSet]:
        """Returns the newest known version of each object."""
        return [one.seen for one in self._objects.values() if one.seen is not None]

    def problems(self) -> dict[str, str]:
        """Returns name of an object -> why it cannot be written or trusted."""
        found = {}
        for name, tracked in self._objects.items():
            malformed = "" if tracked.seen is None else tracked.seen.malformed
            if (
                text := malformed
                or tracked.refusal
                or ("SliceSet was removed while slices were held" * bool(tracked.floors))
            ):
                found[name] = text
        return found

    # -- versions and answers --------------------------------------------------------------------------------------

    def next_requests(self, most: int = OBJECTS_MAX) -> list[SliceRequest]:
        """Returns the requests that are due, for at most `most` objects. Each object has at most one request in flight.

        The caller sends each request while it holds the lease, and passes each reply to `answered`.
        """
        return self._requests(self._next_request, most) if self._has_term else []

    def _answered(self, tracked: _Offered, request: SliceRequest, reply: SliceReply) -> None:
        is_ours = tracked.close(request, reply)
        if reply.answer is SliceAnswer.NOT_FOUND and is_ours:
            if request.call is SliceCall.CREATE:
                tracked.refusal = reply.message
            else:
                self._vanish(tracked)
        if request.call is SliceCall.CREATE and is_ours and tracked.refusal and tracked.seen is None:
            tracked.is_announced = False
            self._forget(tracked, lambda key: True)  # nothing can be offered in it now
        if reply.answer is not SliceAnswer.DONE or reply.found is None:
            return
        if request.call is SliceCall.RELEASE:
            if is_ours:
                self._vanish(tracked, reply.found.version)
            return
        if is_ours and request.call is SliceCall.PUT_SPEC and request.spec is not None:
            tracked.epoch = request.spec.epoch
        if is_ours and request.call is SliceCall.CREATE:
            tracked.is_created_here = True
        self._take(tracked, reply.found, is_answer=is_ours)

    # -- internals -------------------------------------------------------------------------------------------------

    def _take(self, tracked: _Offered, found: SliceSet, *, is_answer: bool) -> None:
        """Takes a version of the object. If its status cannot be trusted, the reserved amounts are kept."""
        before, levels, was_owned = tracked.seen, tracked.levels(), tracked.is_owned
        former = [
            *tracked.unresolved_specs(),
            *([before.spec] if before is not None and before.spec is not None else ()),
        ]
        taken = tracked.take(found, is_answer=is_answer)
        if taken is not None:
            is_other = before is not None and before.uid != taken.uid
            tracked.adopted = None
            if is_other:
                tracked.epoch = 0
            if taken.spec is None and not is_other:
                tracked.unresolved += former  # the person that edited the offers may restore them
            if taken.status is not None and taken.status.is_complete:
                tracked.floors = {}
                tracked.is_held_unknown = False
            elif taken.status is None or taken.status.writes:
                tracked.floors = levels
                tracked.is_held_unknown = tracked.is_held_unknown or not was_owned
            elif is_other:
                tracked.floors = levels
            if taken.is_deleting:
                self._forget(tracked, lambda key: True)
            self._forget(tracked, lambda key: not tracked.desired[key].amount and not tracked.level(key))
        spec = None if tracked.seen is None else tracked.seen.spec
        if spec is not None:
            tracked.check_epoch(spec.epoch)

    def _continue_offers(self, tracked: _Offered) -> None:
        """Continues the offers of the former leader, until the caller changes them."""
        if tracked.seen is None or tracked.seen.spec is None or tracked.seen.is_deleting:
            return
        for key, offer in tracked.seen.spec.offers.items():
            if key not in self._home:
                self._home[key] = tracked
                tracked.desired[key] = offer

    def _forget(self, tracked: _Offered, is_over: Callable[[str], bool]) -> None:
        for key in [key for key in tracked.desired if is_over(key)]:
            del self._home[key], tracked.desired[key]

    def _changed(self, tracked: _Offered) -> bool:
        (self._held_unknown.add if tracked.is_held_unknown else self._held_unknown.discard)(tracked.blank.name)
        return super()._changed(tracked)

    def _vanish(self, tracked: _Offered, version: Version = NO_VERSION) -> None:
        tracked.floors = tracked.levels()
        tracked.vanish(version)

    def _find_home(self, key: str, name: str) -> _Offered | None:
        """Returns the object for a slice: the object that already has it; else the first one with space, from the hash of `name` on.

        Returns None if all objects are full.
        """
        for tracked in self._of(key):
            if tracked.seen is None or not tracked.seen.is_deleting:
                return tracked
        first = bucket_of(name, self._buckets)
        for place in range(OBJECTS_MAX):
            bucket = (first + place) % self._buckets if place < self._buckets else place
            tracked = self._tracked(f"{self._prefix}{bucket}")
            is_open = tracked.seen is None or not tracked.seen.is_deleting
            if is_open and len(tracked.indexed) < SLICES_MAX:
                return tracked
        return None

    def _next_request(self, tracked: _Offered) -> SliceRequest | None:
        if tracked.is_superseded:
            return None
        if tracked.needs_read:
            return tracked.read_request()
        if tracked.seen is None:
            is_needed = (
                bool(tracked.floors)
                or tracked.is_held_unknown
                or tracked.is_announced
                or any(offer.amount for offer in tracked.desired.values())
            )
            return tracked.create_request(SliceSpec(self._lender, self._borrower)) if is_needed else None
        if not tracked.is_owned:
            epoch = max(tracked.seen.lender_epoch, tracked.epoch) + 1
            return tracked.write_request(self._spec(tracked, epoch))
        if tracked.adopted is not None:
            return tracked.write_request(tracked.adopted)
        spec = self._spec(tracked, tracked.epoch)
        if tracked.seen.is_deleting and not tracked.is_held_unknown and not tracked.levels():
            return tracked.write_request(spec, releases=True) if tracked.seen.has_finalizer else None
        before = tracked.seen.spec
        is_equal = before is not None and before.offers == spec.offers
        return None if is_equal and not tracked.unresolved else tracked.write_request(spec)

    def _spec(self, tracked: _Offered, epoch: int) -> SliceSpec:
        """Returns the wanted half. What is reserved after a loss of the status is offered again, so that the borrower can hold it."""
        offers = {}
        is_deleting = tracked.seen is not None and tracked.seen.is_deleting
        for key in tracked.indexed:
            desired, amount = tracked.desired.get(key, NO_OFFER), NOTHING
            if not is_deleting:
                amount = desired.amount | tracked.floors[key] if key in tracked.floors else desired.amount
            if amount or (desired.want_by_s and tracked.held(key)):
                offers[key] = msgspec.structs.replace(desired, amount=amount)
        return SliceSpec(self._lender, self._borrower, epoch, tracked.next_writes(SliceSpec), offers)


def _is_worth_a_write(before: SliceAmount, after: SliceAmount, typical: SliceAmount) -> bool:
    """Reports whether a resource changes by a tenth, or by a typical pod."""
    olds, news, pods = before.amounts(), after.amounts(), typical.amounts()
    for name in {**olds, **news}:
        old, new, pod = olds.get(name, 0), news.get(name, 0), pods.get(name, 0)
        change = abs(new - old)
        if change and (change * WRITTEN_CHANGE >= old or change >= pod > 0):
            return True
    return False
