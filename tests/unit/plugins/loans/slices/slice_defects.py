"""Deliberate defects of the protocol of slices, each of which the judge must see in some story."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from multisched.framework.slice_writes import SliceAnswer, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import NO_OFFER, NOTHING, SliceAmount, SliceOffer, SliceSpec, SliceStatus
from multisched.plugins.slices.borrower_slices import BorrowerSlices, Charged
from multisched.plugins.slices.lender_slices import LenderSlices
from tests.unit.plugins.loans.slices.slice_api import PodRecord
from tests.unit.plugins.loans.slices.slice_world import Replica, SliceWorld


class RoomReturnsAtRecall(LenderSlices):
    def reserved(self, uid: str) -> SliceAmount:
        return self.offer_of(uid).amount


class RoomReturnsAtWrite(LenderSlices):
    """As soon as the withdrawal is sent, and not when it is answered."""

    def reserved(self, uid: str) -> SliceAmount:
        sent = [one.unresolved[-1] for one in self._objects.values() if one.unresolved]
        offered = [one.offers.get(uid, NO_OFFER).amount for one in sent if isinstance(one, SliceSpec)]
        desired = self.offer_of(uid).amount
        return self.held(uid) | desired | offered[-1] if offered else super().reserved(uid)


class OfferNotTakenInMemory(LenderSlices):
    """A raise counts when a version shows it."""

    def reserved(self, uid: str) -> SliceAmount:
        total = NOTHING
        for one in self._objects.values():
            if one.seen is not None and one.seen.spec is not None:
                total += one.seen.spec.offers.get(uid, NO_OFFER).amount | one.held(uid)
        return total


class UnknownRaiseForgotten(LenderSlices):
    def answered(self, request: SliceRequest, reply: SliceReply) -> None:
        super().answered(request, reply)
        if reply.answer is SliceAnswer.UNKNOWN:
            self._objects[request.name].unresolved.clear()


class HeldNotReserved(LenderSlices):
    """Subtracts the offer alone."""

    def held(self, uid: str) -> SliceAmount:
        return NOTHING

    def reserved(self, uid: str) -> SliceAmount:
        total = self.offer_of(uid).amount
        for one in self._objects.values():
            if one.seen is not None and one.seen.spec is not None:
                total |= one.seen.spec.offers.get(uid, NO_OFFER).amount
        return total


class LenderEpochNotRaised(LenderSlices):
    def begin_term(self, listed: Iterable[SliceSet]) -> None:
        super().begin_term(listed)
        for one in self._objects.values():
            one.epoch = 0 if one.seen is None or one.seen.spec is None else max(one.seen.spec.epoch, 1)


class LenderListsBeforeItsEpoch(LenderSlices):
    def is_ready(self) -> bool:
        return self._has_term


class RemovalReturnsRoom(LenderSlices):
    def _vanish(self, tracked: Any, version: Any = 0) -> None:
        tracked.vanish(version)


class EditedStatusTrusted(LenderSlices):
    """What a person writes into the status counts."""

    def _take(self, tracked: Any, found: SliceSet, *, is_answer: bool) -> None:
        if found.status is None:
            writes = tracked.next_writes(SliceStatus) - 1
            found = msgspec.structs.replace(found, status=SliceStatus(writes=writes, is_complete=True))
        super()._take(tracked, found, is_answer=is_answer)


class TakeoverCountsAsComplete(LenderSlices):
    def _take(self, tracked: Any, found: SliceSet, *, is_answer: bool) -> None:
        if found.status is not None and found.status.writes:
            found = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, is_complete=True))
        super()._take(tracked, found, is_answer=is_answer)


class AdoptionIgnoresTheVersion(LenderSlices):
    """A borrower that leads again meanwhile has raised its epoch, and the lender overwrites it."""

    def adopt(self, known: SliceSet, charged: Charged) -> bool:
        tracked = self._objects.get(known.name)
        return tracked is not None and tracked.seen is not None and super().adopt(tracked.seen, charged)


class OfferExceedsRoom(LenderSlices):
    def offer(self, uid: str, node: str, wanted: SliceOffer, room: SliceAmount, typical: SliceAmount = NOTHING) -> None:
        super().offer(uid, node, wanted, wanted.amount, typical)


class ClaimTakenFromTheWatch(BorrowerSlices):
    """Any version under this epoch confirms, also one older than what is known."""

    def observe(self, found: SliceSet) -> bool:
        super().observe(found)
        tracked = self._objects.get(found.name)
        if tracked is None or found.status is None or found.status.epoch != tracked.epoch:
            return False
        tracked.confirmed = found.status.held
        return self._changed(tracked)


class OfferUsedInsteadOfHeld(BorrowerSlices):
    def usable(self, uid: str) -> SliceAmount:
        return super().usable(uid) | self.offered_of(uid)

    def limit(self, uid: str, now_s: int) -> SliceAmount:
        return self.offered_of(uid)


class ClaimUsedBeforeItsAnswer(BorrowerSlices):
    def limit(self, uid: str, now_s: int) -> SliceAmount:
        sent = [status.held for one in self._objects.values() for status in one.unresolved_statuses()]
        return super().limit(uid, now_s) | (sent[-1].get(uid, NOTHING) if sent else NOTHING)


class ReleaseCountsWhenAnswered(BorrowerSlices):
    """Uses what it holds until its release is answered."""

    def limit(self, uid: str, now_s: int) -> SliceAmount:
        owned = [one for one in self._objects.values() if one.is_owned and self._is_settled]
        return owned[0].confirmed.get(uid, NOTHING) & owned[0].offer(uid).amount if owned else NOTHING


class ReleasesWhatIsInUse(BorrowerSlices):
    def _held(self, tracked: Any, charged: Charged) -> dict[str, SliceAmount] | None:
        return super()._held(tracked, {})


class BorrowerEpochNotRaised(BorrowerSlices):
    def begin_term(self, listed: Iterable[SliceSet]) -> None:
        super().begin_term(listed)
        for one in self._objects.values():
            one.epoch = 0 if one.seen is None or one.seen.status is None else one.seen.status.epoch


class ConflictTakenForSuccess(BorrowerSlices):
    """Takes a 409 for its own write that was sent twice."""

    def answered(self, request: SliceRequest, reply: SliceReply) -> None:
        super().answered(request, reply)
        tracked = self._objects[request.name]
        if reply.answer is SliceAnswer.CONFLICT and request.status is not None and tracked.is_owned:
            tracked.unresolved.clear()
            tracked.confirmed = request.status.held


class TerminatingPodsNotCharged(Replica):
    def on_pod(self, change: str, pod: PodRecord) -> None:
        super().on_pod("gone" if change == "deleting" else change, pod)


class UnknownBindsNotCharged(Replica):
    def send(self) -> None:
        self.pods = {uid: pod for uid, pod in self.pods.items() if uid not in self.unknown}
        super().send()


class AdoptsALivingBorrower(Replica):
    def borrower_is_dead(self) -> bool:
        return True


class PodsNotListedAtTakeover(Replica):
    def list_pods(self) -> list[PodRecord]:
        return []


DEFECTS: Final[dict[str, Callable[[int], SliceWorld]]] = {
    **{
        made.__name__: (lambda seed, made=made: SliceWorld(seed, lender=made))  # type: ignore[misc]
        for made in (
            RoomReturnsAtRecall,
            RoomReturnsAtWrite,
            OfferNotTakenInMemory,
            UnknownRaiseForgotten,
            HeldNotReserved,
            LenderEpochNotRaised,
            LenderListsBeforeItsEpoch,
            RemovalReturnsRoom,
            EditedStatusTrusted,
            TakeoverCountsAsComplete,
            AdoptionIgnoresTheVersion,
            OfferExceedsRoom,
        )
    },
    **{
        made.__name__: (lambda seed, made=made: SliceWorld(seed, borrower=made))  # type: ignore[misc]
        for made in (
            ClaimTakenFromTheWatch,
            OfferUsedInsteadOfHeld,
            ClaimUsedBeforeItsAnswer,
            ReleaseCountsWhenAnswered,
            ReleasesWhatIsInUse,
            BorrowerEpochNotRaised,
            ConflictTakenForSuccess,
        )
    },
    **{
        made.__name__: (lambda seed, made=made: SliceWorld(seed, replica=made))  # type: ignore[misc]
        for made in (TerminatingPodsNotCharged, UnknownBindsNotCharged, AdoptsALivingBorrower, PodsNotListedAtTakeover)
    },
}
