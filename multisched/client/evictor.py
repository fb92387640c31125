"""Evicts pods by the eviction API (policy/v1): `moving.Evictor` over any Transport.

Owns nothing but its counters. Promises one request per call, with the pod's uid as precondition, and never a retry of its own:
the caller looks at its lease and its window before each. Never a delete: the API server asks the pod's PodDisruptionBudget.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import orjson
from msgspec.structs import replace

from multisched.client.errors import parse_status, retry_after_s
from multisched.client.limits import WriteLimiter
from multisched.client.paths import pod_path
from multisched.framework.moving import EvictAnswer, EvictReply
from multisched.framework.ports import ObjectRef
from multisched.model.wire import ConnectFailedError, Response, Transport, TransportError

ANSWER_GRACE_S: Final = 1.0
"""The client waits this much longer than the server's own deadline, so that the server's verdict can still arrive."""
TWO_BUDGETS: Final = "This pod has more than one PodDisruptionBudget"
"""How the server's sentence begins that comes as a 500 and is a definite refusal all the same."""

_ANSWERS: Final = {
    404: EvictAnswer.GONE,
    408: EvictAnswer.UNKNOWN,  # a proxy gave up waiting; the server behind it may not have
    409: EvictAnswer.UNKNOWN,  # another uid, or a write that came between the server's two steps: a read tells
    429: EvictAnswer.NOT_NOW,
}


class EvictorStatistics(msgspec.Struct):
    """Counters since start."""

    evictions: int = 0
    not_now: int = 0
    unknown: int = 0


class ApiEvictor:
    """See the module."""

    def __init__(self, transport: Transport, limiter: WriteLimiter) -> None:
        self._transport = transport
        self._limiter = limiter
        self._counters = EvictorStatistics()

    def statistics(self) -> EvictorStatistics:
        return replace(self._counters)

    async def evict(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        """Waiting for the limiter counts: the caller looked at its lease when it called."""
        self._counters.evictions += 1
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        await self._limiter.enter_bind()
        try:
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return EvictReply(EvictAnswer.NOT_NOW, message="the limit of writes left no time")
            response = await self._transport.request(
                "POST",
                f"{pod_path(pod.namespace, pod.name)}/eviction?timeout={max(int(left_s * 1000), 1)}ms",
                body=_body(pod),
                timeout_s=left_s + ANSWER_GRACE_S,
            )
        except ConnectFailedError as error:
            return EvictReply(EvictAnswer.NOT_NOW, message=str(error))
        except TransportError as error:
            self._counters.unknown += 1
            return EvictReply(EvictAnswer.UNKNOWN, message=str(error))
        finally:
            self._limiter.leave_bind()
        return self._reply(response)

    def _reply(self, response: Response) -> EvictReply:
        status = response.status
        if 200 <= status < 300:
            return EvictReply(EvictAnswer.EVICTED)
        message = parse_status(response.body).message or f"HTTP {status}"
        answer = _ANSWERS.get(status, EvictAnswer.UNKNOWN if status >= 500 else EvictAnswer.REFUSED)
        if message.startswith(TWO_BUDGETS):
            answer = EvictAnswer.REFUSED
        self._counters.not_now += answer is EvictAnswer.NOT_NOW
        self._counters.unknown += answer is EvictAnswer.UNKNOWN
        return EvictReply(answer, retry_after_s(response), message)


def _body(pod: ObjectRef) -> bytes:
    return orjson.dumps(
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
    )
