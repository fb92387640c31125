"""The calls to one Lease object: read, create, replace, release. Stores no response."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import orjson

from multisched.client.errors import EXPIRED_HINT, parse_status
from multisched.client.lease_record import LeaseRecord, RecordMetadata, lease_path, leases_path, read_record
from multisched.client.paths import within
from multisched.framework.ports import Clock
from multisched.model.api_time import micro_timestamp
from multisched.model.wire import Response, Transport, TransportError

logger = logging.getLogger(__name__)

_FIXES: Final = {
    401: f"the credentials are not accepted, {EXPIRED_HINT}",
    403: "grant the account get, create and update of leases in that namespace, as deploy/base/rbac.yaml does",
    404: "create the namespace",
}
"""HTTP status -> the fix. For the creation of a Lease, 404 means that the namespace does not exist."""


class NoAnswerError(Exception):
    """This try failed; the keeper retries after a retry period. `fix`: what to do, if that is known."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(text)
        self.fix = fix


class LeaseCalls:
    """Calls of the process `identity` to the Lease `name`. All but `release` raise NoAnswerError and TransportError."""

    def __init__(
        self, transport: Transport, clock: Clock, *, namespace: str, name: str, identity: str, duration_s: float
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = int(duration_s)
        self._collection = leases_path(namespace)
        self._path = lease_path(namespace, name)

    async def read(self, timeout_s: float) -> LeaseRecord | None:
        """Returns None if the Lease does not exist."""
        response = await self._transport.request("GET", self._path, timeout_s=timeout_s)
        if response.status == 404:
            return None
        if response.status != 200:
            raise _refused("GET", response)
        return _decoded(response)

    async def create(self, annotations: Mapping[str, str], timeout_s: float) -> LeaseRecord | None:
        """Returns None if it was refused because the Lease exists."""
        body = self._body(LeaseRecord(RecordMetadata()), annotations, self._identity, self._duration_s, is_ours=False)
        path = within(self._collection, timeout_s)
        response = await self._transport.request("POST", path, body=body, timeout_s=timeout_s)
        if response.status in _FIXES:
            raise _refused("POST", response)
        return _decoded(response) if response.status == 201 else None

    async def replace(
        self, lease: LeaseRecord, annotations: Mapping[str, str], timeout_s: float, *, is_ours: bool
    ) -> LeaseRecord | None:
        """Returns None if it was refused because the record has changed. `is_ours`: this process leads, so the term continues."""
        body = self._body(lease, annotations, self._identity, self._duration_s, is_ours=is_ours)
        path = within(self._path, timeout_s)
        response = await self._transport.request("PUT", path, body=body, timeout_s=timeout_s)
        if response.status not in (200, 404, 409):
            raise _refused("PUT", response)
        return _decoded(response) if response.status == 200 else None

    async def release(
        self, lease: LeaseRecord, annotations: Mapping[str, str], timeout_s: float, *, is_ours: bool
    ) -> bool:
        """Releases the lease; returns whether the server accepted it."""
        body = self._body(lease, annotations, "", 1, is_ours=is_ours)
        try:
            response = await self._transport.request("PUT", self._path, body=body, timeout_s=timeout_s)
        except TransportError as error:
            logger.info("lease call failed", extra={"lease": self._name, "error": str(error)})
            return False
        return response.status == 200

    def _body(
        self, lease: LeaseRecord, annotations: Mapping[str, str], holder: str, duration_s: int, *, is_ours: bool
    ) -> bytes:
        now = micro_timestamp(self._clock.now())
        goes_on = is_ours and lease.spec.holder == self._identity
        transitions = lease.spec.transitions or 0
        is_first = not lease.metadata.version
        metadata: dict[str, object] = {
            "name": self._name,
            "namespace": self._namespace,
            "resourceVersion": lease.metadata.version,
            "annotations": dict(annotations),
        }
        if is_first:
            del metadata["resourceVersion"]
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_s,
            "acquireTime": lease.spec.acquire_time if goes_on and lease.spec.acquire_time else now,
            "renewTime": now,
            "leaseTransitions": transitions if goes_on or is_first else transitions + 1,
        }
        return orjson.dumps(
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        )


def _refused(method: str, response: Response) -> NoAnswerError:
    message = parse_status(response.body).message
    text = f"{method} answered {response.status}{f': {message}' if message else ''}"
    return NoAnswerError(text, _FIXES.get(response.status, ""))


def _decoded(response: Response) -> LeaseRecord:
    record = read_record(response)
    if record is None:
        raise NoAnswerError("the response is not a Lease")
    return record
