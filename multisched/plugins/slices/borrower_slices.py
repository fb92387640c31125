"""The borrower's side of a loan across processes: claims per slice, and what its pods may use of each. Pure.

Events in (wanted amounts, versions from the watch, answers), requests out (`next_requests`). No clock and no I/O.

Invariant S2: the caller keeps, at each commit, `charged(key) <= usable(key)`, where `charged` is what its pods there request,
including assumed and terminating pods and binds in flight or of unknown outcome. `usable` is what an answer to a request of this leader
has confirmed, and never more than a write in flight would leave: it falls when a release is sent, before its answer, and rises only with
an answer.

S3 and S4: a claim asks for no more than the offer of the version that it replaces, and no write holds less than `charged`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from multisched.framework.slice_writes import SliceAnswer, SliceCall, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import (
    NO_OFFER,
    NOTHING,
    SliceAmount,
    SliceOffer,
    SliceStatus,
)
from multisched.model.version import NO_VERSION, Version
from multisched.plugins.slices.tracked_slices import SliceMachine, TrackedSlices

RETURNED_AT_ONCE: Final = 2
"""If at least one in this many recalled slices of an object is no longer in use, all such slices are returned with the next write."""

Charged = Mapping[str, SliceAmount]
"""By key of each slice that is not the borrower's own: what its pods there request; see S2."""


class _Claimed(TrackedSlices):
    """One object, with what this leader may use of it."""

    def __init__(self, blank: SliceSet) -> None:
        super().__init__(blank)
        self.confirmed: Mapping[str, SliceAmount] = {}
        self.keeps_returns = False
        """Some of what is recalled is not in use any more, and is returned with a later write."""
        self.returns_slices = self.returns_parts = False
        """It is returned now: whole slices; parts of slices that are in use yet."""

    def slice_keys(self) -> set[str]:
        spec, status = (None, None) if self.seen is None else (self.seen.spec, self.seen.status)
        found = set(self.confirmed)
        found.update(() if spec is None else spec.offers, () if status is None else status.held)
        return found

    def usable(self, key: str) -> SliceAmount:
        if not self.is_owned:
            return NOTHING
        usable = self.confirmed.get(key, NOTHING)
        for status in self.unresolved_statuses():
            usable &= status.held.get(key, NOTHING)
        return usable

    def offer(self, key: str) -> SliceOffer:
        """Returns the offer as last seen; none while the lender's half cannot be trusted or the object is being deleted."""
        if self.seen is None or self.seen.spec is None or self.seen.is_deleting:
            return NO_OFFER
        return self.seen.spec.offers.get(key, NO_OFFER)

    def held(self, key: str) -> SliceAmount:
        """Returns what the object holds, as last seen; nothing while the borrower's half cannot be trusted."""
        status = None if self.seen is None else self.seen.status
        return NOTHING if status is None else status.held.get(key, NOTHING)


class BorrowerSlices(SliceMachine[_Claimed]):
    """The claims of one borrower to the slices of one lender. Used by the leader of the borrower only."""

    def __init__(self, lender: str, borrower: str, namespace: str, part: str = "") -> None:
        """`part`: see `slice_set_prefix`."""
        super().__init__(lender, borrower, namespace, part, _Claimed)
        self._wanted: dict[str, SliceAmount] = {}
        self._is_settled = False

    # -- terms -----------------------------------------------------------------------------------------------------

    def begin_term(self, listed: Iterable[SliceSet]) -> None:
        """Starts as a new leader, with a consistent list of all SliceSets that began in this term, and after the wait for binds
        of the former leader."""
        self._has_term = True
        self._is_settled = False
        self._wanted.clear()
        found = {one.name: one for one in listed if self._is_concerned(one)}
        for tracked in self._objects.values():
            tracked.begin_term()
            tracked.confirmed = {}
        for name in self._objects.keys() - found.keys():
            self._vanish(self._objects[name])
        for one in found.values():
            self._take(self._tracked(one.name), one, is_answer=True)
        for tracked in self._objects.values():
            self._changed(tracked)

    def is_ready(self) -> bool:
        """Reports whether every object is owned by this leader, so that no write of a former one can take effect any more."""
        return self._has_term and all(one.is_owned or one.seen is None for one in self._objects.values())

    def settle(self) -> None:
        """Records that `charged` is complete: a consistent list of pods, begun after `is_ready`, is in the caller's cache.

        Before, nothing is usable. What is held remains so until the caller wants something else.
        """
        self._is_settled = True
        for tracked in self._objects.values():
            for key, held in tracked.confirmed.items():
                self._wanted.setdefault(key, held)
        self.touch_all()

    # -- decisions -------------------------------------------------------------------------------------------------

    def usable(self, key: str) -> SliceAmount:
        """Returns what the borrower's pods may request of the slice in total: see S2."""
        if not self._has_term or not self._is_settled:
            return NOTHING
        total = NOTHING
        for tracked in self._of(key):
            total += tracked.usable(key)
        return total

    def limit(self, key: str, now_s: int) -> SliceAmount:
        """Returns the same for placing a further pod: nothing of a recalled part, and nothing after the end of an offer."""
        total = NOTHING
        if not self._has_term or not self._is_settled:
            return total
        for tracked in self._of(key):
            offer = tracked.offer(key)
            if not offer.until_s or now_s < offer.until_s:
                total += tracked.usable(key) & offer.amount
        return total

    def offered_of(self, key: str) -> SliceAmount:
        """Returns what could be held of the slice now: the offers that are not recalled."""
        total = NOTHING
        for tracked in self._of(key):
            total += tracked.offer(key).amount
        return total

    def slice_keys(self) -> set[str]:
        """Returns the keys of all slices that are offered or held."""
        return self._wanted.keys() | self._by_key.keys()

    def held(self, key: str) -> SliceAmount:
        """Returns what is held of the slice, as last seen."""
        total = NOTHING
        for tracked in self._of(key):
            total += tracked.held(key)
        return total

    def are_offers_readable(self) -> bool:
        """Reports whether every offer can be trusted; while one cannot, its pods stay and no pod is added."""
        return all(tracked.seen is None or tracked.seen.spec is not None for tracked in self._objects.values())

    def are_claims_complete(self) -> bool:
        """Reports whether what is held covers all pods: further ones are placed only within what is usable."""
        seen = [tracked.seen for tracked in self._objects.values() if tracked.seen is not None]
        return all(one.status is not None and one.status.is_complete for one in seen)

    def want(self, key: str, amount: SliceAmount) -> None:
        """Sets what should be held of the slice: more is claimed as far as it is offered, less is released as far as it is not in use.

        The caller asks in blocks (`claim_block`), and releases a slice that was not used for a while.
        """
        if amount:
            self._wanted[key] = amount
        else:
            self._wanted.pop(key, None)
        self.touch((key,))

    def return_kept(self, *, parts: bool = True) -> None:
        """Returns recalled amounts that are no longer in use, however few slices that concerns. The caller calls it regularly.

        `parts`: also of slices that are partly in use.
        """
        for tracked in self._objects.values():
            if tracked.keeps_returns:
                tracked.returns_slices, tracked.returns_parts = True, parts
                self._due[tracked.blank.name] = tracked

    def problems(self) -> dict[str, str]:
        """Returns, by object, what keeps a write or a reading from being as it should."""
        found = {}
        for name, tracked in self._objects.items():
            if text := ("" if tracked.seen is None else tracked.seen.malformed) or tracked.refusal:
                found[name] = text
        return found

    # -- versions and answers --------------------------------------------------------------------------------------

    def next_requests(self, charged: Charged, most: int = sys.maxsize) -> list[SliceRequest]:
        """Returns the requests that are needed of `most` objects, at most one per object in flight. The caller sends each while it
        holds the lease, and passes each reply to `answered`. What they release is not usable any more when this returns.

        The caller has passed to `touch` all slices of which other amounts are charged than in the call before."""
        return self._requests(partial(self._next_request, charged), most) if self._has_term else []

    def _stays_due(self, tracked: _Claimed) -> bool:
        """A status that is not complete must cover all that is charged, of whatever slice."""
        status = None if tracked.seen is None else tracked.seen.status
        return tracked.seen is not None and (status is None or not status.is_complete)

    def _answered(self, tracked: _Claimed, request: SliceRequest, reply: SliceReply) -> None:
        is_ours = tracked.close(request, reply)
        if reply.answer is SliceAnswer.NOT_FOUND and is_ours:
            self._vanish(tracked)
        if reply.answer is not SliceAnswer.DONE or reply.found is None:
            return
        if is_ours and request.call is SliceCall.PUT_STATUS and request.status is not None:
            tracked.epoch = request.status.epoch
        self._take(tracked, reply.found, is_answer=is_ours)

    # -- internals -------------------------------------------------------------------------------------------------

    def _take(self, tracked: _Claimed, found: SliceSet, *, is_answer: bool) -> None:
        """Takes a version. Only an answer to this leader confirms what it holds; any version may show that less is held."""
        before, confirmed = tracked.seen, tracked.confirmed
        capped = {key: tracked.usable(key) for key in confirmed}
        taken = tracked.take(found, is_answer=is_answer)
        seen = tracked.seen
        if taken is not None and before is not None and before.uid != taken.uid:
            tracked.epoch = 0
        if seen is None or seen.status is None:
            tracked.confirmed = capped
            return
        tracked.check_epoch(seen.status.epoch)
        held, answered = seen.status.held, found.status
        if is_answer and answered is not None and answered.epoch == seen.status.epoch:
            tracked.confirmed = {key: one & held.get(key, NOTHING) for key, one in answered.held.items()}
        elif taken is not None:
            tracked.confirmed = {key: one & held.get(key, NOTHING) for key, one in confirmed.items()}

    def _vanish(self, tracked: _Claimed, version: Version = NO_VERSION) -> None:
        tracked.vanish(version)
        tracked.confirmed = {}

    def _next_request(self, charged: Charged, tracked: _Claimed) -> SliceRequest | None:
        seen = tracked.seen
        if tracked.is_superseded:
            return None
        if tracked.needs_read:
            return tracked.read_request()
        if seen is None:
            return None
        held = self._held(tracked, charged) if self._is_settled else None
        if not tracked.is_owned:
            return tracked.write_request(self._raised(tracked, seen, held))
        if held is None:
            return None
        status = SliceStatus(tracked.epoch, tracked.next_writes(SliceStatus), is_complete=True, held=held)
        before = seen.status
        if tracked.unresolved or before is None or not before.is_complete:
            return tracked.write_request(status)
        if dict(before.held) != held:
            tracked.keeps_returns = self._returns_little(tracked, before.held, held)
            tracked.returns_slices = tracked.returns_parts = False
            return None if tracked.keeps_returns else tracked.write_request(status)
        return None if dict(tracked.confirmed) == held else tracked.read_request()

    @staticmethod
    def _returns_little(tracked: _Claimed, before: Charged, after: Charged) -> bool:
        """Reports whether a write would only return what is recalled, and of few slices all of it.

        The pods of a node end one by one, and those of many nodes at different times; each would be a write.
        """
        recalled = whole = 0
        for key in before.keys() | after.keys():
            old, new, offered = before.get(key, NOTHING), after.get(key, NOTHING), tracked.offer(key).amount
            is_recalled = not old.is_within(offered)
            recalled += is_recalled
            if old != new:
                if not is_recalled or not new.is_within(old):
                    return False
                whole += new.is_within(offered)
        if tracked.returns_parts or (tracked.returns_slices and whole):
            return False
        return whole * RETURNED_AT_ONCE < recalled

    def _raised(self, tracked: _Claimed, seen: SliceSet, held: dict[str, SliceAmount] | None) -> SliceStatus:
        """Returns the first half under a new epoch: that of the former leader, unless the pods are already known."""
        before = seen.status or SliceStatus()
        epoch, writes = max(seen.borrower_epoch, before.epoch) + 1, tracked.next_writes(SliceStatus)
        if held is None:
            return SliceStatus(epoch, writes, before.is_complete, before.held)
        return SliceStatus(epoch, writes, is_complete=True, held=held)

    def _held(self, tracked: _Claimed, charged: Charged) -> dict[str, SliceAmount] | None:
        """Returns what the object should hold; None if it may not hold all that is charged.

        A status that is not complete yet must cover all that no other object does: the lender then relies on it.
        """
        spec, status = (None, None) if tracked.seen is None else (tracked.seen.spec, tracked.seen.status)
        keys = tracked.indexed
        if status is None or not status.is_complete:
            keys = keys | charged.keys()
        held = {}
        for key in sorted(keys):
            used, wanted = charged.get(key, NOTHING), self._wanted.get(key, NOTHING)
            if used is NOTHING and wanted is NOTHING:
                continue
            if key in self._shared or tracked not in self._of(key):
                used = (used - self._usable_elsewhere(tracked, key)) | NOTHING
            before = tracked.held(key)
            offered = before if spec is None else tracked.offer(key).amount
            if not used.is_within(before | offered):
                return None
            amount = (wanted & offered) | used
            if amount:
                held[key] = amount
        return held

    def _usable_elsewhere(self, tracked: _Claimed, key: str) -> SliceAmount:
        total = NOTHING
        for other in self._of(key):
            total += NOTHING if other is tracked else other.usable(key)
        return total


def claim_block(need: SliceAmount, offered: SliceAmount, percent: int) -> SliceAmount:
    """Returns what to claim of a slice for `need` and `percent` more: of each resource at least the largest share of its offer.

    The rest of a node's memory is of no use to the lender without its CPU, and the next pods may need more of it than those before.
    """
    more = {name: amount * (100 + percent) for name, amount in need.amounts().items()}
    offers = offered.amounts()
    share = min(1.0, max((more.get(name, 0) / (100 * offer) for name, offer in offers.items() if offer), default=0.0))
    return SliceAmount.of(
        {name: max(-(-more.get(name, 0) // 100), int(share * offers.get(name, 0))) for name in {**offers, **more}}
    )
