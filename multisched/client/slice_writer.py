"""Reads and replaces SliceSets: `slice_writes.SliceWriter` over any Transport.

Stateless. Each call sends one request and never retries: the caller checks its lease before each. A write names uid and
resourceVersion of the version that it replaces. It is as urgent as a bind: pods of borrower or lender wait for it.
"""

from __future__ import annotations

from typing import Final

from multisched.client.errors import retry_after_s, sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import object_path
from multisched.client.timed_write import write_in_time
from multisched.framework.slice_writes import SliceAnswer, SliceCall, SliceReply, SliceRequest
from multisched.model.decode import DecodeError
from multisched.model.decode_objects import decode_slice_set
from multisched.model.decode_slices import spec_document, status_document
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import ConnectFailedError, Response, Transport, TransportError

_ANSWERS: Final = {
    404: SliceAnswer.NOT_FOUND,
    408: SliceAnswer.UNKNOWN,  # a proxy gave up waiting; the server behind it may not have
    409: SliceAnswer.CONFLICT,
}
_NOT_SERVED: Final = (
    "the server does not serve SliceSet, or the namespace does not exist; apply deploy/crds/slicesets.yaml"
)


def wire_of(request: SliceRequest) -> tuple[str, str, bytes]:
    """Returns method, path and body of a request."""
    known, list_path = request.known, ObjectKind.SLICE_SET.definition.path
    path = object_path(list_path, known.namespace, known.name)
    if request.call is SliceCall.READ:
        return "GET", path, b""
    if request.status is not None:
        return "PUT", f"{path}/status", status_document(known, request.status)
    assert request.spec is not None
    if request.call is SliceCall.CREATE:
        return "POST", path.rpartition("/")[0], spec_document(known, request.spec)
    keeps = request.call is not SliceCall.RELEASE
    return "PUT", path, spec_document(known, request.spec, keeps_finalizer=keeps)


class ApiSliceWriter:
    """Reads and replaces SliceSets over a Transport."""

    def __init__(self, transport: Transport, limiter: WriteLimiter) -> None:
        self._transport = transport
        self._limiter = limiter

    async def send(self, request: SliceRequest, *, timeout_s: float) -> SliceReply:
        method, path, body = wire_of(request)
        try:
            if request.call is SliceCall.READ:
                response = await self._transport.request(method, path, timeout_s=timeout_s)
            else:
                response = await write_in_time(self._transport, self._limiter, method, path, body, timeout_s=timeout_s)
        except ConnectFailedError as error:
            return SliceReply(SliceAnswer.REFUSED, message=str(error))
        except TransportError as error:
            return SliceReply(SliceAnswer.UNKNOWN, message=str(error))
        return self._reply(request, response)

    def _reply(self, request: SliceRequest, response: Response) -> SliceReply:
        status = response.status
        if 200 <= status < 300:
            try:
                return SliceReply(SliceAnswer.DONE, decode_slice_set(response.body))
            except DecodeError as error:
                return SliceReply(SliceAnswer.UNKNOWN, message=f"the response is not a SliceSet: {error}")
        wait_s, message = retry_after_s(response), sentence_of(response)
        if status == 429:
            self._limiter.note_throttled(wait_s)
        is_unserved = status == 404 and request.call is SliceCall.CREATE
        answer = _ANSWERS.get(status, SliceAnswer.UNKNOWN if status >= 500 else SliceAnswer.REFUSED)
        return SliceReply(answer, message=_NOT_SERVED if is_unserved else message, retry_after_s=wait_s)
