"""An API client for kubelets and controllers: requests by resource and name, JSON documents, over any Transport.

Has no state. An unsuccessful response (4xx or 5xx) is returned as an `Answer`; `expect` raises it. Only a broken
connection raises by itself (TransportError).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec
import orjson

from multisched.model.wire import JSON, MERGE_PATCH, Transport

Document = dict[str, Any]
"""One decoded API object."""

LIST_PAGE_OBJECTS = 5000
MESSAGE_CHARACTERS_MAX = 500
_LIST_SECONDS_MAX = 30.0


class WallClock(Protocol):
    """The time written to API objects; the event loop's time determines delays."""

    def now(self) -> datetime:
        """Returns the time in UTC, timezone-aware."""
        ...


class RefusedError(Exception):
    """A 4xx or 5xx response that the caller did not expect. The caller may retry the request later."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.reason}: {answer.message}")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Resource:
    """The API path of a kind."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Returns the URL path; without a namespace, that of all namespaces."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.is_namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", is_namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", is_namespaced=False)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
JOBS = Resource("batch", "v1", "jobs", "Job")
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", is_namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", is_namespaced=False)
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; its body is decoded on access."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def document(self) -> Document:
        decoded = orjson.loads(self.body)
        if not isinstance(decoded, dict):
            raise RefusedError(self)
        return decoded

    @property
    def reason(self) -> str:
        return str(self._status_body().get("reason", ""))

    @property
    def message(self) -> str:
        return str(self._status_body().get("message", ""))[:MESSAGE_CHARACTERS_MAX]

    @property
    def retry_after_s(self) -> float:
        text = self.headers.get("retry-after", "")
        return float(text) if text.isdigit() else 0.0

    def expect(self, *accepted: int) -> Answer:
        """Returns this response if it is a success or has an accepted status; else raises RefusedError."""
        if self.is_success or self.status in accepted:
            return self
        raise RefusedError(self)

    def _status_body(self) -> Document:
        try:
            decoded = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return decoded if isinstance(decoded, dict) else {}


class _ListMeta(msgspec.Struct):
    resourceVersion: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListPage(msgspec.Struct):
    """One page of a list; its items stay encoded."""

    metadata: _ListMeta
    items: list[msgspec.Raw]


_LIST_PAGE = msgspec.json.Decoder(ListPage)


class ObjectClient:
    """Sends requests over one Transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def call(
        self, method: str, path: str, *, body: object = None, content_type: str = JSON, timeout_s: float = 30.0
    ) -> Answer:
        """Sends one request. Raises only TransportError."""
        data = None if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        response = await self.transport.request(method, path, body=data, content_type=content_type, timeout_s=timeout_s)
        return Answer(response.status, response.body, response.headers)

    async def get(self, resource: Resource, namespace: str, name: str) -> Answer:
        return await self.call("GET", resource.path(namespace, name))

    async def create(self, resource: Resource, namespace: str, document: Document | bytes) -> Answer:
        return await self.call("POST", resource.path(namespace), body=document)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        body: object,
        subresource: str = "",
        content_type: str = MERGE_PATCH,
    ) -> Answer:
        return await self.call(
            "PATCH", resource.path(namespace, name, subresource), body=body, content_type=content_type
        )

    async def replace(
        self, resource: Resource, namespace: str, name: str, *, document: Document, subresource: str = ""
    ) -> Answer:
        return await self.call("PUT", resource.path(namespace, name, subresource), body=document)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
        propagation: str = "",
    ) -> Answer:
        """Deletes the object. If a given uid or version does not match, the response is 409."""
        options: Document = {"kind": "DeleteOptions", "apiVersion": "v1"}
        preconditions = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation:
            options["propagationPolicy"] = propagation
        return await self.call("DELETE", resource.path(namespace, name), body=options)

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[ListPage]:
        """Yields a consistent list page by page. Raises RefusedError; it is a 410 if the list's version is no longer in the history."""
        continuation = ""
        while True:
            parts = {**query, "limit": str(LIST_PAGE_OBJECTS)}
            if continuation:
                parts["continue"] = continuation
            answer = (await self.call("GET", f"{path}?{urlencode(parts)}", timeout_s=_LIST_SECONDS_MAX)).expect()
            page = _LIST_PAGE.decode(answer.body)
            yield page
            continuation = page.metadata.continue_
            if not continuation:
                return


def key_of(document: Document) -> str:
    """Returns namespace/name; the namespace of cluster-scoped objects is empty."""
    metadata = document["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def version_of(document: Document) -> int:
    """Returns the resource version as a number; 0 if there is none."""
    text = str(document["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0


def split_key(key: str) -> tuple[str, str]:
    """Splits a key into namespace and name."""
    namespace, _, name = key.partition("/")
    return namespace, name


def controller_of(document: Document) -> Document | None:
    """Returns the controlling owner reference; None if there is none."""
    for reference in document["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None


def owner_reference(resource: Resource, owner: Document) -> Document:
    """Returns the controlling owner reference for objects that `owner` creates."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
