"""Server-side tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multisched.cluster.resources import Document, Resource


def render(
    resource: Resource, documents: Sequence[Document], metadata: Mapping[str, Any], include: str, with_columns: bool
) -> Document:
    """Placeholder."""
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": []}
