"""Representations of objects for clients: plain, as a Table, or metadata only; and conversion of kinds with several versions.

`negotiate` reads the Accept header; a `Form` turns stored bytes into watch lines, documents and lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from multisched.cluster.api import event_versions
from multisched.cluster.api.watch import Encoder, plain_line
from multisched.cluster.base.metadata import splice_list
from multisched.cluster.base.resources import Document, Resource


@lru_cache(maxsize=256)
def negotiate(accept: str) -> str:
    """Returns `Table`, `PartialObjectMetadata`, `PartialObjectMetadataList`, or an empty string for plain JSON."""
    for offer in accept.split(","):
        media, *params = (part.strip() for part in offer.split(";"))
        if media not in ("application/json", "application/*", "*/*"):
            continue
        given = dict(param.partition("=")[::2] for param in params)
        shape = given.get("as", "")
        if not shape:
            return ""
        if shape == "Table" and given.get("v") == "v1":
            return shape
        if shape in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return shape
    return ""


def converts(resource: Resource) -> bool:
    """Reports whether stored bytes must be converted to the version of this resource."""
    return resource.has_siblings or (resource.storage_key == "events" and resource.group != "")


def outward(resource: Resource, raw: bytes) -> bytes:
    """Converts stored bytes to the version of this resource."""
    if resource.has_siblings:
        # Conversion strategy None: only apiVersion differs.
        return orjson.dumps({**orjson.loads(raw), "apiVersion": resource.api_version})
    if converts(resource):
        return orjson.dumps(event_versions.from_core(orjson.loads(raw)))
    return raw


def inward(resource: Resource, document: Document) -> Document:
    """Converts a client's document to the stored version."""
    if resource.storage_key == "events" and resource.group:
        return event_versions.to_core(document)
    return document


def partial(document: Mapping[str, Any], kind: str = "PartialObjectMetadata") -> Document:
    """Returns only the metadata of a document."""
    return {"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": document.get("metadata") or {}}


TableRenderer = Callable[[Resource, Sequence[Document], Mapping[str, Any], str, bool], Document]


@dataclass(frozen=True, slots=True)
class Form:
    """The representation of one resource for one client."""

    resource: Resource
    shape: str
    include_object: str
    render: TableRenderer

    @property
    def is_plain(self) -> bool:
        """Reports whether stored bytes can be sent unchanged."""
        return not self.shape and not converts(self.resource)

    def one(self, raw: bytes) -> bytes:
        """Encodes a single object."""
        raw = outward(self.resource, raw)
        if not self.shape:
            return raw
        document = orjson.loads(raw)
        if self.shape == "Table":
            metadata = {"resourceVersion": document["metadata"].get("resourceVersion", "")}
            return orjson.dumps(self.render(self.resource, [document], metadata, self.include_object, True))
        return orjson.dumps(partial(document))

    def many(self, raws: Sequence[bytes], version: int, continue_token: str, remaining: int | None) -> bytes:
        """Encodes a list."""
        if not self.shape:
            if converts(self.resource):
                raws = [outward(self.resource, raw) for raw in raws]
            return splice_list(self.resource, raws, version, continue_token, remaining)
        metadata: Document = {"resourceVersion": str(version)}
        if continue_token:
            metadata["continue"] = continue_token
        if remaining is not None:
            metadata["remainingItemCount"] = remaining
        documents = [orjson.loads(outward(self.resource, raw)) for raw in raws]
        if self.shape == "Table":
            return orjson.dumps(self.render(self.resource, documents, metadata, self.include_object, True))
        items = [partial(document) for document in documents]
        return orjson.dumps(
            {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": items,
            }
        )

    def encoder(self) -> tuple[Encoder, object]:
        """Returns the encoder of watch lines, and a key: watches with equal keys share encoded lines. Tables have unique keys."""
        if self.is_plain:
            return plain_line, None
        if self.shape != "Table":
            return lambda kind, raw: plain_line(kind, self.one(raw)), (self.resource.group, self.shape)
        return self._table_encoder(), object()

    def _table_encoder(self) -> Encoder:
        is_first = True

        def encode(kind: str, raw: bytes) -> bytes:
            nonlocal is_first
            if kind == "ERROR":
                return plain_line(kind, raw)
            document = orjson.loads(outward(self.resource, raw))
            rows: list[Document] = [] if kind == "BOOKMARK" else [document]
            metadata = {"resourceVersion": document["metadata"].get("resourceVersion", "")}
            table = self.render(self.resource, rows, metadata, self.include_object, is_first)
            if kind == "BOOKMARK":
                # A bookmark row has only metadata, no cells.
                table["rows"] = [{"cells": [], "object": partial(document)}]
            is_first = False
            return plain_line(kind, orjson.dumps(table))

        return encode
