"""Writes the status of objects other than pods (gangs, quotas) in the background.

Owns the set of objects that are due, and what was last written to each. `mark` never blocks. The status is computed just before it is
written, so that many marks lead to one write of the latest state. An unchanged status is not written. An object is written at most once
per PAUSE_S; if its status is large, less often. Bind requests have precedence. Nothing is sent after the lease's deadline, and the server
drops writes that it processes too late (I9).

Each write is a merge patch with the last seen resourceVersion as precondition, so that it overwrites nothing newer. After a conflict, the
object is read again. If another program keeps changing the same fields, the pauses grow up to RIVAL_PAUSE_MAX_S. Failed writes are
retried with backoff while the status is wanted. The shell runs `run()`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

import anyio
import msgspec
import orjson

from multisched.client.background_write import wait_after_s
from multisched.client.errors import sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import object_path, within
from multisched.client.server_status import ServerStatus, ServerStatuses
from multisched.client.status_patch import (
    Document,
    OwnPart,
    digest_of,
    merged_conditions,
    own_part,
    patch_between,
    plain,
)
from multisched.client.timed_write import ANSWER_GRACE_S
from multisched.framework.object_status import ObjectKey, ObjectStatus
from multisched.framework.ports import Clock, LeaseHolder
from multisched.model.api_time import timestamp
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import MERGE_PATCH, Response, Transport, TransportError

logger = logging.getLogger(__name__)

DUE_MAX: Final = 65_536
"""Maximum number of objects that wait to be written; further marks are dropped and counted."""
WORKERS: Final = 2
SETTLE_S: Final = 1.0
"""Time from a mark to the write; changes within this time need one write only."""
PAUSE_S: Final = 5.0
"""Minimum time between two writes of one object."""
BYTES_PER_S: Final = 16 * 1024
"""Limit of bytes written to one object per second, because each write makes the server store the whole object."""
WRITES_PER_S: Final = 50.0
"""Limit for all objects together."""
RIVAL_PAUSE_MAX_S: Final = 300.0
"""Longest pause between two writes of an object whose status another program writes, too."""
RIVALS_LOGGED_AT: Final = 3
"""Value of `_Record.rival_writes` at which a warning is logged."""
FAILURES_LOGGED_AT: Final = 5
"""Number of consecutive failures after which a warning is logged."""
CONFLICTS_MAX: Final = 3
"""After this many consecutive conflicts, each followed by a read, a write is retried with backoff."""
RETRY_MIN_S: Final = 2.0
RETRY_MAX_S: Final = 60.0
"""Limits of the pause before a retry; it doubles with each consecutive failure."""
KIND_PAUSE_S: Final = 60.0
"""Time for which a kind is skipped if it has no status subresource, or RBAC does not allow writes."""
REFUSALS_LOGGED_S: Final = 60.0
"""Interval between log lines about refused statuses of one kind."""
IDLE_S: Final = 30.0
HELD_S: Final = 1.0
"""If the lease does not allow a write, the object is checked again after this time."""


class StatusOffer(Protocol):
    """Provides the statuses to write. Implemented by the shell, which has the plugins and the leases."""

    def lease_of(self, kind: ObjectKind) -> LeaseHolder | None:
        """Returns the lease that allows writes of the kind; None if this process must not write the kind now."""
        ...

    def path_of(self, kind: ObjectKind) -> str:
        """Returns the path at which the API server lists the kind, in the version that it serves."""
        ...

    def status_of(self, key: ObjectKey) -> ObjectStatus | None:
        """Returns the current wanted status; None if there is none. Never raises."""
        ...


class StatusStatistics(msgspec.Struct):
    """Counters since the start of the process, and the current backlog."""

    results: Mapping[tuple[ObjectKind, str], int]
    """(kind, result) -> count; results are `written`, `unchanged`, `conflict`, `gone`, `forbidden`, `refused`,
    `failed`, `dropped`.
    """
    backlog: int


class _Plan(msgspec.Struct, frozen=True):
    """One write, as computed from the wanted and the current status."""

    key: ObjectKey
    current: ServerStatus
    part: OwnPart
    wanted: bytes
    """Digest of the whole wanted status."""
    body: bytes
    """Body of the request."""


class _Record(msgspec.Struct, gc=False):
    """State of one object for which at least one write was tried."""

    not_before_s: float = 0.0
    wanted: bytes = b""
    """Digest of the last wanted status that the server accepted, or refused for good; empty if unknown."""
    part: OwnPart = OwnPart()
    """The fields of the status that this program writes."""
    stored_digest: bytes = b""
    """Digest of these fields as the API server stored them at the last write."""
    failures: int = 0
    """Number of consecutive failures."""
    rival_writes: int = 0
    """Number of consecutive writes that replaced changes of another program: it had changed these fields since the write before."""

    def is_unchanged(self, current: ServerStatus) -> bool:
        """Reports whether the fields that this program writes are unchanged since its last write."""
        return bool(self.wanted) and self.part.of(current.document(), current.annotations()) == self.stored_digest


class ApiStatusWriter:
    """Keeps the statuses at the API server equal to the wanted ones."""

    def __init__(
        self, transport: Transport, limiter: WriteLimiter, clock: Clock, offer: StatusOffer, *, timeout_s: float
    ) -> None:
        """`timeout_s`: time after which the server drops a write. It must be at most the time that a new leader waits before it writes."""
        self.server_statuses = ServerStatuses()
        self.has_dropped_marks = False
        """True after marks were dropped, until the caller sets it to False."""
        self._transport = transport
        self._limiter = limiter
        self._clock = clock
        self._offer = offer
        self._timeout_s = timeout_s
        self._due: dict[ObjectKey, float] = {}
        self._heap: list[tuple[float, int, ObjectKey]] = []
        self._number = 0
        """Number of schedulings; the tie-break in the heap."""
        self._writing: set[ObjectKey] = set()
        self._records: dict[ObjectKey, _Record] = {}
        self._kinds: dict[ObjectKind, float] = {}
        """Kind that may not be written -> time until which it is skipped."""
        self._refusals_logged: dict[ObjectKind, float] = {}
        self._next_send_s = 0.0
        self._wakeup = asyncio.Event()
        self._results: Counter[tuple[ObjectKind, str]] = Counter()

    # -- marks -----------------------------------------------------------------------------------------------------

    def mark(self, key: ObjectKey) -> None:
        """Schedules a write, because the object's status may have changed. Never blocks; if DUE_MAX objects wait, drops and counts the
        mark.
        """
        if key in self._due:
            return
        if len(self._due) >= DUE_MAX:
            self.has_dropped_marks = True
            self._results[key[0], "dropped"] += 1
            return
        self._schedule(key, self._clock.monotonic() + SETTLE_S)

    def forget(self, key: ObjectKey) -> None:
        """Drops all state of a deleted object."""
        self._due.pop(key, None)
        self._records.pop(key, None)

    def forget_written(self) -> None:
        """Forgets what was written, because after the restore of a backup the API server may not have it."""
        self._records.clear()

    @property
    def backlog(self) -> int:
        """Number of objects that are due or being written."""
        return len(self._due) + len(self._writing)

    def statistics(self) -> StatusStatistics:
        return StatusStatistics(dict(self._results), self.backlog)

    def _not_before_s(self, key: ObjectKey) -> float:
        record = self._records.get(key)
        return max(record.not_before_s if record is not None else 0.0, self._kinds.get(key[0], 0.0))

    def _schedule(self, key: ObjectKey, at_s: float) -> None:
        self._due[key] = at_s = max(at_s, self._not_before_s(key))
        self._number += 1
        heapq.heappush(self._heap, (at_s, self._number, key))
        if self._heap[0][1] == self._number:
            self._wakeup.set()

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes statuses until it is cancelled."""
        async with anyio.create_task_group() as workers:
            for _ in range(WORKERS):
                workers.start_soon(self._work)

    async def _work(self) -> None:
        while True:
            key = self._next()
            if key is None:
                await self._idle()
                continue
            self._writing.add(key)
            try:
                await self._write(key)
            finally:
                self._writing.discard(key)

    def _next(self) -> ObjectKey | None:
        """Returns the object that has been due for the longest time, or None. Skips objects that are being written."""
        now_s = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, key = heapq.heappop(self._heap)
            if self._due.get(key) != at_s:
                continue  # the object was forgotten or rescheduled
            if key not in self._writing and self._not_before_s(key) <= now_s:
                del self._due[key]
                return key
            # The object is being written, or its next write was put off after it was scheduled.
            self._schedule(key, now_s + SETTLE_S)
        return None

    async def _idle(self) -> None:
        self._wakeup.clear()
        wait_s = self._heap[0][0] - self._clock.monotonic() if self._heap else IDLE_S
        with anyio.move_on_after(max(wait_s, 0.0)):
            await self._wakeup.wait()

    # -- one object ------------------------------------------------------------------------------------------------

    async def _write(self, key: ObjectKey) -> None:
        for _ in range(CONFLICTS_MAX):
            is_known = self.server_statuses.get(key) is not None
            if not is_known and (self._wanted(key) is None or not await self._read(key)):
                return
            if self._plan(key, count=True) is None:
                return
            await self._admit()
            if await self._send(key):
                return
        self._retry(key)

    async def _admit(self) -> None:
        """Waits until a write may be sent: the rate is limited, and bind requests have precedence."""
        now_s = self._clock.monotonic()
        self._next_send_s = max(self._next_send_s, now_s) + 1 / WRITES_PER_S
        await asyncio.sleep(self._next_send_s - now_s)
        await self._limiter.admit_background()

    def _wanted(self, key: ObjectKey) -> ObjectStatus | None:
        """Returns the wanted status; None if there is none, or this process may not write it now."""
        lease = self._offer.lease_of(key[0])
        if lease is None:
            return None  # the next leader writes all objects
        if not lease.may_bind():
            self._schedule(key, self._clock.monotonic() + HELD_S)
            return None
        wanted = self._offer.status_of(key)
        if wanted is None:
            self.server_statuses.forget(key)
        return wanted

    def _plan(self, key: ObjectKey, *, count: bool = False) -> _Plan | None:
        """Returns the write to send now; None if none is needed or possible. `count`: counts a write that is not needed."""
        wanted, current = self._wanted(key), self.server_statuses.get(key)
        if wanted is None or current is None or wanted.uid != current.uid:
            return None
        try:
            fields = plain(wanted)
        except (TypeError, ValueError) as error:
            self._refuse(key, f"the plugin's status cannot be written: {error}")
            return None
        document, of_wanted = current.document(), digest_of(wanted, fields, current.generation)
        now = timestamp(self._clock.now())
        fields |= {name: document.get(name) or now for name in wanted.since}
        patch = patch_between(document, fields, merged_conditions(document, wanted.conditions, current.generation, now))
        new_annotations = {} if key[0].definition.has_status_path else _new_annotations(wanted, current)
        record = self._records.get(key)
        # The API server has already processed this status, and stored other values or refused it. The same write would change nothing.
        was_stored_differently = record is not None and record.wanted == of_wanted and record.is_unchanged(current)
        if not (patch or new_annotations) or was_stored_differently:
            self._results[key[0], "unchanged"] += count
            return None
        metadata: Document = {"uid": current.uid, "resourceVersion": current.version}
        if new_annotations:
            metadata["annotations"] = new_annotations
        body = orjson.dumps({"metadata": metadata, "status": patch} if patch else {"metadata": metadata})
        return _Plan(key, current, own_part(wanted), of_wanted, body)

    async def _send(self, key: ObjectKey) -> bool:
        """Sends one request. Returns False if it must be repeated at once. No await between the check of the lease and the request."""
        plan = self._plan(key)
        if plan is None:
            return True
        record = self._records.setdefault(key, _Record())
        record.not_before_s = self._clock.monotonic() + _pause_s(record, len(plan.current.raw) + len(plan.body))
        path = object_path(self._offer.path_of(key[0]), key[1], key[2])
        path = within(f"{path}/status" if key[0].definition.has_status_path else path, self._timeout_s)
        try:
            response = await self._transport.request(
                "PATCH", path, body=plan.body, content_type=MERGE_PATCH, timeout_s=self._timeout_s + ANSWER_GRACE_S
            )
        except TransportError as error:
            self._response_lost(key, str(error))
            return True
        return await self._answered(plan, response)

    async def _answered(self, plan: _Plan, response: Response) -> bool:
        """Handles the response. Returns False if the write must be repeated at once."""
        key, status = plan.key, response.status
        if status == 200:
            self._wrote(plan, response)
        elif status == 409:
            self._results[key[0], "conflict"] += 1
            self.server_statuses.forget(key)
            return False
        elif status == 404:
            await self._missing(plan)
        elif status == 403:
            self._forbidden(key, response)
        elif status == 401 or status == 429:
            self._fail(key, sentence_of(response), wait_after_s(response, self._limiter))
        elif status >= 500:
            self._response_lost(key, sentence_of(response), wait_after_s(response, self._limiter))
        else:
            record = self._records.get(key)
            if record is not None:
                self._note(record, plan, plan.current)
            self._refuse(key, sentence_of(response))
        return True

    def _wrote(self, plan: _Plan, response: Response) -> None:
        key = plan.key
        self._results[key[0], "written"] += 1
        self._kinds.pop(key[0], None)
        record = self._records.get(key)
        if record is None:
            return  # the object was deleted during the write
        if record.wanted:
            record.rival_writes = 0 if record.is_unchanged(plan.current) else record.rival_writes + 1
        if record.rival_writes:
            size = len(plan.current.raw)
            record.not_before_s = max(record.not_before_s, self._clock.monotonic() + _pause_s(record, size))
        if record.rival_writes == RIVALS_LOGGED_AT:
            logger.warning(
                "another program also writes the status of this object; writing it less often from now on",
                extra=_named(key),
            )
        record.failures = 0
        current = self.server_statuses.record(key, response.body)
        if current is not None:
            self._note(record, plan, current)

    @staticmethod
    def _note(record: _Record, plan: _Plan, current: ServerStatus) -> None:
        record.wanted, record.part = plan.wanted, plan.part
        record.stored_digest = plan.part.of(current.document(), current.annotations())

    # -- failures -------------------------------------------------------------------------------------------------

    async def _missing(self, plan: _Plan) -> None:
        """Handles a 404: the object was deleted, or its kind has no status subresource."""
        key, definition = plan.key, plan.key[0].definition
        if not await self._read(key):
            return
        current = self.server_statuses.get(key)
        if not definition.has_status_path or (current is not None and current.uid != plan.current.uid):
            self._schedule(key, self._clock.monotonic() + SETTLE_S)
            return
        title = f"{definition.plural}.{definition.group}"
        self._skip_kind(
            key, f"{title} has no status subresource; apply its CustomResourceDefinition again (deploy/crds)", ""
        )

    def _forbidden(self, key: ObjectKey, response: Response) -> None:
        definition = key[0].definition
        resource = f"{definition.plural}/status" if definition.has_status_path else definition.plural
        rule = f'"patch" on "{resource}" of API group "{definition.group}"'
        self._skip_kind(
            key, f"statuses may not be written; grant the verb {rule} (deploy/base/rbac.yaml)", sentence_of(response)
        )

    def _skip_kind(self, key: ObjectKey, what: str, error: str) -> None:
        """Skips the kind for KIND_PAUSE_S. Logs an error the first time, and again only after the kind could be written."""
        kind = key[0]
        self._results[kind, "forbidden"] += 1
        if kind not in self._kinds:
            logger.error(what, extra={**_named(key), "error": error})
        self._kinds[kind] = self._clock.monotonic() + KIND_PAUSE_S
        self._schedule(key, self._kinds[kind])

    async def _read(self, key: ObjectKey) -> bool:
        """Reads the object's status; returns False if there is no such object or no response."""
        try:
            path = object_path(self._offer.path_of(key[0]), key[1], key[2])
            response = await self._transport.request("GET", path, timeout_s=self._timeout_s)
        except TransportError as error:
            self._fail(key, str(error))
            return False
        if response.status == 200 and self.server_statuses.record(key, response.body) is not None:
            return True
        self.server_statuses.forget(key)
        if response.status == 404:
            self._results[key[0], "gone"] += 1
            self.forget(key)
        else:
            self._fail(key, sentence_of(response), wait_after_s(response, self._limiter))
        return False

    def _response_lost(self, key: ObjectKey, error: str, at_least_s: float = 0.0) -> None:
        """Handles a lost response, after which it is unknown whether the status was written."""
        self.server_statuses.forget(key)
        record = self._records.get(key)
        if record is not None:
            record.wanted = b""
        self._fail(key, error, at_least_s)

    def _fail(self, key: ObjectKey, error: str, at_least_s: float = 0.0) -> None:
        self._results[key[0], "failed"] += 1
        if self._retry(key, at_least_s) == FAILURES_LOGGED_AT:
            logger.warning("status of an object cannot be written; retrying", extra={**_named(key), "error": error})

    def _retry(self, key: ObjectKey, at_least_s: float = 0.0) -> int:
        """Schedules a retry with backoff, and returns the number of consecutive failures."""
        record = self._records.setdefault(key, _Record())
        wait_s = max(min(RETRY_MIN_S * (1 << min(record.failures, 8)), RETRY_MAX_S), at_least_s)
        record.failures += 1
        record.not_before_s = max(record.not_before_s, self._clock.monotonic() + wait_s)
        self._schedule(key, record.not_before_s)
        return record.failures

    def _refuse(self, key: ObjectKey, why: str) -> None:
        """Counts and logs a refused status. It is not retried until the wanted status or the one at the API server changes."""
        self._results[key[0], "refused"] += 1
        now_s = self._clock.monotonic()
        if now_s >= self._refusals_logged.get(key[0], now_s):
            self._refusals_logged[key[0]] = now_s + REFUSALS_LOGGED_S
            logger.warning("status of an object refused", extra={**_named(key), "error": why})


def _pause_s(record: _Record, status_bytes: int) -> float:
    """Returns the minimum pause before the next write of this object, in seconds."""
    pause_s = max(PAUSE_S, status_bytes / BYTES_PER_S)
    return max(pause_s, min(pause_s * (1 << min(record.rival_writes, 8)), RIVAL_PAUSE_MAX_S))


def _new_annotations(wanted: ObjectStatus, current: ServerStatus) -> dict[str, str]:
    known = current.annotations() if wanted.annotations else {}
    return {name: text for name, text in wanted.annotations.items() if known.get(name) != text}


def _named(key: ObjectKey) -> dict[str, str]:
    kind, namespace, name = key
    return {"kind": kind.value, "key": f"{namespace}/{name}" if namespace else name}
