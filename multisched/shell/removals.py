"""The removals that this process has decided, from the decision until the watch shows the deletion.

Owns which pods are marked as victims in the cache (`Pod.is_victim`). The watch shows victims of preemption, reclaim and repair as
deleting only some time after the decision. Until then every other plan must count these pods as leaving. Otherwise two plans could
both remove the members that a gang can spare, or the pods that a PodDisruptionBudget allows. One per process, for all domains.

A plan holds its victims from `decide` until `release`. A victim whose deletion was sent stays marked without a plan until the
watch shows it, at most `UNSEEN_MAX_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache

UNSEEN_MAX_S: Final = 60.0
"""Maximum time for which a pod whose deletion was sent counts as a victim if the watch does not show the deletion.

A watch that is up to date shows it at once. This bound ends the mark if the deletion never happened: the request was lost, or the
API server was restored from a backup.
"""


class _Sent:
    """A deletion that was sent."""


class Removals:
    """The `framework.preemption.Victims` of one program."""

    def __init__(self, cache: ClusterCache) -> None:
        self.version = 0
        self._cache = cache
        self._plans: dict[str, set[object]] = {}
        """uid of a victim -> the plans that it is a victim of, and a `_Sent` of each deletion that was sent."""

    def pods(self) -> Collection[Pod]:
        entries = map(self._cache.placed, self._plans)
        return [entry.pod for entry in entries if entry is not None and entry.pod.is_victim]

    def decide(self, plan: object, victims: Iterable[Pod]) -> None:
        """Marks the pods that the plan will remove as victims. Ignores pods that are already being deleted."""
        for victim in victims:
            self._mark(victim.uid, plan)

    def sent(self, uid: str) -> None:
        """Keeps a victim marked after its plan has ended, because its deletion was sent and the API server has not refused it."""
        token = _Sent()
        if self._mark(uid, token):
            asyncio.get_running_loop().call_later(UNSEEN_MAX_S, self._drop, uid, token)

    def is_sent(self, uid: str) -> bool:
        """Reports whether the pod's deletion was sent, or its bind was cancelled."""
        return any(isinstance(one, _Sent) for one in self._plans.get(uid, ()))

    def release(self, plan: object, victims: Iterable[Pod]) -> None:
        """Removes the plan's marks of these pods. Called when the plan has ended, whether or not it removed the pods."""
        for victim in victims:
            self._drop(victim.uid, plan)

    def seen(self, uid: str) -> None:
        """Drops all marks of a pod that the watch has shown as deleting or deleted."""
        if self._plans.pop(uid, None) is not None:
            self.version += 1

    def __len__(self) -> int:
        return len(self._plans)

    def _mark(self, uid: str, plan: object) -> bool:
        """Returns False for a pod without a node, or a pod that is already being deleted."""
        entry = self._cache.placed(uid)
        if entry is None or entry.pod.is_deleting:
            return False
        if not entry.pod.is_victim:
            self._plans[uid] = set()  # drops entries from an earlier node on which its bind was cancelled
            self._cache.set_victim(uid, is_victim=True)
            self.version += 1
        self._plans.setdefault(uid, set()).add(plan)
        return True

    def _drop(self, uid: str, plan: object) -> None:
        plans = self._plans.get(uid, set())
        plans.discard(plan)
        if not plans and self._plans.pop(uid, None) is not None:
            self.version += 1
            self._cache.set_victim(uid, is_victim=False)
