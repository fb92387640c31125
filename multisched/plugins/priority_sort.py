"""PrioritySort: sorts pods by priority, then by the time when they were queued."""

from __future__ import annotations

from typing import Any

from multisched.framework.points import QueuedPod


class PrioritySort:
    """Source: kube-scheduler 1.36, plugins/queuesort/priority_sort.go."""

    name = "PrioritySort"

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        return -entry.pod.spec.priority, entry.queued_s
