"""Which pods were bound, the latest of them, and how many stand where: read from the program's cache, look by look."""

from __future__ import annotations

from collections import Counter

import msgspec

from multisched.model.objects import Pod
from multisched.shell.program import Program
from multisched.state.cluster_cache import PodState

Group = tuple[str, str]
"""Namespace and label `app`."""


class Bound(msgspec.Struct, frozen=True):
    """A pod that was bound."""

    pod: Pod
    node: str


class Placements:
    """What was seen at the looks so far. `look` costs some milliseconds for 20,000 pods."""

    def __init__(self) -> None:
        self.ever: Counter[Group] = Counter()
        """Pods that were seen bound, those that have gone included."""
        self.now: Counter[Group] = Counter()
        """The same of those that are bound now."""
        self._latest: dict[Group, Bound] = {}
        self._seen: set[str] = set()

    def latest(self, groups: int) -> list[Bound]:
        """The latest pod of each of the latest groups, the latest first."""
        return list(reversed(self._latest.values()))[:groups]

    def look(self, program: Program) -> None:
        """Notes what is new."""
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
