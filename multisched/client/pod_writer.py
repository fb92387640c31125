"""Marks and deletes victims of preemption, clears nominations, and annotates pods: `ports.PodWriter` over any Transport.

Stateless. Each call sends one request and never retries: the caller checks its lease before each. Called by the shell's
preemptor and mover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from multisched.client.errors import retry_after_s, sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import pod_path
from multisched.client.timed_write import write_in_time
from multisched.framework.ports import Clock, ObjectRef, WriteAnswer, WriteReply
from multisched.model.api_time import timestamp
from multisched.model.wire import STRATEGIC_MERGE_PATCH, ConnectFailedError, Response, Transport, TransportError

_ANSWERS: Final = {
    404: WriteAnswer.GONE,
    408: WriteAnswer.UNKNOWN,  # a proxy gave up waiting; the server behind it may not have
    409: WriteAnswer.GONE,  # another pod has this name now
    429: WriteAnswer.THROTTLED,
}


class ApiPodWriter:
    """Marks and deletes victims of preemption, clears nominations, and annotates pods over a Transport.

    These writes are as urgent as binds: preemptors wait for the victims' resources.
    """

    def __init__(self, transport: Transport, limiter: WriteLimiter, clock: Clock) -> None:
        self._transport = transport
        self._limiter = limiter
        self._clock = clock

    async def mark_victim(self, pod: ObjectRef, message: str, *, timeout_s: float) -> WriteReply:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": message,
            "lastTransitionTime": timestamp(self._clock.now()),
        }
        return await self._patch_status(pod, {"conditions": [condition]}, timeout_s)

    async def clear_nomination(self, pod: ObjectRef, *, timeout_s: float) -> WriteReply:
        return await self._patch_status(pod, {"nominatedNodeName": None}, timeout_s)

    async def annotate(self, pod: ObjectRef, annotations: Mapping[str, str | None], *, timeout_s: float) -> WriteReply:
        """See `PodWriter`. Patches the pod's status, which also writes metadata: so the program needs no right to patch pods,
        with which it could change their images."""
        return await self._patch(pod, {"metadata": {"uid": pod.uid, "annotations": annotations}}, timeout_s)

    async def delete(self, pod: ObjectRef, *, timeout_s: float, grace_s: int | None = None) -> WriteReply:
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self._send("DELETE", pod_path(pod.namespace, pod.name), options, "application/json", timeout_s)

    async def _patch_status(self, pod: ObjectRef, status: dict[str, Any], timeout_s: float) -> WriteReply:
        return await self._patch(pod, {"metadata": {"uid": pod.uid}, "status": status}, timeout_s)

    async def _patch(self, pod: ObjectRef, body: Mapping[str, Any], timeout_s: float) -> WriteReply:
        return await self._send(
            "PATCH", f"{pod_path(pod.namespace, pod.name)}/status", body, STRATEGIC_MERGE_PATCH, timeout_s
        )

    async def _send(self, method: str, path: str, body: object, content_type: str, timeout_s: float) -> WriteReply:
        try:
            response = await write_in_time(
                self._transport,
                self._limiter,
                method,
                path,
                orjson.dumps(body),
                timeout_s=timeout_s,
                content_type=content_type,
            )
        except ConnectFailedError as error:
            return WriteReply(WriteAnswer.THROTTLED, message=str(error))
        except TransportError as error:
            return WriteReply(WriteAnswer.UNKNOWN, message=str(error))
        return self._reply(response)

    def _reply(self, response: Response) -> WriteReply:
        status = response.status
        if 200 <= status < 300:
            return WriteReply(WriteAnswer.DONE)
        answer = _ANSWERS.get(status, WriteAnswer.UNKNOWN if status >= 500 else WriteAnswer.REFUSED)
        wait_s = retry_after_s(response)
        if answer is WriteAnswer.THROTTLED:
            self._limiter.note_throttled(wait_s)
        return WriteReply(answer, wait_s, sentence_of(response))
