"""The arithmetic of rolling updates and disruption budgets: pure functions of numbers.

Source: pkg/controller/deployment/rolling.go and util/deployment_util.go, apimachinery intstr (1.36).
Called by the Deployment and disruption controllers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def resolve_int_or_percent(value: int | str, total: int, *, round_up: bool) -> int:
    """Resolves `3`, `"3"` or `"25%"` of a total; never negative. Raises ValueError for anything else."""
    if isinstance(value, int):
        return max(0, value)
    text = value.strip()
    if text.endswith("%"):
        product = int(text[:-1]) * total
        return max(0, -(-product // 100) if round_up else product // 100)
    return max(0, int(text))


def resolve_fenceposts(max_surge: int | str, max_unavailable: int | str, desired: int) -> tuple[int, int]:
    """Returns maxSurge and maxUnavailable in pods; if both are 0, one pod may be unavailable."""
    surge = resolve_int_or_percent(max_surge, desired, round_up=True)
    unavailable = resolve_int_or_percent(max_unavailable, desired, round_up=False)
    return (surge, 1) if surge == 0 and unavailable == 0 else (surge, unavailable)


@dataclass(frozen=True, slots=True)
class Size:
    """Replica counts of a ReplicaSet."""

    replicas: int
    """The replicas in its spec."""
    available: int


def scale_new(new: Size, old: Sequence[Size], *, desired: int, surge: int) -> int:
    """Returns the replicas of the new ReplicaSet: as many as the surge allows, at most `desired`."""
    if new.replicas >= desired:
        return desired
    room = desired + surge - new.replicas - sum(size.replicas for size in old)
    return new.replicas + min(max(0, room), desired - new.replicas)


def scale_old(new: Size, old: Sequence[Size], *, desired: int, unavailable: int) -> list[int]:
    """Returns the replicas of the old ReplicaSets, in the order of `old`.

    Unhealthy pods are removed first, then available ones while at least `desired - unavailable` pods stay available.
    """
    min_available = desired - unavailable
    total = new.replicas + sum(size.replicas for size in old)
    budget = total - min_available - (new.replicas - new.available)
    sizes = [size.replicas for size in old]
    if budget <= 0 or not any(sizes):
        return sizes
    for index, size in enumerate(old):
        unhealthy = min(budget, max(0, sizes[index] - size.available))
        sizes[index] -= unhealthy
        budget -= unhealthy
    available = new.available + sum(min(size.available, size.replicas) for size in old)
    spare = min(budget, available - min_available)
    for index in range(len(sizes)):
        down = min(max(0, spare), sizes[index])
        sizes[index] -= down
        spare -= down
    return sizes


@dataclass(frozen=True, slots=True)
class Disruption:
    """Pod counts of a PodDisruptionBudget's status."""

    expected: int
    desired_healthy: int
    current_healthy: int

    @property
    def allowed(self) -> int:
        return max(0, self.current_healthy - self.desired_healthy) if self.expected else 0


def disruption(
    *,
    min_available: int | str | None,
    max_unavailable: int | str | None,
    pods: int,
    scale: int,
    healthy: int,
) -> Disruption:
    """Computes the pod counts. `pods`: number that match the selector now; `scale`: the sum of their controllers' replicas.

    Source: pkg/controller/disruption/disruption.go, getExpectedPodCount.
    """
    if max_unavailable is not None:
        desired = scale - resolve_int_or_percent(max_unavailable, scale, round_up=True)
        return Disruption(scale, max(0, desired), healthy)
    if isinstance(min_available, str) and min_available.strip().endswith("%"):
        return Disruption(scale, resolve_int_or_percent(min_available, scale, round_up=True), healthy)
    return Disruption(pods, resolve_int_or_percent(min_available or 0, pods, round_up=True), healthy)
