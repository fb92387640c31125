"""Requeues equal parked pods one after the other: when one was placed, the next one may have room, too.

Parked pods of one class have equal requirements. An event that makes room (`Hint.QUEUE_NEXT`) requeues one of them. If it is
placed, or leaves the queue untried, the next one follows; if it is refused, the others would be, too. So one freed slot costs
two attempts, whatever the number of equal pods. Used by `PodQueue` only.
"""

from __future__ import annotations

from typing import Final

from multisched.model.objects import Pod
from multisched.queueing.hints import Requeue
from multisched.queueing.parked_pods import ClassKey, ParkedPods, class_of
from multisched.queueing.readmission import MovedCounts, Readmission

EQUAL_PLACED: Final = "EqualPodPlaced"


class Successors:
    """The classes of which one more pod is to be requeued; at most one entry per class of parked pods."""

    def __init__(self, parked: ParkedPods, back: Readmission) -> None:
        self._parked = parked
        self._back = back
        self._due: dict[ClassKey, str] = {}
        """Class -> namespace of its pods."""

    def __bool__(self) -> bool:
        return bool(self._due)

    def note(self, pod: Pod) -> None:
        """Notes that the pod was placed, or left the active queue: an equal one may have room."""
        if self._parked.are_any and self._parked.first_like(key := class_of(pod), pod.namespace) is not None:
            self._due[key] = pod.namespace

    def requeue(self, now_s: float, tally: MovedCounts) -> None:
        """Requeues one parked pod of each noted class, after its backoff."""
        due, self._due = self._due, {}
        for key, namespace in due.items():
            if (entry := self._parked.first_like(key, namespace)) is not None:
                self._back.wake(entry, Requeue.AFTER_BACKOFF, EQUAL_PLACED, now_s, tally)
