"""The latest bound pods, and counts of bound pods per group, read from the program's cache at each `look`."""

from __future__ import annotations

from collections import Counter

import msgspec

from multisched.model.objects import Pod
from multisched.shell.program import Program
from multisched.state.cluster_cache import PodState

Group = tuple[str, str]
"""Namespace and label `app`."""


class Bound(msgspec.Struct, frozen=True):
    """A bound pod."""

    pod: Pod
    node: str


class Placements:
    """The bound pods found by all calls of `look` so far. A call costs some milliseconds for 20,000 pods."""

    def __init__(self) -> None:
        self.ever: Counter[Group] = Counter()
        """Pods ever seen bound, including deleted ones."""
        self.now: Counter[Group] = Counter()
        """Pods bound at the last look."""
        self._latest: dict[Group, Bound] = {}
        self._seen: set[str] = set()

    def latest(self, groups: int) -> list[Bound]:
        """Returns the latest bound pod of each group, for at most `groups` groups, latest first."""
        return list(reversed(self._latest.values()))[:groups]

    def look(self, program: Program) -> None:
        """Records newly bound pods."""
        self.now = Counter()
        bound = set()
        for entry in program.cache:
            if entry.state is not PodState.CONFIRMED:
                continue
            pod = entry.pod
            bound.add(pod.uid)
            group = pod.namespace, pod.labels.get("app", "")
            self.now[group] += 1
            if pod.uid not in self._seen:
                self.ever[group] += 1
                self._latest.pop(group, None)
                self._latest[group] = Bound(pod, entry.node)
        self._seen = bound
