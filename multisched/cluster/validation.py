"""Field rules of built-in kinds: what kube-apiserver answers 422 for, with its paths and sentences.

Owns nothing; returns causes, never raises. `pods` has its own file (`pod_rules`).
"""

from __future__ import annotations

from multisched.cluster.resources import Document, Resource

Causes = list[dict[str, str]]


def create(resource: Resource, document: Document) -> Causes:
    """Everything wrong with a new object."""
    del resource, document
    return []


def update(resource: Resource, new: Document, old: Document, subresource: str) -> Causes:
    """Everything wrong with a change."""
    del resource, new, old, subresource
    return []
