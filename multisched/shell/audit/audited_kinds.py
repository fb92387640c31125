"""The kinds of objects that the audit compares: each finds, compares and repairs its objects in the cache.

Each reads the cache and the ingest of its kind, and repairs through them. Called only by `Audit`. The kinds in the
object store are `object_watch.AuditedObjects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

import msgspec

from multisched.client.reflector import Reflector
from multisched.model.version import Version, version_of
from multisched.shell.audit.pod_repair import PodRepair
from multisched.shell.ingest.pods_and_nodes import NodeIngest, PodIngest
from multisched.state.binding_labels import COPIED_LABELS
from multisched.state.cluster_cache import ClusterCache, PodState


def load_judge() -> None:
    """Imports the comparison of contents and the judge. It takes 10 ms, too long for a step of the event loop."""
    import_module("multisched.shell.audit.content")


class CachedObject(msgspec.Struct, frozen=True):
    """An object in the cache. `node` is empty if the object is not on a node in the API, and None if it is not compared."""

    key: str
    uid: str
    version: Version
    node: str | None = ""


class AuditedKind(Protocol):
    """One kind of object in the cache."""

    kind: str
    selector: str
    reflector: Reflector
    every: int
    """The kind is compared in every n-th audit of `run`: a list of rarely changing objects costs as much as one of pods."""

    @property
    def path(self) -> str:
        """API path of the list."""
        ...

    def find(self, key: str, uid: str) -> CachedObject | None:
        """Returns the cached object of a listed key and uid; None if there is none."""
        ...

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        """Reports whether the cache should have an object that it lacks."""
        ...

    def handles(self) -> Sequence[str]:
        """Returns a copy of the handles of all objects that the API should also have."""
        ...

    def cached(self, handle: str) -> CachedObject | None:
        """Returns the cached object of a handle; None if it was removed in the meantime."""
        ...

    def drop(self, cached: CachedObject) -> None:
        """Removes an object that neither the API nor the reflector has."""
        ...

    def move(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        """Replaces an object that the API shows at the same version on another node."""
        ...

    def content_fault(self, cached: CachedObject, raw: msgspec.Raw) -> str:
        """Returns how the content differs from the API object of the same version; empty if it does not differ."""
        ...

    def replace_content(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        """Replaces the content of an object with that of the API object of the same version."""
        ...


class AuditedNamedKind(AuditedKind, Protocol):
    """A kind whose objects are identified by key, which is the handle, and all of which belong in the cache."""

    def find(self, key: str, uid: str) -> CachedObject | None:
        cached = self.cached(key)
        return cached if cached is not None and cached.uid == uid else None

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        return True

    def content_fault(self, cached: CachedObject, raw: msgspec.Raw) -> str:
        return ""

    def replace_content(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        self.move(cached, raw)


class AuditedPods:
    """Pods: those on nodes in the cache, and the pending and refused ones in the ingest."""

    kind = "pod"
    every = 1
    path = "/api/v1/pods"

    def __init__(
        self, cache: ClusterCache, pods: PodIngest, repair: PodRepair, reflector: Reflector, selector: str
    ) -> None:
        self.reflector = reflector
        self.selector = selector
        self._cache = cache
        self._pods = pods
        self._repair = repair

    def find(self, key: str, uid: str) -> CachedObject | None:
        return self.cached(uid)

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        return self._repair.is_wanted(raw)

    def handles(self) -> Sequence[str]:
        """Returns uids."""
        return [*self._cache.uids(), *self._pods.pending, *self._pods.refused]

    def cached(self, handle: str) -> CachedObject | None:
        """Returns the pod; an assumed one as pending, because that is its state in the API."""
        entry = self._cache.placed(handle)
        if entry is not None and entry.state is PodState.CONFIRMED:
            return CachedObject(entry.pod.key, handle, entry.pod.version, entry.node)
        refused = self._pods.refused.get(handle)
        pod = self._pods.pending.get(handle) if refused is None else refused.pod
        return CachedObject(pod.key, handle, pod.version) if pod is not None else None

    def drop(self, cached: CachedObject) -> None:
        self._pods.drop(cached.uid)

    def move(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        self._pods.upsert(cached.key, raw)

    def content_fault(self, cached: CachedObject, raw: msgspec.Raw) -> str:
        """Compares assumed pods, too: their cache entry follows the pending pod."""
        from multisched.shell.audit.content import pod_fault  # imported before by `load_judge`

        entry = self._cache.placed(cached.uid)
        if entry is not None:
            # The cache copies these labels from the node when it assumes the pod; the API shows them after the bind.
            copied = COPIED_LABELS if entry.state is PodState.ASSUMED else ()
            return pod_fault(entry.pod, raw, {*self._cache.ledgers.fixed_labels, *copied})
        pod = self._pods.pending.get(cached.uid)
        return "" if pod is None else pod_fault(pod, raw)

    def replace_content(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        self._repair.replace_content(cached.key, raw)


class AuditedEndedPods(AuditedNamedKind):
    """Ended pods, with the uid and version that the reflector has seen, because their ingest does not keep the objects."""

    kind = "ended-pod"
    every = 1
    path = "/api/v1/pods"

    def __init__(self, reflector: Reflector, selector: str) -> None:
        self.reflector = reflector
        self.selector = selector

    def handles(self) -> Sequence[str]:
        """Returns the keys of all ended pods."""
        return self.reflector.keys()

    def cached(self, handle: str) -> CachedObject | None:
        uid = self.reflector.uid_of(handle)
        return CachedObject(handle, uid, version_of(self.reflector.version_of(handle)), node=None) if uid else None

    def drop(self, cached: CachedObject) -> None:
        """Does nothing: the relist removes the pod."""

    def move(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        """Does nothing: the node is not kept."""


class AuditedNodes(AuditedNamedKind):
    """Nodes, by name."""

    kind = "node"
    every = 1
    path = "/api/v1/nodes"
    selector = ""

    def __init__(self, cache: ClusterCache, nodes: NodeIngest, reflector: Reflector) -> None:
        self.reflector = reflector
        self._cache = cache
        self._nodes = nodes

    def handles(self) -> Sequence[str]:
        """Returns node names."""
        return [node.name for _, node in self._cache.nodes.live_rows()]

    def cached(self, handle: str) -> CachedObject | None:
        row = self._cache.nodes.row_of(handle)
        if row is None:
            return None
        node = self._cache.nodes.node(row)
        return CachedObject(handle, node.uid, node.version)

    def drop(self, cached: CachedObject) -> None:
        self._nodes.delete(cached.key, None)

    def move(self, cached: CachedObject, raw: msgspec.Raw) -> None:
        self._nodes.upsert(cached.key, raw)

    def content_fault(self, cached: CachedObject, raw: msgspec.Raw) -> str:
        from multisched.shell.audit.content import node_fault

        row = self._cache.nodes.row_of(cached.key)
        return "" if row is None else node_fault(self._cache.nodes.node(row), raw)
