"""The pods and nodes in an API server's store, each decoded once for all readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec
import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.storage import Collection, Stored
from multisched.model.decode import TOLERATIONS_MAX, Decoder
from multisched.model.objects import Node, Pod

T = TypeVar("T")
DEVICE_ANNOTATIONS = frozenset(f"multisched.io/gpu-{of}" for of in ("milli", "count", "devices", "allocated-milli"))
"""Annotations about devices, which must be kept even if there are thousands of others."""


class StoreView:
    """A view of the store. Returned mappings do not change; after each write a new one is returned."""

    def __init__(self, server: ApiServer) -> None:
        self._store = server.store
        self.reader = Reader()
        self._pods = _Decoded(self.reader.pod)
        self._nodes = _Decoded(self.reader.node)

    def pods(self) -> Mapping[str, Pod]:
        """Returns NAMESPACE/NAME -> pod."""
        return self._pods.as_stored(self._store.collection("pods"))

    def nodes(self) -> Mapping[str, Node]:
        return self._nodes.as_stored(self._store.collection("nodes"))

    def forget(self) -> None:
        """Forgets all objects: the store was restored."""
        self._pods.forget()
        self._nodes.forget()


class Reader:
    """Decodes each pod or node once, for all processes; also placed pods that the program cannot decode.

    The key is the raw bytes: one version may be delivered in several forms.
    """

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._decoder.keep(DEVICE_ANNOTATIONS)
        self._pods: dict[bytes, Pod] = {}
        self._nodes: dict[bytes, Node] = {}

    def pod(self, raw: bytes | msgspec.Raw) -> Pod:
        data = bytes(raw)
        pod = self._pods.get(data)
        if pod is None:
            pod = self._decoder.pod(raw)
            if pod.malformed and pod.node:
                pod = self._decoder.pod(_shortened(data))
            self._pods[data] = pod
        return pod

    def node(self, raw: bytes | msgspec.Raw) -> Node:
        data = bytes(raw)
        node = self._nodes.get(data)
        if node is None:
            node = self._nodes[data] = self._decoder.node(raw)
        return node


class _Decoded(Generic[T]):
    """All objects of a kind, decoded; unchanged objects are not decoded again."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._known: dict[str, tuple[Stored, T]] = {}
        self._read_at = -1
        """The collection's version at the last read."""
        self._shown: Mapping[str, T] = {}

    def forget(self) -> None:
        """Forgets all objects: the collection was replaced."""
        self._read_at = -1
        self._known.clear()

    def as_stored(self, collection: Collection) -> Mapping[str, T]:
        """Returns the objects by key, in the order of keys. The mapping does not change when the collection does."""
        if self._read_at != collection.changed_at:
            events = collection.events_since(self._read_at)
            changed = {event.key for event in events} if events is not None else None
            for key in changed if changed is not None else self._known.keys() | collection.objects.keys():
                self._read(key, collection.objects.get(key))
            self._shown = {key: self._known[key][1] for key in collection.keys()}  # noqa: SIM118 - no dict
            self._read_at = collection.changed_at
        return self._shown

    def _read(self, key: str, stored: Stored | None) -> None:
        if stored is None:
            self._known.pop(key, None)
        elif key not in self._known or self._known[key][0] is not stored:
            self._known[key] = (stored, self._decode(stored.raw))


def _shortened(raw: bytes) -> bytes:
    """Returns the pod without tolerations beyond the decoder's limit; invalid UTF-8 is returned unchanged."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw
    document["spec"]["tolerations"] = document["spec"].get("tolerations", [])[:TOLERATIONS_MAX]
    return orjson.dumps(document)
