"""SliceSet as JSON: reading both halves, and the documents of their writes. See decode_objects.py.

Each half is read by itself: a mistake in one leaves the other usable. A half that cannot be read, or whose checksum does not
match, is None, and the problem names its field and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import msgspec
import orjson

from multisched.model.api_time import timestamp
from multisched.model.cluster_objects import SliceSet
from multisched.model.decode_metadata import WireMetadata
from multisched.model.decode_selectors import Refusal, Wire
from multisched.model.slice_parts import (
    AMOUNT_MAX,
    EPOCH_MAX,
    SLICES_MAX,
    SliceAmount,
    SliceOffer,
    SliceSpec,
    SliceStatus,
    checksum_of,
    others_of,
    slice_set_prefix,
)
from multisched.model.version import version_of

API_VERSION: Final = "multisched.io/v1alpha1"
FINALIZER: Final = "multisched.io/slices"
_LENDER_FIX: Final = "the leader of the lender writes it again; do not edit it by hand"
_BORROWER_FIX: Final = "the leader of the borrower writes it again, and the lender keeps its nodes reserved until then"

_Amount = Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)]
_Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
Half = TypeVar("Half", SliceSpec, SliceStatus)


class _Slice(Wire):
    cpu_milli: _Amount = 0
    memory_bytes: _Amount = 0
    pods: _Amount = 0
    others: dict[str, _Amount] | None = None


class _Offer(_Slice):
    until: datetime | None = None
    want_by: datetime | None = None


class _Spec(Wire):
    lender: str = ""
    borrower: str = ""
    lender_epoch: _Epoch = 0
    writes: _Epoch = 0
    offers: dict[str, msgspec.Raw] | None = None
    checksum: str = ""


class _Status(Wire):
    borrower_epoch: _Epoch = 0
    writes: _Epoch = 0
    complete: bool = False
    held: dict[str, msgspec.Raw] | None = None
    checksum: str = ""


_EpochHint = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX // 2)]
"""An epoch of a half that may be edited by hand: larger ones would leave no epochs above."""


class _Epochs(Wire):
    lender_epoch: _EpochHint = 0
    borrower_epoch: _EpochHint = 0


class _Metadata(WireMetadata):
    finalizers: list[str] | None = None


class WireSliceSet(Wire):
    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_spec_decoder: Final = msgspec.json.Decoder(_Spec)
_status_decoder: Final = msgspec.json.Decoder(_Status)
_offer_decoder: Final = msgspec.json.Decoder(_Offer)
_slice_decoder: Final = msgspec.json.Decoder(_Slice)
_epochs_decoder: Final = msgspec.json.Decoder(_Epochs)


def slice_set(wire: WireSliceSet) -> SliceSet:
    """Returns the object; `malformed` has the problems of both halves."""
    meta = wire.metadata
    problems: list[str] = []
    spec = _half(lambda: _spec(wire), "spec", _LENDER_FIX, problems)
    status = _half(lambda: _status(wire), "status", _BORROWER_FIX, problems)
    return SliceSet(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        malformed="; ".join(problems),
        spec=spec,
        status=status,
        lender_epoch=_epochs(wire.spec).lender_epoch,
        borrower_epoch=_epochs(wire.status).borrower_epoch,
        is_deleting=meta.deletion_timestamp is not None,
        has_finalizer=FINALIZER in (meta.finalizers or ()),
    )


def _half(read: Callable[[], Half], field: str, fix: str, problems: list[str]) -> Half | None:
    try:
        return read()
    except msgspec.ValidationError as error:
        problems.append(f"{field}: {error}; {fix}")
    except Refusal as refusal:
        problems.append(f"{refusal}; {fix}")
    return None


def _epochs(half: msgspec.Raw) -> _Epochs:
    try:
        return _epochs_decoder.decode(half)
    except msgspec.ValidationError:
        return _Epochs()


def _spec(wire: WireSliceSet) -> SliceSpec:
    read = _spec_decoder.decode(wire.spec)
    offers = {
        uid: SliceOffer(_amount(one), _epoch_s(one.until), _epoch_s(one.want_by))
        for uid, one in _entries(read.offers, "spec.offers", _offer_decoder)
    }
    spec = SliceSpec(read.lender, read.borrower, read.lender_epoch, read.writes, offers)
    if spec != SliceSpec() and not wire.metadata.name.startswith(slice_set_prefix(spec.lender, spec.borrower)):
        raise Refusal(
            f"spec.lender, spec.borrower: {spec.lender!r} and {spec.borrower!r} are not those of metadata.name"
        )
    _verify(wire.metadata.uid, spec, read.checksum, "spec", has_content=bool(offers or spec.epoch))
    return spec


def _status(wire: WireSliceSet) -> SliceStatus:
    read = _status_decoder.decode(wire.status)
    held = {uid: _amount(one) for uid, one in _entries(read.held, "status.held", _slice_decoder)}
    status = SliceStatus(read.borrower_epoch, read.writes, read.complete, held)
    _verify(wire.metadata.uid, status, read.checksum, "status", has_content=status != SliceStatus())
    return status


def _verify(uid: str, half: SliceSpec | SliceStatus, checksum: str, field: str, *, has_content: bool) -> None:
    """Refuses a half that no leader wrote. One that was never written has no content and needs no checksum."""
    if (half.writes or has_content) and checksum != checksum_of(uid, half):
        raise Refusal(
            f"{field}.checksum: {checksum[:40]!r} does not match the rest of {field}, which was edited by hand or copied"
        )


_Entry = TypeVar("_Entry", bound=_Slice)


def _entries(
    entries: Mapping[str, msgspec.Raw] | None, field: str, decoder: msgspec.json.Decoder[_Entry]
) -> Iterator[tuple[str, _Entry]]:
    if entries is not None and len(entries) > SLICES_MAX:
        raise Refusal(f"{field}: {len(entries)} entries, more than {SLICES_MAX}")
    for uid, entry in (entries or {}).items():
        try:
            yield uid, decoder.decode(entry)
        except msgspec.ValidationError as error:
            raise Refusal(f"{field}[{uid[:64]}]: {error}") from error


def _amount(wire: _Slice) -> SliceAmount:
    others = others_of(wire.others) if wire.others else ()
    return SliceAmount(wire.cpu_milli, wire.memory_bytes, wire.pods, others)


def _epoch_s(moment: datetime | None) -> int:
    if moment is None:
        return 0
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def spec_document(known: SliceSet, spec: SliceSpec, *, keeps_finalizer: bool = True) -> bytes:
    """Returns the body of a create or replace of the object; `known` has its identity, with version and uid if it exists."""
    return _document(known, {"spec": _wire_spec(known.uid, spec)}, keeps_finalizer=keeps_finalizer)


def status_document(known: SliceSet, status: SliceStatus) -> bytes:
    """Returns the body of a replace of the object's status."""
    wire = {
        "borrowerEpoch": status.epoch,
        "writes": status.writes,
        "complete": status.is_complete,
        "held": {uid: _wire_amount(amount) for uid, amount in status.held.items()},
        "checksum": checksum_of(known.uid, status),
    }
    return _document(known, {"status": wire}, keeps_finalizer=known.has_finalizer)


def _document(known: SliceSet, half: Mapping[str, object], *, keeps_finalizer: bool) -> bytes:
    metadata: dict[str, object] = {"name": known.name, "namespace": known.namespace}
    if known.version:
        metadata["resourceVersion"] = str(known.version)
        metadata["uid"] = known.uid
    if keeps_finalizer:
        metadata["finalizers"] = [FINALIZER]
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "SliceSet", "metadata": metadata, **half})


def _wire_spec(uid: str, spec: SliceSpec) -> dict[str, object]:
    return {
        "lender": spec.lender,
        "borrower": spec.borrower,
        "lenderEpoch": spec.epoch,
        "writes": spec.writes,
        "offers": {node: _wire_offer(offer) for node, offer in spec.offers.items()},
        "checksum": checksum_of(uid, spec) if spec.writes else "",
    }


def _wire_offer(offer: SliceOffer) -> dict[str, object]:
    found = _wire_amount(offer.amount)
    if offer.until_s:
        found["until"] = _time(offer.until_s)
    if offer.want_by_s:
        found["wantBy"] = _time(offer.want_by_s)
    return found


def _wire_amount(amount: SliceAmount) -> dict[str, object]:
    found: dict[str, object] = {"cpuMilli": amount.cpu_milli, "memoryBytes": amount.memory_bytes, "pods": amount.pods}
    return {**found, "others": dict(amount.others)} if amount.others else found


def _time(epoch_s: int) -> str:
    return timestamp(datetime.fromtimestamp(epoch_s, UTC))
