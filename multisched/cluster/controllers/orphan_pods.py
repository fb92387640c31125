"""Pods without a controller, and the owners that would adopt them: labels matched against selectors within a namespace.

Pods and owners are indexed by labels, so that a pod is not compared with all owners, nor an owner with all pods. Source:
pkg/controller/controller_ref_manager.go (1.36), ClaimObject; `ControlledPods.claim` writes the adoptions.
"""

from __future__ import annotations

from collections.abc import Iterator

from multisched.cluster.base.selectors import from_label_selector
from multisched.cluster.client.object_cache import ObjectCache
from multisched.cluster.client.object_client import Document, controller_of, key_of
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue


def selector_index(owner: Document) -> Iterator[str]:
    """Yields one index key that every pod matching the owner's selector has; none if the owner has no selector."""
    selector = owner["spec"].get("selector")
    if selector is not None:
        pair = min((selector.get("matchLabels") or {}).items(), default=None)
        yield _key(owner["metadata"]["namespace"], pair)


def orphan_index(pod: Document) -> Iterator[str]:
    """Yields the index keys of a pod that may be adopted."""
    if _may_be_adopted(pod):
        namespace = pod["metadata"]["namespace"]
        yield _key(namespace, None)
        for pair in (pod["metadata"].get("labels") or {}).items():
            yield _key(namespace, pair)


def orphans_of(owner: Document, pods: ObjectCache) -> list[Document]:
    """Returns the pods that the owner should adopt; none if the owner is terminating."""
    if owner["metadata"].get("deletionTimestamp"):
        return []
    filed = [pod for key in selector_index(owner) for pod in pods.under(key)]
    matches = from_label_selector(owner["spec"].get("selector")) if filed else None
    return [pod for pod in filed if matches is not None and matches(pod["metadata"].get("labels") or {})]


def requeue_adopters(pods: ObjectCache, owners: ObjectCache, *, queue: ReconcileQueue) -> None:
    """Queues the owners that may adopt a pod which was added, lost its controller, or was relabelled."""

    def listener(old: Document | None, new: Document | None) -> None:
        if new is None or not _may_be_adopted(new) or (old is not None and _same(old, new)):
            return
        for key in orphan_index(new):
            for owner in owners.under(key):
                queue.add(key_of(owner))

    pods.listen(listener)


def _may_be_adopted(pod: Document) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and controller_of(pod) is None


def _same(old: Document, new: Document) -> bool:
    return _may_be_adopted(old) and old["metadata"].get("labels") == new["metadata"].get("labels")


def _key(namespace: str, pair: tuple[str, str] | None) -> str:
    return f"orphan/{namespace}" if pair is None else f"orphan/{namespace}/{pair[0]}={pair[1]}"
