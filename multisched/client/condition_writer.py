"""Writes the PodScheduled condition of pods that could not be placed, in the background.

Owns the newest unwritten condition of each pod and the last written one. `write` never blocks. Only the newest
condition of a pod is sent, and only if it changed. A process that does not lead the pod's domain sends none. The pod's
uid is a precondition. The shell runs `run()`; all other callers use `ports.ConditionWriter`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

import anyio
import msgspec
import orjson
from msgspec.structs import replace

from multisched.client.background_write import (
    ATTEMPTS_MAX,
    RETRY_DELAY_S,
    WRITE_TIMEOUT_S,
    is_definite,
    wait_after_loss_s,
    wait_after_s,
)
from multisched.client.errors import parse_status
from multisched.client.limits import WriteLimiter
from multisched.client.paths import pod_path
from multisched.framework.ports import Clock, Condition, LeaseHolder, ObjectRef
from multisched.model.api_time import timestamp
from multisched.model.visible_text import whole_characters
from multisched.model.wire import STRATEGIC_MERGE_PATCH, Response, Transport, TransportError

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 32_768
WRITTEN_MAX: Final = 16_384
"""Pods whose last written condition is remembered."""
WORKERS: Final = 2


class ConditionStatistics(msgspec.Struct):
    """Counters since start, and the current backlog."""

    written: int = 0
    superseded: int = 0
    unchanged: int = 0
    dropped_full: int = 0
    dropped_refused: int = 0
    dropped_unreachable: int = 0
    retries: int = 0
    backlog: int = 0


class _Written(msgspec.Struct, frozen=True):
    condition: Condition
    since: str
    """lastTransitionTime: when the condition's status last changed."""
    is_certain: bool = True
    """False: it was sent without a response, so the API server has either this condition or the one before."""


class ApiConditionWriter:
    """`ports.ConditionWriter` over any Transport."""

    def __init__(self, transport: Transport, limiter: WriteLimiter, clock: Clock) -> None:
        self._transport = transport
        self._limiter = limiter
        self._clock = clock
        self._pending: OrderedDict[str, tuple[ObjectRef, Condition, LeaseHolder]] = OrderedDict()
        self._writing: dict[str, tuple[ObjectRef, Condition, LeaseHolder]] = {}
        self._dropped: set[str] = set()
        """Uids of pods being written whose condition must not be sent again, or not at all if it has not been sent yet.
        """
        self._written: OrderedDict[str, _Written] = OrderedDict()
        self._wakeup = asyncio.Event()
        self._counters = ConditionStatistics()

    def write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        """Queues the condition and replaces an older unwritten one of the same pod. Never blocks; drops and counts when
        full.

        `lease`: of the pod's domain; nothing is sent while it is not held.
        """
        uid = pod.uid
        older = self._pending.get(uid)
        if older is not None:
            self._counters.superseded += 1
            condition = _with_node_of(older[1], condition)
        elif uid not in self._writing and self._is_written(uid, condition):
            self._counters.unchanged += 1
            return
        elif len(self._pending) >= PENDING_MAX:
            self._counters.dropped_full += 1
            return
        self._pending[uid] = (pod, condition, lease)
        self._wakeup.set()

    def drop(self, uid: str) -> None:
        """Drops the unsent condition of this pod, because it is bound now."""
        if uid in self._writing:
            self._dropped.add(uid)
        if self._pending.pop(uid, None) is not None:
            self._counters.superseded += 1

    def end_nomination(self, uid: str) -> None:
        """Clears the nomination in an unsent condition. If it was sent before, the caller that ends it must tell the server."""
        unsettled = [one for one in (self._pending.get(uid), self._writing.get(uid)) if one is not None]
        if any(condition.nominated_node for _, condition, _ in unsettled):
            pod, condition, lease = unsettled[0]
            self._pending[uid] = (pod, replace(condition, nominated_node=""), lease)
            self._wakeup.set()

    def forget_written(self) -> None:
        """Forgets which conditions were written: after a restored backup the API server may not have them."""
        self._written.clear()

    async def run(self) -> None:
        """Writes conditions until cancelled."""
        async with anyio.create_task_group() as workers:
            for _ in range(WORKERS):
                workers.start_soon(self._work)

    def statistics(self) -> ConditionStatistics:
        return replace(self._counters, backlog=len(self._pending) + len(self._writing))

    def _is_written(self, uid: str, condition: Condition) -> bool:
        written = self._written.get(uid)
        if written is None or not written.is_certain or condition.nominated_node is not None:
            return False  # others write nominations too, so the API server may no longer have the one written here
        return replace(written.condition, nominated_node=None) == condition

    async def _work(self) -> None:
        while True:
            uid = self._next_uid()
            if uid is None:
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            self._writing[uid] = pod, condition, lease = self._pending.pop(uid)
            try:
                await self._write(pod, condition, lease)
            finally:
                self._writing.pop(uid, None)
                self._dropped.discard(uid)

    def _next_uid(self) -> str | None:
        """Returns the longest waiting pod that no other worker is writing: two writes for one pod must not run in parallel."""
        return next((uid for uid in self._pending if uid not in self._writing), None)

    async def _write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        if self._is_written(pod.uid, condition):
            self._counters.unchanged += 1
            return
        since = self._since(pod.uid, condition)
        for attempt in range(ATTEMPTS_MAX):
            await self._admit(lease)
            if pod.uid in self._dropped:
                self._counters.superseded += 1
                return
            newer = self._pending.get(pod.uid)
            if newer is not None:
                self._counters.superseded += 1
                self._pending[pod.uid] = (pod, _with_node_of(condition, newer[1]), lease)
                return
            try:
                response = await self._patch(pod, condition, since)
            except TransportError:
                wait_s = wait_after_loss_s(attempt)
                self._remember(pod.uid, _Written(condition, since, is_certain=False))
            else:
                if response.status == 200:
                    self._counters.written += 1
                    self._remember(pod.uid, _Written(condition, since))
                    return
                if response.status >= 500:
                    self._remember(pod.uid, _Written(condition, since, is_certain=False))
                if is_definite(response):
                    self._refuse(pod, response)
                    return
                wait_s = wait_after_s(response, self._limiter)
            self._counters.retries += 1
            await asyncio.sleep(wait_s)
        self._counters.dropped_unreachable += 1

    async def _admit(self, lease: LeaseHolder) -> None:
        """Returns when a write may be sent. Without the lease another process may have written a newer condition.

        The lease may become valid again while this process leads. A process that loses it exits, and the unsent writes
        are lost.
        """
        await self._limiter.admit_background()
        while not lease.may_bind():  # noqa: ASYNC110 - the clock alone ends a lease
            await anyio.sleep(RETRY_DELAY_S)

    def _since(self, uid: str, condition: Condition) -> str:
        written = self._written.get(uid)
        if written is not None and written.condition.status == condition.status:
            return written.since
        return timestamp(self._clock.now())

    def _remember(self, uid: str, written: _Written) -> None:
        self._written[uid] = written
        self._written.move_to_end(uid)
        if len(self._written) > WRITTEN_MAX:
            self._written.popitem(last=False)

    def _refuse(self, pod: ObjectRef, response: Response) -> None:
        """Counts the refusal. 404 and 409 (another uid) mean that the pod was deleted; any other status is logged."""
        self._counters.dropped_refused += 1
        if response.status in (404, 409):
            return
        message = parse_status(response.body).message
        logger.warning(
            "pod condition refused",
            extra={"pod": f"{pod.namespace}/{pod.name}", "status": response.status, "error": message},
        )

    async def _patch(self, pod: ObjectRef, condition: Condition, since: str) -> Response:
        path = f"{pod_path(pod.namespace, pod.name)}/status"
        entry = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": whole_characters(condition.message),
            "lastTransitionTime": since,
        }
        status: dict[str, object] = {"conditions": [entry]}
        if condition.nominated_node is not None:
            status["nominatedNodeName"] = condition.nominated_node or None
        body = orjson.dumps({"metadata": {"uid": pod.uid}, "status": status})
        return await self._transport.request(
            "PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH, timeout_s=WRITE_TIMEOUT_S
        )


def _with_node_of(older: Condition, newer: Condition) -> Condition:
    """Keeps the older condition's nomination if the newer condition does not set one."""
    return newer if newer.nominated_node is not None else replace(newer, nominated_node=older.nominated_node)
