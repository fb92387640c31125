"""Pods waiting at Permit: assumed and reserved, and not bound until every waiting plugin has allowed them.

Implements `framework.context.WaitingPods` for one domain. The callback given to `hold` is called once per pod with the
decision: success when the last plugin allows it, else the first rejection or timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from multisched.framework.status import SUCCESS, Status
from multisched.model.go_duration import go_duration
from multisched.model.objects import Pod

WAIT_MAX_S = 900.0
"""The longest time that a Permit plugin may hold a pod, the same as in kube-scheduler."""

Decided = Callable[[Status], None]


class _Waiting(msgspec.Struct):
    pod: Pod
    deadlines: dict[str, float]
    waits_s: Mapping[str, float]
    decided: Decided


class WaitingPodTable:
    """Waiting pods, with the plugins they wait for and the deadlines."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def hold(self, pod: Pod, waits: Mapping[str, float], now_s: float, decided: Decided) -> None:
        """Holds a pod. `decided` is called once, synchronously, by the call that decides."""
        waits_s = {plugin: min(wait_s, WAIT_MAX_S) for plugin, wait_s in waits.items()}
        deadlines = {plugin: now_s + wait_s for plugin, wait_s in waits_s.items()}
        self._waiting[pod.uid] = _Waiting(pod, deadlines, waits_s, decided)

    def waiting(self) -> Sequence[Pod]:
        return [entry.pod for entry in self._waiting.values()]

    def holders(self, uid: str) -> Mapping[str, float]:
        """Returns plugin -> deadline of its wait for this pod; empty if the pod does not wait."""
        entry = self._waiting.get(uid)
        return {} if entry is None else dict(entry.deadlines)

    def allow(self, uid: str, plugin: str) -> bool:
        entry = self._waiting.get(uid)
        if entry is None or entry.deadlines.pop(plugin, None) is None:
            return False
        if not entry.deadlines:
            del self._waiting[uid]
            entry.decided(SUCCESS)
        return True

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        return self.end(uid, Status.unschedulable(reason).by(plugin))

    def preempt(self, uid: str, plugin: str) -> bool:
        """Ends the wait of a victim, which is retried after its backoff. Returns False if it does not wait."""
        return self.end(uid, Status.error("waiting on permit for pod: preempted").by(plugin))

    def end(self, uid: str, status: Status) -> bool:
        """Ends the wait with this status, whatever the plugins decide. Returns False if the pod does not wait."""
        entry = self._waiting.pop(uid, None)
        if entry is None:
            return False
        entry.decided(status)
        return True

    def expire(self, now_s: float) -> int:
        """Rejects every pod whose earliest deadline has passed. Returns how many."""
        late = [
            (uid, plugin, entry.waits_s[plugin])
            for uid, entry in self._waiting.items()
            for plugin in [min(entry.deadlines, key=entry.deadlines.__getitem__)]
            if entry.deadlines[plugin] <= now_s
        ]
        for uid, plugin, wait_s in late:
            self.reject(uid, plugin, f"rejected due to timeout after waiting {go_duration(wait_s)} at plugin {plugin}")
        return len(late)

    def next_deadline_s(self) -> float | None:
        """Returns the earliest deadline; None if no pod waits."""
        return min((min(entry.deadlines.values()) for entry in self._waiting.values()), default=None)

    def __len__(self) -> int:
        return len(self._waiting)
