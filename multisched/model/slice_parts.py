"""The parts of a SliceSet: amounts, offers, and the halves that lender and borrower write. Pure values.

Amounts are whole numbers per resource, so that sums over processes are exact. `checksum_of` covers a half and the uid of its
object: an edit by hand, and a copy of another object's content, are noticed by it. It is no protection against forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

SLICES_MAX: Final = 256
"""Nodes per SliceSet: about 25 KB of JSON."""
AMOUNT_MAX: Final = 1 << 50
EPOCH_MAX: Final = 1 << 53
"""Largest integer that every JSON reader represents exactly."""


class SliceAmount(msgspec.Struct, frozen=True, gc=False):
    """An amount of each resource that slices have. Comparisons and bounds are per resource."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0

    def __add__(self, other: SliceAmount) -> SliceAmount:
        return SliceAmount(
            self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes, self.pods + other.pods
        )

    def __sub__(self, other: SliceAmount) -> SliceAmount:
        return SliceAmount(
            self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes, self.pods - other.pods
        )

    def __or__(self, other: SliceAmount) -> SliceAmount:
        """Returns the larger amount of each resource."""
        return SliceAmount(
            max(self.cpu_milli, other.cpu_milli),
            max(self.memory_bytes, other.memory_bytes),
            max(self.pods, other.pods),
        )

    def __and__(self, other: SliceAmount) -> SliceAmount:
        """Returns the smaller amount of each resource."""
        return SliceAmount(
            min(self.cpu_milli, other.cpu_milli),
            min(self.memory_bytes, other.memory_bytes),
            min(self.pods, other.pods),
        )

    def __bool__(self) -> bool:
        return self != NOTHING

    def is_within(self, limit: SliceAmount) -> bool:
        """Reports whether no resource exceeds the limit's."""
        return self & limit == self


NOTHING: Final = SliceAmount()
EVERYTHING: Final = SliceAmount(AMOUNT_MAX, AMOUNT_MAX, AMOUNT_MAX)
"""More than any node has."""


class SliceOffer(msgspec.Struct, frozen=True, gc=False):
    """What the lender offers of one node."""

    amount: SliceAmount = NOTHING
    """At most this may be held. Less than what is held: a recall."""
    until_s: int = 0
    """Epoch seconds after which the borrower places no further pods; 0: no end."""
    want_by_s: int = 0
    """Epoch seconds at which the recalled part should be returned; 0: no recall."""


NO_OFFER: Final = SliceOffer()


class SliceSpec(msgspec.Struct, frozen=True, gc=False):
    """The lender's half."""

    lender: str = ""
    borrower: str = ""
    epoch: int = 0
    """Raised by each new leader of the lender before it lists pods."""
    writes: int = 0
    """Number of writes so far: makes each write a change, so that one that succeeds supersedes all that are in flight.

    0: only created. The creation offers nothing, because no resourceVersion fences it."""
    offers: Mapping[str, SliceOffer] = {}
    """By the node's uid."""


class SliceStatus(msgspec.Struct, frozen=True, gc=False):
    """The borrower's half."""

    epoch: int = 0
    """Raised by each new leader of the borrower, and by the lender that adopts the slices of a dead borrower."""
    writes: int = 0
    """As the lender's; 0: never written."""
    is_complete: bool = False
    """`held` covers all pods of the borrower. False from a takeover of a status that was unreadable or never written until its
    writer has listed the pods."""
    held: Mapping[str, SliceAmount] = {}
    """By the node's uid."""


def checksum_of(uid: str, half: SliceSpec | SliceStatus) -> str:
    """Returns the checksum of a half of the object with this uid."""
    entries = half.offers if isinstance(half, SliceSpec) else half.held
    rest = msgspec.structs.replace(half, **{"offers" if isinstance(half, SliceSpec) else "held": {}})
    text = msgspec.json.encode([uid, rest, sorted(entries.items())])
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def slice_set_prefix(lender: str, borrower: str) -> str:
    """Returns what the names of all objects of a loan begin with."""
    return f"{lender}.{borrower}."


def slice_set_name(lender: str, borrower: str, bucket: int) -> str:
    return f"{slice_set_prefix(lender, borrower)}{bucket}"


def bucket_of(node: str, buckets: int) -> int:
    """Returns the object, of `buckets`, in which a node by this name is looked for first."""
    return int.from_bytes(hashlib.blake2b(node.encode(), digest_size=8).digest(), "big") % buckets


def buckets_for(nodes: int) -> int:
    """Returns the number of objects for this many nodes: a power of two, with half of `SLICES_MAX` per object at most on average."""
    buckets = 1
    while buckets * SLICES_MAX < 2 * nodes:
        buckets *= 2
    return buckets
