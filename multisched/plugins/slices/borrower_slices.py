"""BorrowerSlices: the borrower's state machine of a loan between processes: claims per slice, and the usable amount of each.

Its inputs are wanted amounts, versions from the watch, and responses; its outputs are requests (`next_requests`). It has no clock and does
no I/O.

Invariant S2, which the caller must ensure at each commit: `charged(key) <= usable(key)`. `charged` is what the borrower's pods request of
the slice, including assumed and terminating pods, and binds in flight or of unknown outcome. `usable` is the amount that a response to
this leader has confirmed, but not more than any write in flight would leave. So it decreases when a release is sent, and increases only
when a response arrives.

S3 and S4: a claim asks for no more than the offer in the version that it replaces, and no write holds less than `charged`.
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
"""If at least one in this many recalled slices of an object is no longer in use, all unused ones are returned with the next write."""

Charged = Mapping[str, SliceAmount]
"""Key of a slice -> what the borrower's pods request of it; see S2."""


class _Claimed(TrackedSlices):
    """One object, with the amounts that this leader may use."""

    def __init__(self, blank: SliceSet) -> None:
        super().__init__(blank)
        self.confirmed: Mapping[str, SliceAmount] = {}
        self.keeps_returns = False
        """A recalled amount is no longer in use, and is kept until a later write returns it."""
        self.returns_slices = self.returns_parts = False
        """The next write returns recalled amounts: of slices that are not in use; of slices that are partly in use."""

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
        """Returns the offer as last seen; no offer if the lender's half cannot be trusted or the object is being deleted."""
        if self.seen is None or self.seen.spec is None or self.seen.is_deleting:
            return NO_OFFER
        return self.seen.spec.offers.get(key, NO_OFFER)

    def held(self, key: str) -> SliceAmount:
        """Returns the held amount as last seen; nothing if the borrower's half cannot be trusted."""
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
        """Starts a term as a new leader, after binds of the former leader have ended.

        `listed`: a consistent list of all SliceSets that began in this term.
        """
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
        """Reports whether this leader owns every object, so that no write of a former leader can take effect any more."""
        return self._has_term and all(one.is_owned or one.seen is None for one in self._objects.values())

    def settle(self) -> None:
        """Records that `charged` is complete, because a consistent list of pods that began after `is_ready` is in the caller's cache.

        Before this call, nothing is usable. Held amounts stay wanted until the caller changes them.
        """
        self._is_settled = True
        for tracked in self._objects.values():
            for key, held in tracked.confirmed.items():
                self._wanted.setdefault(key, held)
        self.touch_all()

    # -- decisions -------------------------------------------------------------------------------------------------

    def usable(self, key: str) -> SliceAmount:
        """Returns the amount that the borrower's pods may request of the slice in total: see S2."""
        if not self._has_term or not self._is_settled:
            return NOTHING
        total = NOTHING
        for tracked in self._of(key):
            total += tracked.usable(key)
        return total

    def limit(self, key: str, now_s: int) -> SliceAmount:
        """Returns the same for placing a further pod: without recalled amounts, and without offers that have expired."""
        total = NOTHING
        if not self._has_term or not self._is_settled:
            return total
        for tracked in self._of(key):
            offer = tracked.offer(key)
            if not offer.until_s or now_s < offer.until_s:
                total += tracked.usable(key) & offer.amount
        return total

    def offered_of(self, key: str) -> SliceAmount:
        """Returns the offered amount of the slice, without recalled amounts."""
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
        """Reports whether all offers can be trusted. The slices of an offer that cannot be trusted keep their pods and get no others."""
        return all(tracked.seen is None or tracked.seen.spec is not None for tracked in self._objects.values())

    def are_claims_complete(self) -> bool:
        """Reports whether all statuses are complete, which means that the held amounts cover all pods of the borrower."""
        seen = [tracked.seen for tracked in self._objects.values() if tracked.seen is not None]
        return all(one.status is not None and one.status.is_complete for one in seen)

    def want(self, key: str, amount: SliceAmount) -> None:
        """Sets the amount of the slice that should be held. It is claimed as far as it is offered, and released as far as it is not in use.

        The caller claims in blocks (`claim_block`), and releases what was not used for a while.
        """
        if amount:
            self._wanted[key] = amount
        else:
            self._wanted.pop(key, None)
        self.touch((key,))

    def return_kept(self, *, parts: bool = True) -> None:
        """Lets the next write return all recalled amounts that are no longer in use, even if they are few. Called regularly.

        `parts`: also returns unused parts of slices that are partly in use.
        """
        for tracked in self._objects.values():
            if tracked.keeps_returns:
                tracked.returns_slices, tracked.returns_parts = True, parts
                self._due[tracked.blank.name] = tracked

    def problems(self) -> dict[str, str]:
        """Returns name of an object -> why it cannot be written or trusted."""
        found = {}
        for name, tracked in self._objects.items():
            if text := ("" if tracked.seen is None else tracked.seen.malformed) or tracked.refusal:
                found[name] = text
        return found

    # -- versions and answers --------------------------------------------------------------------------------------

    def next_requests(self, charged: Charged, most: int = sys.maxsize) -> list[SliceRequest]:
        """Returns the requests that are due, for at most `most` objects. Each object has at most one request in flight.

        The caller sends each request while it holds the lease, and passes each reply to `answered`. Amounts that the requests release are
        not usable any more when this returns. Before the call, the caller must pass to `touch` all slices whose charged amount has changed.
        """
        return self._requests(partial(self._next_request, charged), most) if self._has_term else []

    def _stays_due(self, tracked: _Claimed) -> bool:
        """Reports whether the object must be checked at each call: an incomplete status must cover all charged slices."""
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
        """Takes a version of the object. Only a response to this leader confirms held amounts; any version may lower them."""
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
        """Reports whether a write would only return recalled amounts, and whole slices of only a few. Such a write is postponed.

        Pods of many recalled nodes end at different times; without this, each end would be a write.
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
        """Returns the first status of this leader, with a new epoch: the former leader's amounts, or `held` if pods are already known."""
        before = seen.status or SliceStatus()
        epoch, writes = max(seen.borrower_epoch, before.epoch) + 1, tracked.next_writes(SliceStatus)
        if held is None:
            return SliceStatus(epoch, writes, before.is_complete, before.held)
        return SliceStatus(epoch, writes, is_complete=True, held=held)

    def _held(self, tracked: _Claimed, charged: Charged) -> dict[str, SliceAmount] | None:
        """Returns key -> amount that the object should hold; None if it must not hold all charged amounts.

        A status that becomes complete must cover all charged amounts that no other object covers, because the lender relies on it.
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
    """Returns the amount to claim of a slice for `need` and `percent` more.

    Of each resource it is at least the largest share of the offer that any resource needs: the rest of a node's memory is of no use to
    the lender without its CPU, and later pods may need more memory than the present ones.
    """
    more = {name: amount * (100 + percent) for name, amount in need.amounts().items()}
    offers = offered.amounts()
    share = min(1.0, max((more.get(name, 0) / (100 * offer) for name, offer in offers.items() if offer), default=0.0))
    return SliceAmount.of(
        {name: max(-(-more.get(name, 0) // 100), int(share * offers.get(name, 0))) for name in {**offers, **more}}
    )
