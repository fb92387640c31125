"""Binds volumes to claims and names nodes for provisioning: `ports.VolumeWriter` over any Transport.

Stateless. Each call is one PATCH with uid and resourceVersion as preconditions. A write with an unknown effect is
repeated a few times, which is safe because of the preconditions. Called by VolumeBinding's PreBind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
import orjson

from multisched.client.errors import retry_after_s, sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import segment
from multisched.framework.ports import ObjectRef, VolumeAnswer, VolumeReply
from multisched.model.cluster_objects import BOUND_BY_CONTROLLER_ANNOTATION, SELECTED_NODE_ANNOTATION
from multisched.model.version import NO_VERSION, Version, version_of
from multisched.model.wire import MERGE_PATCH, UNREADABLE, Response, Transport, TransportError

WRITE_TIMEOUT_S: Final = 10.0
ATTEMPTS_MAX: Final = 4
"""Tries of one write whose effect is unknown."""
RETRY_DELAY_S: Final = 0.5
"""Before the second try; doubled before each further one."""

_ANSWERS: Final = {404: VolumeAnswer.NOT_FOUND, 409: VolumeAnswer.CONFLICT}


class _Metadata(msgspec.Struct, gc=False):
    version: str = msgspec.field(name="resourceVersion", default="")


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_decoder = msgspec.json.Decoder(_Object)


class ApiVolumeWriter:
    """Binds volumes to claims and names nodes for provisioning over a Transport."""

    def __init__(self, transport: Transport, limiter: WriteLimiter) -> None:
        self._transport = transport
        self._limiter = limiter

    async def bind_volume(
        self, volume: ObjectRef, version: Version, claim: ObjectRef, *, claim_version: Version, is_by_scheduler: bool
    ) -> VolumeReply:
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "resourceVersion": str(claim_version) if claim_version else "",
        }
        noted = {BOUND_BY_CONTROLLER_ANNOTATION: "yes"} if is_by_scheduler else {}
        path = f"/api/v1/persistentvolumes/{segment(volume.name)}"
        return await self._patch(path, volume, version, noted, {"spec": {"claimRef": reference}})

    async def select_node(self, claim: ObjectRef, version: Version, node: str) -> VolumeReply:
        namespace, name = segment(claim.namespace), segment(claim.name)
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
        return await self._patch(path, claim, version, {SELECTED_NODE_ANNOTATION: node}, {})

    async def _patch(
        self, path: str, ref: ObjectRef, version: Version, annotations: Mapping[str, str], rest: Mapping[str, object]
    ) -> VolumeReply:
        metadata: dict[str, object] = {"uid": ref.uid}
        if version:
            metadata["resourceVersion"] = str(version)
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = orjson.dumps({"metadata": metadata, **rest})
        delay_s = RETRY_DELAY_S
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(delay_s)
                delay_s *= 2
            reply, wait_s = await self._send(path, body)
            if reply.answer is not VolumeAnswer.UNKNOWN:
                break
            delay_s = max(delay_s, wait_s)
        return reply

    async def _send(self, path: str, body: bytes) -> tuple[VolumeReply, float]:
        """Sends one request; returns the reply and the server's Retry-After in seconds. Counts as a bind: a pod waits for it."""
        await self._limiter.enter_bind()
        try:
            response = await self._transport.request(
                "PATCH", path, body=body, content_type=MERGE_PATCH, timeout_s=WRITE_TIMEOUT_S
            )
        except TransportError as error:
            return VolumeReply(VolumeAnswer.UNKNOWN, message=str(error)), 0.0
        finally:
            self._limiter.leave_bind()
        return _reply(response), retry_after_s(response)


def _reply(response: Response) -> VolumeReply:
    status = response.status
    if 200 <= status < 300:
        return VolumeReply(VolumeAnswer.DONE, _version_of(response))
    message = sentence_of(response)
    if status == 429 or status >= 500:
        return VolumeReply(VolumeAnswer.UNKNOWN, message=message)
    return VolumeReply(_ANSWERS.get(status, VolumeAnswer.REFUSED), message=message)


def _version_of(response: Response) -> Version:
    try:
        text = _decoder.decode(response.body).metadata.version
    except UNREADABLE:
        return NO_VERSION
    return version_of(text)
