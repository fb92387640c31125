"""Lease records: decoded by processes that compete for a lease and by processes that only read the holder's data.

Processes that only read use `LeaseWatcher`: it reports whether another process that holds a lease may still bind. Like
`observed_lease.ObservedLease` it relies only on changes of the record and the local clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from multisched.client.paths import segment
from multisched.framework.leading import Leader
from multisched.framework.ports import Clock
from multisched.model.server_url import scheme_of
from multisched.model.wire import UNREADABLE, Response, Transport, TransportError

READ_TIMEOUT_S: Final = 5.0
ADDRESS_ANNOTATION: Final = "multisched.io/address"
"""Base URL at which the holder serves its API."""
TEXT_CHARS_MAX: Final = 256
"""Limit of texts that other processes wrote and that are shown to people."""


class RecordMetadata(msgspec.Struct, gc=False):
    name: str = ""
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Spec(msgspec.Struct, gc=False):
    holder: str | None = msgspec.field(name="holderIdentity", default=None)
    duration_s: int | None = msgspec.field(name="leaseDurationSeconds", default=None)
    acquire_time: str | None = msgspec.field(name="acquireTime", default=None)
    renew_time: str | None = msgspec.field(name="renewTime", default=None)
    transitions: int | None = msgspec.field(name="leaseTransitions", default=None)


class LeaseRecord(msgspec.Struct, gc=False):
    metadata: RecordMetadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_decoder = msgspec.json.Decoder(LeaseRecord)


def leases_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases"


def lease_path(namespace: str, name: str) -> str:
    return f"{leases_path(namespace)}/{segment(name)}"


def read_record(response: Response) -> LeaseRecord | None:
    """Returns None for a body that is not a Lease."""
    try:
        return _decoder.decode(response.body)
    except UNREADABLE:
        return None


def leader_of(record: LeaseRecord) -> Leader:
    """Returns the holder as the record describes it; an invalid address is left out."""
    address = record.metadata.annotations.get(ADDRESS_ANNOTATION, "")
    is_address = len(address) <= TEXT_CHARS_MAX and scheme_of(address)
    return Leader(
        (record.spec.holder or "")[:TEXT_CHARS_MAX],
        address if is_address else "",
        (record.spec.acquire_time or "")[:TEXT_CHARS_MAX],
    )


class Holding(msgspec.Struct, frozen=True):
    """A holder that may still bind, and its annotations."""

    holder: str
    annotations: Mapping[str, str]


NOT_READABLE: Final = Holding("a holder whose lease cannot be read", {})
NOT_THERE: Final = Holding("a holder whose lease was deleted, if there was one", {})


class Expiry:
    """The time at which a lease expires: the last observed *change* of its record plus its duration, by the local clock."""

    def __init__(self, clock: Clock, duration_s: float) -> None:
        """`duration_s`: used for a record without a duration."""
        self._clock = clock
        self._duration_s = duration_s
        self._seen: object = None
        self._changed_s = clock.monotonic()

    def saw(self, said: object) -> None:
        """Notes the record's content; a change restarts the duration."""
        if said != self._seen:
            self._seen, self._changed_s = said, self._clock.monotonic()

    def at_s(self, record: LeaseRecord | None) -> float:
        """Returns the monotonic time of expiry. `record` None: it cannot be read. The duration in a released record is ignored."""
        stated_s = record.spec.duration_s if record is not None and record.spec.holder else None
        return self._changed_s + (stated_s or self._duration_s)


class LeaseWatcher:
    """Watches one Lease that this process does not hold. `grace_s`: how long binds may be in flight after the lease expired."""

    def __init__(
        self, transport: Transport, clock: Clock, namespace: str, name: str, *, duration_s: float, grace_s: float
    ) -> None:
        self._transport = transport
        self._path = lease_path(namespace, name)
        self._clock = clock
        self._duration_s = duration_s
        self._grace_s = grace_s
        self._expiry = Expiry(clock, duration_s)
        self._looked_s = clock.monotonic()
        self._record: LeaseRecord | None = None
        self._last: Holding | None = None

    async def read(self) -> Holding | None:
        """Reads the lease consistently and returns the holder that may bind now.

        None: no process may bind under this lease, and no bind under it is in flight.

        A released lease is free at once, because its holder ended its binds before the release. A lease that does not exist
        or cannot be read counts as held until it would have expired, because its holder may still bind. Returns `NOT_THERE`
        for a missing lease of which no holder was ever seen.
        """
        try:
            response = await self._transport.request("GET", self._path, timeout_s=READ_TIMEOUT_S)
        except TransportError:
            return self._last if self._last is not None else NOT_READABLE
        record = read_record(response) if response.status == 200 else None
        if record is not None:
            return self._judge(record)
        if response.status in (403, 404):
            return self._judge_missing(NOT_THERE if response.status == 404 else NOT_READABLE)
        return self._last or NOT_READABLE

    def _judge(self, record: LeaseRecord) -> Holding | None:
        self._looked_s, self._record = self._clock.monotonic(), record
        self._expiry.saw(record.spec)
        is_held = bool(record.spec.holder)
        self._last = Holding(record.spec.holder or "", record.metadata.annotations) if is_held else None
        return self._unless_over()

    def _judge_missing(self, unseen: Holding) -> Holding | None:
        """Counts the lease as held for its duration after the first read that failed; after this one if reads are far apart."""
        now = self._clock.monotonic()
        if now - self._looked_s > self._duration_s:
            self._expiry = Expiry(self._clock, self._duration_s)
        self._looked_s = now
        self._expiry.saw(None)
        self._last = self._last or unseen
        return self._unless_over()

    def _unless_over(self) -> Holding | None:
        return self._last if self._clock.monotonic() < self._expiry.at_s(self._record) + self._grace_s else None
