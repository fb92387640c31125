"""ExternalPodChanges: pods that were added, changed or removed without a decision of this process, for binds that are decided but not sent.

Owns a bounded log: `since` returns None to a reader that is too far behind. `ClusterCache` writes it. A confirmation of
an own bind is not logged, so a burst of binds adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from multisched.model.objects import Pod

CHANGES_MAX: Final = 1_024
"""Pods kept at most; beyond this, half of them are dropped."""

CHANGES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Memory limit of the specs and labels that the log keeps after the pods are deleted."""


class ExternalPodChanges:
    """A bounded log of pods that were added, changed or removed without a decision of this process."""

    __slots__ = ("_bytes", "_pods", "_start", "demanding", "end")

    def __init__(self) -> None:
        self._pods: list[Pod] = []
        self._start = self._bytes = 0
        self.end = 0
        """Number of entries so far; a decision records it."""
        self.demanding = 0
        """`end` after the latest pod with required anti-affinity: only such pods affect pods without affinity of their own."""

    def log_added(self, pod: Pod) -> None:
        """Logs a pod that was added to a node, or changed there."""
        self._note(pod)
        if keeps_away(pod):
            self.demanding = self.end

    def log_removed(self, pod: Pod) -> None:
        """Logs a pod that was removed from a node, or its version before a change."""
        self._note(pod)

    def log_moved(self, pods: Iterable[Pod], count: int) -> None:
        """Logs `count` pods that were added or removed at once."""
        if count > CHANGES_MAX // 2:
            self.log_unknown()
            return
        for pod in pods:
            self.log_added(pod)

    def log_unknown(self) -> None:
        """Logs an unknown change: all earlier decisions must be checked again."""
        self.end += 1
        self.demanding = self._start = self.end
        self._pods.clear()
        self._bytes = 0

    def since(self, end: int) -> Sequence[Pod] | None:
        """Returns the pods logged after `end`; None if some were dropped."""
        return None if end < self._start else self._pods[end - self._start :]

    def _note(self, pod: Pod) -> None:
        # Relevance depends on namespace, labels and spec only (`PodSensitivity.matters`).
        self._pods.append(msgspec.structs.replace(pod, annotations={}) if pod.annotations else pod)
        self._bytes += pod.kept_bytes
        self.end += 1
        if len(self._pods) > CHANGES_MAX or self._bytes > CHANGES_BYTES_MAX:
            half = (len(self._pods) + 1) // 2
            self._bytes -= sum(old.kept_bytes for old in self._pods[:half])
            del self._pods[:half]
            self._start += half


def keeps_away(pod: Pod) -> bool:
    """Reports whether the pod has required anti-affinity."""
    affinity = pod.spec.pod_affinity
    return affinity is not None and bool(affinity.anti_required)
