"""Evicts pods through the eviction API (policy/v1): `moving.Evictor` over any Transport.

Stateless. Each call sends one request, with the pod's uid as precondition, and never retries. The caller checks its
lease and its time window before each call. Never deletes: the API server must check the pod's PodDisruptionBudget.
"""

from __future__ import annotations

from typing import Final

import orjson

from multisched.client.errors import retry_after_s, sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import pod_path
from multisched.client.timed_write import write_in_time
from multisched.framework.moving import EvictAnswer, EvictReply
from multisched.framework.ports import ObjectRef
from multisched.model.wire import ConnectFailedError, Response, Transport, TransportError

TWO_BUDGETS: Final = "This pod has more than one PodDisruptionBudget"
"""Start of the server's message for a response with status 500 that is a definite refusal."""

_ANSWERS: Final = {
    404: EvictAnswer.GONE,
    408: EvictAnswer.UNKNOWN,  # a proxy gave up waiting; the server behind it may not have
    409: EvictAnswer.UNKNOWN,  # another uid, or a concurrent write between the server's two steps: a read is needed
    429: EvictAnswer.NOT_NOW,
}


class ApiEvictor:
    """Evicts pods through the eviction API over a Transport."""

    def __init__(self, transport: Transport, limiter: WriteLimiter) -> None:
        self._transport = transport
        self._limiter = limiter

    async def evict(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        """See `Evictor`."""
        path = f"{pod_path(pod.namespace, pod.name)}/eviction"
        try:
            response = await write_in_time(
                self._transport, self._limiter, "POST", path, _body(pod), timeout_s=timeout_s
            )
        except ConnectFailedError as error:
            return EvictReply(EvictAnswer.NOT_NOW, message=str(error))
        except TransportError as error:
            return EvictReply(EvictAnswer.UNKNOWN, message=str(error))
        return _reply(response)


def _reply(response: Response) -> EvictReply:
    status = response.status
    if 200 <= status < 300:
        return EvictReply(EvictAnswer.EVICTED)
    message = sentence_of(response)
    answer = _ANSWERS.get(status, EvictAnswer.UNKNOWN if status >= 500 else EvictAnswer.REFUSED)
    if message.startswith(TWO_BUDGETS):
        answer = EvictAnswer.REFUSED
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
