"""BindingLabels: the labels that a pod gets from its node when the API server binds it.

From Kubernetes 1.35 on, admission plugin PodTopologyLabels copies the node's zone and region onto each pod that is bound.
An assumed pod carries these labels at once, so that the watch event that confirms it changes nothing. Older API servers
copy no labels; whether this one does is learned from confirmed binds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from multisched.model.objects import Node, Pod

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
COPIED_LABELS: Final = (ZONE, REGION)
KNOWN_MAX: Final = 4_096
"""Combined label sets that are kept."""

Labels = Mapping[str, str]
Copied = tuple[tuple[str, str], ...]


class BindingLabels:
    """One per ClusterCache."""

    __slots__ = ("_combined", "are_copied")

    def __init__(self) -> None:
        self.are_copied = False
        """Whether the API server copied them in the latest confirmed bind."""
        self._combined: dict[tuple[int, Copied], tuple[Labels, Labels]] = {}
        """(id of a pod's labels, what is copied) -> the pod's labels, and both combined: one object for all such pods."""

    def on_node(self, pod: Pod, node: Node) -> Pod:
        """Returns the pod with the labels that it is expected to have once it is bound to the node."""
        if not self.are_copied:
            return pod
        copied = _copied_from(node)
        if pod.labels.items() >= set(copied):
            return pod
        known = self._combined.get((id(pod.labels), copied))
        if known is None:
            if len(self._combined) >= KNOWN_MAX:
                self._combined.clear()
            known = self._combined[id(pod.labels), copied] = (pod.labels, {**pod.labels, **dict(copied)})
        return replace(pod, labels=known[1])

    def confirmed(self, pod: Pod, node: Node) -> None:
        """Learns from an assumed pod that the watch shows as bound."""
        copied = _copied_from(node)
        if copied:
            self.are_copied = pod.labels.items() >= set(copied)


def differ_only_by_binding(before: Labels, after: Labels) -> bool:
    """Reports whether labels differ only in those that the API server copies from a node."""
    return all(key in COPIED_LABELS for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def _copied_from(node: Node) -> Copied:
    labels = node.labels
    if ZONE in labels and REGION in labels:
        return (ZONE, labels[ZONE]), (REGION, labels[REGION])
    return tuple([(key, labels[key]) for key in COPIED_LABELS if key in labels])
