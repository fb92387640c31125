"""Predictor: predicts the use of one pod in every dimension from its service's profile or a fallback.

Without profiles a prediction is one number per dimension: the pod's requests. With profiles it is a curve over the slots
of the week, from the first of these that exists: the profile of its service; the profile of the service in the label
`multisched.io/service-class`; the mean of the namespace's services; constant requests. `Prediction.fallback` names the
fallback used.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from domains.forecast.curves.quantized_profiles import Curve, QuantizedProfiles
from domains.forecast.service import class_of, service_of
from domains.forecast.units import MILLI
from multisched.model.objects import CPU, MEMORY, Pod

NO_SERVICE = "no_service"
NO_HISTORY = "no_history"
PARTIAL_HISTORY = "partial_history"
CLASS = "class"
NAMESPACE = "namespace"
FALLBACK_REASONS = (NO_SERVICE, NO_HISTORY, PARTIAL_HISTORY, CLASS, NAMESPACE)
"""Why a fallback is used. With requests: NO_SERVICE: the pod names no service; NO_HISTORY: the service has no profile;
PARTIAL_HISTORY: its profile lacks CPU or memory. CLASS and NAMESPACE: another profile or the namespace's mean is used."""
OWN = "own"
SOURCES = (OWN, *FALLBACK_REASONS)
"""The bases of predictions, as label values of metrics."""

PREDICTIONS_MAX = 65_536
"""Limit of cached predictions; equal pods share one."""
CURVES_MAX = 16_384
"""Limit of cached curves; each takes 6.7 kB at 5 dimensions and 168 slots."""


class Demand(NamedTuple):
    """The inputs of a prediction. Independent of the profiles, so ledgers store it."""

    namespace: str
    service: str
    service_class: str
    cpu_milli: int
    memory_bytes: int


class Prediction:
    """Predicted use of one pod. Immutable."""

    __slots__ = ("column", "curve", "demand", "fallback", "mark", "peaks", "source")

    def __init__(self, demand: Demand, peaks: tuple[int, ...], fallback: str, curve: Curve | None = None) -> None:
        self.demand = demand
        self.peaks = peaks
        """Requests in milli-units per dimension; used without profiles only."""
        self.fallback = fallback
        """One of FALLBACK_REASONS; empty if the service's own profile is used."""
        self.source = SOURCES.index(fallback or OWN)
        """Index in SOURCES."""
        self.curve = curve
        """None without profiles."""
        self.column = np.array(peaks, np.float64).reshape(-1, 1)
        """float64[dimensions, 1]: `peaks` as a column, which scores add to rows."""
        self.mark: Hashable = peaks if curve is None else curve.mark
        """Equal for pods with equal predictions."""


_NOTHING = Prediction(Demand("", "", "", 0, 0), (), "")


def _is_alike(last: Pod, pod: Pod) -> bool:
    """Reports whether two pods share their spec objects, as pods of one workload do.

    Pods of a workload often follow one another, and each is predicted four times until it is confirmed.
    """
    return (
        last.spec is pod.spec
        and last.labels is pod.labels
        and last.owner is pod.owner
        and last.namespace is pod.namespace
        and last.held is pod.held
    )


class Predictor:
    """Predicts pods from one set of profiles. Immutable except for its caches."""

    def __init__(self, dimensions: Sequence[str], quantized: QuantizedProfiles | None = None) -> None:
        """`quantized`: the active profiles, with the same dimensions; None: no profiles, requests are used."""
        assert quantized is None or quantized.dimensions == tuple(dimensions), "profiles of other dimensions"
        self.dimensions = tuple(dimensions)
        self.quantized = quantized
        self._known: dict[tuple[str, str, str, int, int], Prediction] = {}
        self._curves: dict[Hashable, Curve] = {}
        self._last: tuple[Pod | None, Prediction] = (None, _NOTHING)

    @property
    def version(self) -> int:
        """Returns the version of the profiles; 0 without profiles."""
        return 0 if self.quantized is None else self.quantized.profiles.version

    def predict(self, pod: Pod) -> Prediction:
        """Returns the prediction of a pod. Depends only on its service, class, namespace, CPU and memory."""
        last = self._last
        if last[0] is pod or (last[0] is not None and _is_alike(last[0], pod)):
            return last[1]
        spec, requests = pod.spec, pod.requests
        cpu_milli = max(requests.get(CPU, 0), spec.scoring_cpu_milli)
        memory_bytes = max(requests.get(MEMORY, 0), spec.scoring_memory_bytes)
        # A plain tuple equals and hashes like a Demand; creating a Demand would take a microsecond.
        key = (pod.namespace, service_of(pod), class_of(pod), cpu_milli, memory_bytes)
        known = self._known.get(key)
        if known is None:
            known = self.of(Demand(*key))
        self._last = (pod, known)
        return known

    def of(self, demand: Demand) -> Prediction:
        """Returns the prediction of a demand; equal demands have equal predictions while this predictor exists."""
        known = self._known.get(demand)
        if known is None:
            if len(self._known) >= PREDICTIONS_MAX:
                self._known.clear()
            quantized = self.quantized
            known = self._known[demand] = (
                self._by_requests(demand) if quantized is None else self._by_profile(demand, quantized)
            )
        return known

    def _by_requests(self, demand: Demand) -> Prediction:
        fallback = NO_HISTORY if demand.service else NO_SERVICE
        return Prediction(demand, self._requested(demand), fallback)

    def _requested(self, demand: Demand) -> tuple[int, ...]:
        requested = {CPU: demand.cpu_milli, MEMORY: demand.memory_bytes * MILLI}
        return tuple(requested.get(name, 0) for name in self.dimensions)

    def _by_profile(self, demand: Demand, quantized: QuantizedProfiles) -> Prediction:
        requested = self._requested(demand)
        source, fallback = quantized.service(demand.namespace, demand.service), ""
        if source is None:
            source, fallback = quantized.service(demand.namespace, demand.service_class), CLASS
        if source is None:
            source, fallback = quantized.namespace(demand.namespace), NAMESPACE
        if source is None:
            fallback = NO_HISTORY if demand.service else NO_SERVICE
        lacking = quantized.lacking(source)
        if not fallback and any(
            name in (CPU, MEMORY) for name, lacks in zip(quantized.dimensions, lacking, strict=True) if lacks
        ):
            fallback = PARTIAL_HISTORY
        flat = tuple(milli if lacks else 0 for milli, lacks in zip(requested, lacking, strict=True))
        mark = (quantized.number, source, flat)
        curve = self._curves.get(mark)
        if curve is None:
            if len(self._curves) >= CURVES_MAX:
                self._curves.clear()
            curve = self._curves[mark] = quantized.curve(source, flat)
        return Prediction(demand, requested, fallback, curve)
