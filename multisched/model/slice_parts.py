"""The parts of a SliceSet: amounts, offers, and the halves that lender and borrower write. Pure values.

A slice is a part of a node, found by the node's uid, or of a quota, found by the name of its leaf.

Amounts are whole numbers per resource, so that sums over processes are exact. `checksum_of` covers a half and the uid of its
object: an edit by hand, and a copy of another object's content, are noticed by it. It is no protection against forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from operator import add, sub
from typing import Final

import msgspec

from multisched.model.objects import CPU, MEMORY, PODS

SLICES_MAX: Final = 256
"""Slices per SliceSet: about 25 KB of JSON for nodes."""
AMOUNT_MAX: Final = 1 << 50
EPOCH_MAX: Final = 1 << 53
"""Largest integer that every JSON reader represents exactly."""


class SliceAmount(msgspec.Struct, frozen=True, gc=False):
    """An amount of each resource that slices have. Comparisons and bounds are per resource."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    others: tuple[tuple[str, int], ...] = ()
    """(resource, amount) pairs, sorted by resource and without zeros: only slices of quotas have them. See `others_of`."""

    def __add__(self, other: SliceAmount) -> SliceAmount:
        return SliceAmount(
            self.cpu_milli + other.cpu_milli,
            self.memory_bytes + other.memory_bytes,
            self.pods + other.pods,
            _merged(self.others, other.others, add),
        )

    def __sub__(self, other: SliceAmount) -> SliceAmount:
        return SliceAmount(
            self.cpu_milli - other.cpu_milli,
            self.memory_bytes - other.memory_bytes,
            self.pods - other.pods,
            _merged(self.others, other.others, sub),
        )

    def __or__(self, other: SliceAmount) -> SliceAmount:
        """Returns the larger amount of each resource."""
        return SliceAmount(
            max(self.cpu_milli, other.cpu_milli),
            max(self.memory_bytes, other.memory_bytes),
            max(self.pods, other.pods),
            _merged(self.others, other.others, max),
        )

    def __and__(self, other: SliceAmount) -> SliceAmount:
        """Returns the smaller amount of each resource."""
        return SliceAmount(
            min(self.cpu_milli, other.cpu_milli),
            min(self.memory_bytes, other.memory_bytes),
            min(self.pods, other.pods),
            _merged(self.others, other.others, min),
        )

    def __bool__(self) -> bool:
        return self != NOTHING

    def is_within(self, limit: SliceAmount) -> bool:
        """Reports whether no resource exceeds the limit's."""
        return self & limit == self

    def capped(self) -> SliceAmount:
        """Returns the amount with at most AMOUNT_MAX of each resource."""
        return SliceAmount(
            min(self.cpu_milli, AMOUNT_MAX),
            min(self.memory_bytes, AMOUNT_MAX),
            min(self.pods, AMOUNT_MAX),
            tuple((name, min(amount, AMOUNT_MAX)) for name, amount in self.others),
        )

    def of_nodes(self) -> tuple[int, int, int]:
        """Returns the amounts that slices of nodes have, in the order of RESOURCES."""
        return self.cpu_milli, self.memory_bytes, self.pods

    def amounts(self) -> dict[str, int]:
        """Returns resource -> amount, also of the three that every slice has."""
        return {CPU: self.cpu_milli, MEMORY: self.memory_bytes, PODS: self.pods, **dict(self.others)}

    @staticmethod
    def of(amounts: Mapping[str, int]) -> SliceAmount:
        """Returns the amount of these resources."""
        rest = {name: amount for name, amount in amounts.items() if name not in RESOURCES}
        return SliceAmount(
            amounts.get(CPU, 0), amounts.get(MEMORY, 0), amounts.get(PODS, 0), others_of(rest) if rest else ()
        )


def others_of(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Returns the pairs of `SliceAmount.others`."""
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def _merged(
    one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...], merge: Callable[[int, int], int]
) -> tuple[tuple[str, int], ...]:
    if not one and not other:
        return ()  # as of all slices of nodes
    ours, theirs = dict(one), dict(other)
    return others_of({name: merge(ours.get(name, 0), theirs.get(name, 0)) for name in {**ours, **theirs}})


RESOURCES: Final = (CPU, MEMORY, PODS)
"""Resources that every amount has."""
NOTHING: Final = SliceAmount()
EVERYTHING: Final = SliceAmount(AMOUNT_MAX, AMOUNT_MAX, AMOUNT_MAX)
"""More than any node has."""


class SliceOffer(msgspec.Struct, frozen=True, gc=False):
    """The amount that the lender offers of one node."""

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
    """Counts writes, as `writes` of the lender's half; 0: never written."""
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


QUOTA_ROOM: Final = "quota."
"""Part of the names of objects whose slices are of quotas: by name of a leaf instead of a node's uid."""


def slice_set_prefix(lender: str, borrower: str, part: str = "") -> str:
    """Returns what the names of all objects of a loan begin with; a number follows. `part`: empty, or QUOTA_ROOM."""
    return f"{lender}.{borrower}.{part}"


def bucket_of(name: str, buckets: int) -> int:
    """Returns the object, of `buckets`, in which the slice of a node or leaf by this name is looked for first."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % buckets


def buckets_for(slices: int) -> int:
    """Returns the number of objects for this many slices: a power of two, with half of `SLICES_MAX` per object at most on average."""
    buckets = 1
    while buckets * SLICES_MAX < 2 * slices:
        buckets *= 2
    return buckets
