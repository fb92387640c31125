"""QOSSort: sorts pods by priority, then Guaranteed before Burstable before BestEffort, then by the time when they were queued."""

from __future__ import annotations

from typing import Any

from multisched.framework.points import QueuedPod
from multisched.model.objects import QosClass

_RANK = {QosClass.GUARANTEED: 0, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 2}


class QOSSort:
    """The rule of scheduler-plugins' QOSSort, and this project's default order."""

    name = "QOSSort"

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        spec = entry.pod.spec
        return -spec.priority, _RANK[spec.qos], entry.queued_s
