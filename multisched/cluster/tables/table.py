"""Server-side tables: the columns that `kubectl get` prints.

`Tables` converts documents to a meta.k8s.io/v1 Table. The cells of built-in kinds are in `cells`; printer columns of custom
kinds are in their CustomResourceDefinition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from multisched.cluster.base.metadata import Clock
from multisched.cluster.base.resources import Document, Resource
from multisched.cluster.tables.cells import CELLS, default_cells
from multisched.cluster.tables.text import Cells, age, human_duration
from multisched.model.api_time import parse_timestamp

_CREATED = "CreationTimestamp is a timestamp representing the server time when this object was created."
_NAME = "Name must be unique within a namespace."


@dataclass(frozen=True, slots=True)
class Tables:
    """Renders tables, with ages as of the clock's time."""

    clock: Clock

    def render(
        self,
        resource: Resource,
        documents: Sequence[Document],
        metadata: Mapping[str, Any],
        include: str,
        with_columns: bool,
    ) -> Document:
        """Returns a Table of these objects. `include`: the part of the object that a row contains: None, Metadata or Object."""
        now = self.clock.now()
        cells = _custom(resource) if resource.is_custom else CELLS.get(resource.storage_key, default_cells)
        rows = []
        for document in documents:
            row: Document = {"cells": cells.row(document, now)}
            if include == "Object":
                row["object"] = document
            elif include != "None":
                row["object"] = {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": document.get("metadata") or {},
                }
            rows.append(row)
        columns = [_column(name, priority, kind) for name, priority, kind in cells.columns] if with_columns else []
        table: Document = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": dict(metadata)}
        return {**table, "columnDefinitions": columns, "rows": rows}


def _column(name: str, priority: int, kind: str) -> Document:
    description = {"Name": _NAME, "Age": _CREATED, "Created At": _CREATED}.get(name, "")
    shown_format = "name" if name in ("Name", "Attacher") else ""
    return {"name": name, "type": kind, "format": shown_format, "description": description, "priority": priority}


def _custom(resource: Resource) -> Cells:
    columns = resource.columns
    if not columns:
        return Cells(
            (("Name", 0, "string"), ("Age", 0, "date")),
            lambda document, now: (document["metadata"]["name"], age(document, now)),
        )
    shape = [("Name", 0, "string")]
    shape += [(entry["name"], int(entry.get("priority") or 0), entry.get("type") or "string") for entry in columns]

    def row(document: Document, now: datetime) -> tuple[Any, ...]:
        return (document["metadata"]["name"], *(_custom_cell(document, entry, now) for entry in columns))

    return Cells(tuple(shape), row)


def _custom_cell(document: Document, column: Mapping[str, Any], now: datetime) -> Any:
    value: Any = document
    for part in str(column.get("jsonPath", "")).strip(".").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return None
    if column.get("type") == "date":
        return human_duration((now - parse_timestamp(str(value))).total_seconds())
    if column.get("type") in ("integer", "number", "boolean"):
        return value
    return value if isinstance(value, str) else str(value)
