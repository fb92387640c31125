"""Predictor: the peak of one pod in every dimension, from its service's history, else from its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from domains.forecast.history import MILLI, History
from domains.forecast.service import service_of
from multisched.model.objects import CPU, MEMORY, Pod

NO_SERVICE = "no_service"
NO_HISTORY = "no_history"
PARTIAL_HISTORY = "partial_history"
FALLBACK_REASONS = (NO_SERVICE, NO_HISTORY, PARTIAL_HISTORY)
"""Why requests stand in: the pod names no service; its service has no history; none of CPU or none of memory."""

PREDICTIONS_MAX = 65_536
"""Distinct predictions that are remembered, so that equal pods share one."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Milli-units per dimension, and why requests stand in for history (empty: they do not)."""

    peaks: tuple[int, ...]
    fallback: str
    column: NDArray[np.float64] = field(init=False, compare=False, repr=False)
    """float64[dimensions, 1]: the same, as scores add it to rows."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", np.array(self.peaks, np.float64).reshape(-1, 1))


def _is_alike(last: Pod, pod: Pod) -> bool:
    """True for pods of one workload, which follow one another; each is asked about four times until it is confirmed."""
    return (
        last.spec is pod.spec
        and last.labels is pod.labels
        and last.owner is pod.owner
        and last.namespace is pod.namespace
        and last.held is pod.held
    )


class Predictor:
    """Immutable but for its memory of what it said before."""

    def __init__(self, history: History, dimensions: Sequence[str]) -> None:
        self.history = history
        self.dimensions = tuple(dimensions)
        self._known: dict[tuple[str, str, int, int], Prediction] = {}
        self._last: tuple[Pod | None, Prediction] = (None, Prediction((), ""))

    def predict(self, pod: Pod) -> Prediction:
        """What the pod needs at its peak. Depends on its service, namespace, CPU and memory only."""
        last = self._last
        if last[0] is pod or (last[0] is not None and _is_alike(last[0], pod)):
            return last[1]
        spec, requests = pod.spec, pod.requests
        cpu_milli = max(requests.get(CPU, 0), spec.scoring_cpu_milli)
        memory_bytes = max(requests.get(MEMORY, 0), spec.scoring_memory_bytes)
        key = (pod.namespace, service_of(pod), cpu_milli, memory_bytes)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= PREDICTIONS_MAX:
                self._known.clear()
            known = self._known[key] = self._predict(*key)
        self._last = (pod, known)
        return known

    def _predict(self, namespace: str, service: str, cpu_milli: int, memory_bytes: int) -> Prediction:
        requested = {CPU: cpu_milli, MEMORY: memory_bytes * MILLI}
        learned = self.history.peak(namespace, service) if service else None
        if learned is None:
            fallback = NO_HISTORY if service else NO_SERVICE
            return Prediction(tuple(requested.get(name, 0) for name in self.dimensions), fallback)
        is_partial = any(name in requested and name not in learned for name in self.dimensions)
        peaks = tuple(learned.get(name, requested.get(name, 0)) for name in self.dimensions)
        return Prediction(peaks, PARTIAL_HISTORY if is_partial else "")
