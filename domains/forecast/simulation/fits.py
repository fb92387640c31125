"""The fits that PeakForecast learns in a run: of the usage measured so far, as its refits would compute them.

The scenario's usage, in virtual time, is the only source of history in a run. A policy knows the usage up to `known.until`. If it is
configured to refit periodically, it also knows what was measured since. Fits are cached for all runs of a process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.forecast import Forecast
from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.usage import Usage
from multisched.simulate.scenario import Scenario
from multisched.simulate.scenario_time import DAY_S
from multisched.simulate.virtual_cluster import VirtualCluster

FITS_MAX: Final = 64
"""Cached fits per process, one for each time at which policies learn; 360 kB each for 60 services in 3 dimensions."""


class LearningSettings(msgspec.Struct, frozen=True):
    """How the PeakForecast of one domain learns."""

    fit: FitSettings
    window_days: float
    refresh_s: float = math.inf
    """Interval between two refits; infinite: it learns once."""


class FitCache:
    """Caches the fits of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._made: dict[tuple[int, LearningSettings], Profiles] = {}

    def until(self, moment_s: float, settings: LearningSettings, version: int) -> Profiles:
        """Returns the profiles fitted to everything that was measured before the moment."""
        usage = self._scenario.usage
        end = usage.step_at(moment_s)
        key = (end, settings)
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= FITS_MAX:
                self._made.clear()
            found = self._made[key] = self._fit(end, settings)
        return msgspec.structs.replace(found, version=version)

    def _fit(self, end: int, settings: LearningSettings) -> Profiles:
        scenario, table = self._scenario, self._scenario.usage
        begin = max(0, end - int(settings.window_days * DAY_S / table.step_s))
        values = history_of(scenario, end)[:, :, begin:].astype(np.float32)
        names = tuple(service.name for service in scenario.services)
        start_s = table.start_s + begin * table.step_s
        usage = Usage(float(start_s), float(table.step_s), names, table.dimensions, values)
        return fit(usage, settings.fit, 1, float(table.start_s + end * table.step_s))


class Refits:
    """Refits the PeakForecast plugins of one run. Called between cycles, whenever time has advanced."""

    def __init__(
        self, fits: FitCache, known_until_s: float, cluster: VirtualCluster, settings: Mapping[str, LearningSettings]
    ) -> None:
        """`settings`: domain -> how its PeakForecast learns."""
        self._fits = fits
        self._known_until_s = known_until_s
        self._learners = [
            (plugin, settings[domain])
            for domain, plugin in cluster.plugins()
            if domain in settings and isinstance(plugin, Forecast)
        ]
        self._learned_s = [-math.inf] * len(self._learners)

    def refit_due(self, now_s: float) -> None:
        """Gives new profiles to each plugin whose refit is due; the first profiles are fitted to the known part of the usage."""
        for number, (plugin, settings) in enumerate(self._learners):
            if now_s < self._learned_s[number] + settings.refresh_s:
                continue
            self._learned_s[number] = now_s
            moment_s = max(self._known_until_s, now_s)
            plugin.adopt(self._fits.until(moment_s, settings, plugin.statistics().version + 1))


def history_of(scenario: Scenario, end: int) -> NDArray[np.float64]:
    """Returns float64[services, dimensions, end]: use per replica before step `end`, the mean over its series; NaN in gaps."""
    values = scenario.usage.values[:, :, :end]
    return np.stack([_mean(values[sorted(set(own))]) for own in scenario.series])


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean over the first axis, ignoring NaN."""
    count = (~np.isnan(values)).sum(0)
    total = np.nansum(values, axis=0)
    mean: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
