"""The lender of a run: services on nodes, what the nodes use every 30 seconds, and what is predicted. Deterministic in its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.usage import Usage
from multisched.plugins.loans.offers import STEP_S

DAY_S: Final = 86_400
WINDOW_DAYS: Final = 28
"""The default of `history.windowDays`."""
CHUNK: Final = 2_880

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Fleet(msgspec.Struct, frozen=True):
    """The services of a scenario."""

    names: tuple[str, ...]
    replicas: tuple[int, ...]
    start_s: int
    """Epoch seconds of the first step; midnight."""
    step_s: int
    values: Floats
    """float64[services, steps]: cores of the mean replica, over whole days, without gaps."""
    judged_s: int
    """Epoch seconds at which the judged days begin."""
    nodes: int
    node_milli: int
    """Allocatable of each node."""

    @property
    def end_s(self) -> int:
        return self.start_s + int(self.values.shape[1]) * self.step_s

    def learned(self) -> tuple[Profiles, ...]:
        """Returns for each judged day the profiles learned from the days before it."""
        return tuple(self._fit(until_s) for until_s in range(self.judged_s, self.end_s, DAY_S))

    def _fit(self, until_s: int) -> Profiles:
        begin_s = max(self.start_s, until_s - WINDOW_DAYS * DAY_S)
        begin, end = ((at_s - self.start_s) // self.step_s for at_s in (begin_s, until_s))
        known = self.values[:, None, begin:end].astype(np.float32)
        return fit(Usage(float(begin_s), float(self.step_s), self.names, ("cpu",), known), FitSettings(), 1, until_s)

    def placed(self, peaks: Floats, rng: np.random.Generator) -> Ints:
        """Returns int64[replicas]: the node of each, so that the highest predicted slot of the node stays as low as possible.

        `peaks`: float64[services, slots]. Replicas are placed one by one in drawn order.
        """
        service_of = self.service_of()
        node_of = np.zeros(len(service_of), np.int64)
        load = np.zeros((self.nodes, peaks.shape[1]))
        for replica in rng.permutation(len(service_of)).tolist():
            found = int((load + peaks[service_of[replica]]).max(axis=1).argmin())
            node_of[replica] = found
            load[found] += peaks[service_of[replica]]
        return node_of

    def service_of(self) -> Ints:
        """Returns int64[replicas]."""
        return np.repeat(np.arange(len(self.replicas)), self.replicas)

    def counts(self, node_of: Ints) -> Floats:
        """Returns float64[nodes, services]: replicas of each service on each node."""
        found = np.zeros((self.nodes, len(self.names)))
        np.add.at(found, (node_of, self.service_of()), 1.0)
        return found

    def use(self, node_of: Ints, noise: float, lasts_s: float, rng: np.random.Generator) -> Floats:
        """Returns float64[steps of STEP_S, nodes]: thousandths of cores used in the judged days.

        A recorded value is that of the middle of its step, and changes linearly from there to the next. Each replica deviates from it
        by a first-order autoregressive process of its own.
        """
        times = np.arange(self.judged_s, self.end_s, STEP_S)
        centres = self.start_s + (np.arange(self.values.shape[1]) + 0.5) * self.step_s
        services = np.array([np.interp(times, centres, values) for values in self.values]).T
        service_of, keep = self.service_of(), float(np.exp(-STEP_S / lasts_s))
        on_node = np.zeros((len(service_of), self.nodes))
        on_node[np.arange(len(service_of)), node_of] = 1000.0
        found = np.zeros((len(times), self.nodes))
        deviation = rng.standard_normal(len(service_of))
        for begin in range(0, len(times), CHUNK):
            fresh = rng.standard_normal((min(CHUNK, len(times) - begin), len(service_of)))
            for step, drawn in enumerate(fresh):
                deviation = keep * deviation + np.sqrt(1.0 - keep * keep) * drawn
                fresh[step] = deviation
            part = services[begin : begin + len(fresh)][:, service_of]
            found[begin : begin + len(fresh)] = (part * np.maximum(0.0, 1.0 + noise * fresh)) @ on_node
        return found


class Lender:
    """The services on their nodes."""

    def __init__(
        self, fleet: Fleet, learned: Sequence[Profiles], noise: float, lasts_s: float, rng: np.random.Generator
    ) -> None:
        self.fleet = fleet
        self._learned = learned
        node_of = fleet.placed(learned[0].peak[:, 0].astype(np.float64), rng)
        counts = fleet.counts(node_of)
        self._peaks = [1000.0 * counts @ one.peak[:, 0].astype(np.float64) for one in learned]
        """For each judged day, float64[nodes, slots]: sums of predicted peaks, in thousandths of cores."""
        self.use = fleet.use(node_of, noise, lasts_s, rng)
        self._day_peaks = highest_ahead(self.use, DAY_S)

    def used(self, now_s: float) -> Floats:
        """Returns float64[nodes]: the present use."""
        found: Floats = self.use[self._step(now_s)]
        return found

    def measured(self, now_s: float) -> Floats:
        """Returns float64[nodes]: the use of the step before, which is known."""
        found: Floats = self.use[max(0, self._step(now_s) - 1)]
        return found

    def day_peaks(self, now_s: float) -> Floats:
        """Returns float64[nodes]: the highest use of the next 24 hours, as far as they are played. No forecast knows it."""
        found: Floats = self._day_peaks[self._step(now_s)]
        return found

    def _step(self, now_s: float) -> int:
        return int((now_s - self.fleet.judged_s) // STEP_S)

    def predicted(self, now_s: float, ahead_s: float) -> Floats:
        """Returns float64[nodes]: see `domains.forecast.forecast.Forecast.predicted_use`."""
        day = int((now_s - self.fleet.judged_s) // DAY_S)
        found: Floats = (self._peaks[day] @ self._learned[day].curve_weights(now_s, now_s + ahead_s).T).max(axis=1)
        return found


def highest_ahead(use: Floats, ahead_s: float) -> Floats:
    """Returns float64[steps, nodes]: the highest use of each step and of those within `ahead_s` after it."""
    width = int(np.ceil(ahead_s / STEP_S)) + 1
    found, size = np.concatenate((use, np.repeat(use[-1:], width, axis=0))), 1
    while 2 * size <= width:
        found = np.maximum(found[:-size], found[size:])
        size *= 2
    highest: Floats = np.maximum(found[: len(use)], found[width - size : width - size + len(use)])
    return highest


def fluid(use: Floats, limit_milli: float, ahead_s: float) -> Floats:
    """Returns float64[steps, nodes]: what can be lent if the use of the next `ahead_s` is known, and work is divided at will."""
    spare: Floats = np.maximum(0.0, limit_milli - highest_ahead(use, ahead_s))
    return spare
