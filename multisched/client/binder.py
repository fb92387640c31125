"""Posts bindings and reads pods over a Transport: the network half of the bind outcome machine.

Stateless. Each call sends one request, maps every possible response of the server to a `BindAnswer`, and never retries.
`cycle` decides what a `BindAnswer` means. Called by the bind workers of the shell.
"""

from __future__ import annotations

from typing import Final

import msgspec
import orjson

from multisched.client.errors import retry_after_s, sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import pod_path
from multisched.client.pod_read import read_pod
from multisched.client.timed_write import OutOfTimeError, VoidError, write_in_time
from multisched.framework.ports import BindAnswer, BindReply, BindRequest, PodTruth
from multisched.model.wire import ConnectFailedError, Response, Transport, TransportError

READ_TIMEOUT_S: Final = 5.0
"""Deadline of one read of a pod; the caller repeats the read."""

_DEFINITE: Final = {
    401: BindAnswer.DENIED,
    403: BindAnswer.DENIED,
    404: BindAnswer.NOT_FOUND,
    408: BindAnswer.UNKNOWN,  # a proxy gave up waiting; the server behind it may not have
    409: BindAnswer.CONFLICT,
    429: BindAnswer.THROTTLED,
}


class _Metadata(msgspec.Struct, gc=False):
    uid: str = ""
    deletion_timestamp: str | None = msgspec.field(name="deletionTimestamp", default=None)


class _Spec(msgspec.Struct, gc=False):
    node_name: str = msgspec.field(name="nodeName", default="")
    scheduling_gates: list[msgspec.Raw] | None = msgspec.field(name="schedulingGates", default=None)


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_pod_decoder = msgspec.json.Decoder(_Pod)


class ApiBinder:
    """`ports.Binder` over any Transport."""

    def __init__(self, transport: Transport, limiter: WriteLimiter) -> None:
        self._transport = transport
        self._limiter = limiter

    async def post(self, request: BindRequest, *, timeout_s: float) -> BindReply:
        """Sends one POST, which the server drops `timeout_s` from now."""
        path = f"{pod_path(request.namespace, request.name)}/binding"
        body = orjson.dumps(_binding(request))
        try:
            response = await write_in_time(
                self._transport, self._limiter, "POST", path, body, timeout_s=timeout_s, is_void=request.is_void
            )
        except (OutOfTimeError, VoidError) as error:
            text = str(error) if isinstance(error, VoidError) else f"{error} for the bind"
            return BindReply(BindAnswer.NOT_SENT, message=text)
        except ConnectFailedError as error:
            return BindReply(BindAnswer.NOT_SENT, message=str(error))
        except TransportError as error:
            return BindReply(BindAnswer.UNKNOWN, message=str(error))
        return self._reply(response)

    async def read(self, namespace: str, name: str, *, timeout_s: float) -> PodTruth | None:
        """See `read_pod`."""
        pod = await read_pod(self._transport, namespace, name, _pod_decoder, timeout_s=timeout_s)
        if pod is None:
            return None
        return PodTruth(
            uid=pod.metadata.uid,
            node=pod.spec.node_name,
            is_deleting=pod.metadata.deletion_timestamp is not None,
            is_gated=bool(pod.spec.scheduling_gates),
        )

    def _reply(self, response: Response) -> BindReply:
        status = response.status
        if 200 <= status < 300:
            return BindReply(BindAnswer.CREATED)
        answer = _DEFINITE.get(status, BindAnswer.UNKNOWN if status >= 500 else BindAnswer.REJECTED)
        wait_s = retry_after_s(response)
        if answer is BindAnswer.THROTTLED:
            self._limiter.note_throttled(wait_s)
        return BindReply(answer, retry_after_s=wait_s, message=sentence_of(response))


def _binding(request: BindRequest) -> dict[str, object]:
    metadata: dict[str, object] = {"name": request.name, "namespace": request.namespace, "uid": request.uid}
    if request.annotations:
        metadata["annotations"] = dict(request.annotations)
    if request.labels:
        metadata["labels"] = dict(request.labels)
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
    }
