"""What the audit compares: one side for each kind of object in the cache, by whatever the cache knows it by.

A side owns nothing: it reads the cache and the ingest of its kind, and mends by them. Called by `Audit` alone; the side of
the kinds in the object store is `object_watch.ObjectSide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

import msgspec

from multisched.client.reflector import Reflector
from multisched.model.version import Version
from multisched.shell.audit.pod_mending import PodMending
from multisched.shell.ingest.pods_and_nodes import NodeIngest, PodIngest
from multisched.state.cluster_cache import ClusterCache, PodState


def load_judge() -> None:
    """Imports what reads contents, and the judge with it: 10 ms that only audits need, and that no step of one should take."""
    import_module("multisched.shell.audit.content")


class Here(msgspec.Struct, frozen=True):
    """An object as the cache has it; `node` is empty where the API cannot know of one yet."""

    key: str
    uid: str
    version: Version
    node: str = ""


class Side(Protocol):
    """One kind of object in the cache."""

    kind: str
    selector: str
    reflector: Reflector
    every: int
    """Compared at each audit of `run` whose number this divides: a list of what changes seldom costs as much as of pods."""

    @property
    def path(self) -> str:
        """Where the kind is listed."""
        ...

    def find(self, key: str, uid: str) -> Here | None:
        """The object of a listed name and uid; None if the cache has none such."""
        ...

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        """True if an object the cache lacks should be there."""
        ...

    def handles(self) -> Sequence[str]:
        """One for each object that the API should have as well; a copy."""
        ...

    def here(self, handle: str) -> Here | None:
        """What it stands for now; None if that has gone meanwhile."""
        ...

    def drop(self, here: Here) -> None:
        """It does not exist, and the reflector does not know it either."""
        ...

    def move(self, here: Here, raw: msgspec.Raw) -> None:
        """It is the same version on another node."""
        ...

    def content_fault(self, here: Here, raw: msgspec.Raw) -> str:
        """Where the same version holds something else here than in the API; empty where it does not."""
        ...

    def take_anew(self, here: Here, raw: msgspec.Raw) -> None:
        """It is the same version, and is to hold what the API says."""
        ...


class NamedSide(Side, Protocol):
    """A kind that is known by its names, which are the handles, and of which every object belongs here."""

    def find(self, key: str, uid: str) -> Here | None:
        here = self.here(key)
        return here if here is not None and here.uid == uid else None

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        return True

    def content_fault(self, here: Here, raw: msgspec.Raw) -> str:
        return ""

    def take_anew(self, here: Here, raw: msgspec.Raw) -> None:
        self.move(here, raw)


class PodSide:
    """Pods: on nodes in the cache, waiting or refused in the ingest."""

    kind = "pod"
    every = 1
    path = "/api/v1/pods"

    def __init__(
        self, cache: ClusterCache, pods: PodIngest, mending: PodMending, reflector: Reflector, selector: str
    ) -> None:
        self.reflector = reflector
        self.selector = selector
        self._cache = cache
        self._pods = pods
        self._mending = mending

    def find(self, key: str, uid: str) -> Here | None:
        return self.here(uid)

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        return self._mending.is_wanted(raw)

    def handles(self) -> Sequence[str]:
        """Uids."""
        return [*self._cache.uids(), *self._pods.pending, *self._pods.refused]

    def here(self, handle: str) -> Here | None:
        """An assumed pod is still the pending one to the API."""
        entry = self._cache.placed(handle)
        if entry is not None and entry.state is PodState.CONFIRMED:
            return Here(entry.pod.key, handle, entry.pod.version, entry.node)
        refused = self._pods.refused.get(handle)
        pod = self._pods.pending.get(handle) if refused is None else refused.pod
        return Here(pod.key, handle, pod.version) if pod is not None else None

    def drop(self, here: Here) -> None:
        self._pods.drop(here.uid)

    def move(self, here: Here, raw: msgspec.Raw) -> None:
        self._pods.upsert(here.key, raw)

    def content_fault(self, here: Here, raw: msgspec.Raw) -> str:
        """Of an assumed pod too, which counts as it is pending."""
        from multisched.shell.audit.content import pod_fault  # which `load_judge` has brought

        entry = self._cache.placed(here.uid)
        pod = self._pods.pending.get(here.uid) if entry is None else entry.pod
        return "" if pod is None else pod_fault(pod, raw)

    def take_anew(self, here: Here, raw: msgspec.Raw) -> None:
        self._mending.take_anew(here.key, raw)


class NodeSide(NamedSide):
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
        """Names."""
        return [node.name for _, node in self._cache.nodes.live_rows()]

    def here(self, handle: str) -> Here | None:
        row = self._cache.nodes.row_of(handle)
        if row is None:
            return None
        node = self._cache.nodes.node(row)
        return Here(handle, node.uid, node.version)

    def drop(self, here: Here) -> None:
        self._nodes.delete(here.key, None)

    def move(self, here: Here, raw: msgspec.Raw) -> None:
        self._nodes.upsert(here.key, raw)

    def content_fault(self, here: Here, raw: msgspec.Raw) -> str:
        from multisched.shell.audit.content import node_fault

        row = self._cache.nodes.row_of(here.key)
        return "" if row is None else node_fault(self._cache.nodes.node(row), raw)
