"""Locks of nodes over a Transport: `ports.NodeLocks`.

Stateless. A change reads the node, and writes one annotation with the node's uid and resourceVersion as preconditions, so it never
overwrites what another client has written since. Called by GpuShare's PreBind and its background task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec
import orjson

from multisched.client.errors import sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import segment
from multisched.client.pod_read import read_pod
from multisched.client.timed_write import write_in_time
from multisched.framework.ports import Clock, LeaseHolder, LockAnswer, LockHolder, LockReply
from multisched.model.wire import MERGE_PATCH, UNREADABLE, Response, Transport, TransportError

READ_TIMEOUT_S: Final = 5.0
ATTEMPTS_MAX: Final = 6
"""Reads and writes of one change: conflicts with other writers of the node, and answers that did not come."""
RETRY_DELAY_S: Final = 0.2
"""Before another attempt after a missing answer; a conflict is retried at once."""

_NOT_LED: Final = LockReply(LockAnswer.UNKNOWN, "the lease of the domain was lost")


class _Metadata(msgspec.Struct, gc=False):
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")
    annotations: Mapping[str, str] | None = None


class _Node(msgspec.Struct, gc=False):
    metadata: _Metadata


class _Spec(msgspec.Struct, gc=False):
    node_name: str = msgspec.field(name="nodeName", default="")
    scheduler_name: str = msgspec.field(name="schedulerName", default="")


class _Status(msgspec.Struct, gc=False):
    phase: str = ""


class _Pod(msgspec.Struct, gc=False):
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


_node_decoder = msgspec.json.Decoder(_Node)
_pod_decoder = msgspec.json.Decoder(_Pod)


class ApiNodeLocks:
    """The locks that one domain writes."""

    def __init__(
        self, transport: Transport, limiter: WriteLimiter, clock: Clock, lease: LeaseHolder, *, timeout_s: float
    ) -> None:
        """`timeout_s`: of one write, which the server drops afterwards, so that no write of a former leader arrives late."""
        self._transport = transport
        self._limiter = limiter
        self._clock = clock
        self._lease = lease
        self._timeout_s = timeout_s

    @property
    def may_write(self) -> bool:
        return self._lease.may_bind()

    async def change(self, node: str, key: str, wanted: Callable[[str, datetime], str | None]) -> LockReply:
        reply = _NOT_LED
        for _ in range(ATTEMPTS_MAX):
            if not self.may_write:
                return _NOT_LED
            found = await self._read(node)
            if isinstance(found, _Metadata):
                text = wanted((found.annotations or {}).get(key, ""), self._clock.now())
                if text is None:
                    return LockReply(LockAnswer.KEPT)
                reply, is_conflict = await self._write(node, key, text, found)
            else:
                reply, is_conflict = found, False
            if reply.answer is not LockAnswer.UNKNOWN:
                return reply
            if not is_conflict:
                await asyncio.sleep(RETRY_DELAY_S)
        return reply

    async def _read(self, node: str) -> _Metadata | LockReply:
        try:
            response = await self._transport.request("GET", _path(node), timeout_s=READ_TIMEOUT_S)
        except TransportError as error:
            return LockReply(LockAnswer.UNKNOWN, str(error))
        if response.status != 200:
            return _reply(response)
        try:
            return _node_decoder.decode(response.body).metadata
        except UNREADABLE:
            return LockReply(LockAnswer.UNKNOWN, "the response is not a node")

    async def _write(self, node: str, key: str, text: str, found: _Metadata) -> tuple[LockReply, bool]:
        """Returns the reply, and whether the node had changed since it was read."""
        preconditions = {"uid": found.uid, "resourceVersion": found.version}
        body = orjson.dumps({"metadata": {**preconditions, "annotations": {key: text or None}}})
        try:
            response = await write_in_time(
                self._transport,
                self._limiter,
                "PATCH",
                _path(node),
                body,
                timeout_s=self._timeout_s,
                content_type=MERGE_PATCH,
                is_void=lambda: not self.may_write,
            )
        except TransportError as error:
            return LockReply(LockAnswer.UNKNOWN, str(error)), False
        return _reply(response), response.status == 409

    async def holder(self, namespace: str, name: str) -> LockHolder | None:
        pod = await read_pod(self._transport, namespace, name, _pod_decoder, timeout_s=READ_TIMEOUT_S)
        if pod is None:
            return None
        return LockHolder(pod.spec.node_name, pod.status.phase, pod.spec.scheduler_name)


def _path(node: str) -> str:
    return f"/api/v1/nodes/{segment(node)}"


def _reply(response: Response) -> LockReply:
    status = response.status
    if 200 <= status < 300:
        return LockReply(LockAnswer.DONE)
    message = sentence_of(response)
    if status in (408, 409, 429) or status >= 500:
        return LockReply(LockAnswer.UNKNOWN, message)
    return LockReply(LockAnswer.NOT_FOUND if status == 404 else LockAnswer.REFUSED, message)
