"""PodNews: pods that came, changed or left by no decision of ours, for who has decided and not sent yet.

Owns a log that forgets: a reader that has waited for too long learns so. `ClusterCache` writes it. A confirmation of
our own bind is no news, so a burst of binds leaves the log as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from multisched.model.objects import Pod

NEWS_MAX: Final = 1_024
"""Pods remembered at most; half of them go when there are more."""

NEWS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of their specs and labels: the pods may be gone."""


class PodNews:
    """A bounded log of pods that came, changed or left by no decision of ours."""

    __slots__ = ("_bytes", "_pods", "_start", "demanding", "end")

    def __init__(self) -> None:
        self._pods: list[Pod] = []
        self._start = self._bytes = 0
        self.end = 0
        """News so far: what a decision has seen."""
        self.demanding = 0
        """`end` after the latest pod that keeps others away: those alone concern pods without rules of their own."""

    def came(self, pod: Pod) -> None:
        """It stands on a node now, or counts otherwise there."""
        self._note(pod)
        if keeps_away(pod):
            self.demanding = self.end

    def left(self, pod: Pod) -> None:
        """It stands there no more, or not as it did."""
        self._note(pod)

    def moved(self, pods: Iterable[Pod], count: int) -> None:
        """So many pods came or left at once."""
        if count > NEWS_MAX // 2:
            self.lose()
            return
        for pod in pods:
            self.came(pod)

    def lose(self) -> None:
        """Something happened that nobody can tell: whoever has decided before must ask anew."""
        self.end += 1
        self.demanding = self._start = self.end
        self._pods.clear()
        self._bytes = 0

    def since(self, end: int) -> Sequence[Pod] | None:
        """The pods of the news after that; None if they are forgotten."""
        return None if end < self._start else self._pods[end - self._start :]

    def _note(self, pod: Pod) -> None:
        # Who is concerned goes by namespace, labels and spec (`PodSensitivity.matters`).
        self._pods.append(msgspec.structs.replace(pod, annotations={}) if pod.annotations else pod)
        self._bytes += pod.kept_bytes
        self.end += 1
        if len(self._pods) > NEWS_MAX or self._bytes > NEWS_BYTES_MAX:
            half = (len(self._pods) + 1) // 2
            self._bytes -= sum(old.kept_bytes for old in self._pods[:half])
            del self._pods[:half]
            self._start += half


def keeps_away(pod: Pod) -> bool:
    """It has a required anti-affinity."""
    affinity = pod.spec.pod_affinity
    return affinity is not None and bool(affinity.anti_required)
