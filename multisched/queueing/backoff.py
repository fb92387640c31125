"""The backoff of failed pods: its duration, and the pods in backoff.

Owns the uids in backoff. If no pod is active, refused pods may be popped early, in QueueSort's order within one second
of expiry. Pods that failed by an error may not, so that errors never cause a busy loop. Source: kube-scheduler 1.36,
pkg/scheduler/backend/queue/backoff_queue.go. One difference: expiry is exact instead of truncated to whole seconds,
because `PodQueue.next_wakeup_s` returns the instant. Only the order of early pops uses windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from multisched.queueing.uid_heap import UidHeap

ORDERING_WINDOW_S = 1.0
"""Pods whose backoff ends in the same window are popped early in QueueSort's order."""


class BackoffPolicy(msgspec.Struct, frozen=True):
    """Doubles from `initial_s` up to `max_s`; `max_s` 0 turns backoff off (podInitialBackoffSeconds, podMaxBackoffSeconds)."""

    initial_s: float = 1.0
    max_s: float = 10.0

    def __post_init__(self) -> None:
        if self.initial_s < 0 or self.max_s < 0:
            raise ValueError(f"backoff must not be negative: initial_s={self.initial_s}, max_s={self.max_s}")

    def duration_s(self, failures: int) -> float:
        """Returns the backoff after the n-th failure: initial_s * 2^(n-1), at most max_s; 0 before the first."""
        if failures <= 0 or self.max_s == 0:
            return 0.0
        if self.initial_s == 0:
            return 0.0
        doublings = failures - 1
        if doublings >= 64 or self.initial_s > self.max_s / 2.0**doublings:
            return self.max_s
        return self.initial_s * 2.0**doublings


class BackoffPods:
    """uid → the instant at which its backoff ends."""

    __slots__ = ("_early", "_expiry")

    def __init__(self) -> None:
        self._expiry = UidHeap()
        self._early = UidHeap()

    def __len__(self) -> int:
        return len(self._expiry)

    def __contains__(self, uid: object) -> bool:
        return uid in self._expiry

    def __iter__(self) -> Iterator[str]:
        return iter(self._expiry)

    @property
    def items(self) -> int:
        """Heap items held, including dead ones."""
        return self._expiry.items + self._early.items

    @property
    def early(self) -> int:
        """Number of pods that may be popped before their backoff ends."""
        return len(self._early)

    def add(self, uid: str, until_s: float, sort_key: tuple[Any, ...], order: int, *, is_error: bool) -> None:
        """Adds the pod, or updates its expiry and order."""
        self._expiry.push(uid, until_s, order)
        if not is_error:
            self._early.push(uid, (until_s // ORDERING_WINDOW_S, sort_key), order)

    def discard(self, uid: str) -> bool:
        self._early.discard(uid)
        return self._expiry.discard(uid)

    def next_expiry_s(self) -> float | None:
        head = self._expiry.head()
        return None if head is None else head[0]

    def pop_expired(self, now_s: float) -> str | None:
        """Removes and returns a pod whose backoff has ended, earliest first; None if there is none."""
        head = self._expiry.head()
        if head is None or head[0] > now_s:
            return None
        self.discard(head[1])
        return head[1]

    def early_head(self) -> str | None:
        """Returns the pod to pop if no pod is active; None if all pods in backoff failed by errors."""
        head = self._early.head()
        return None if head is None else head[1]
