"""Learning of profiles from configured sources, and the profiles file that saves them across restarts.

Imported only if `history` or `profilesFile` is configured, because the import takes longer than the rest of the domain.
`learn` runs in the background process, or in a worker thread. The profiles file is replaced atomically.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from domains.forecast.curves.capacity import Capacity, MeasuredCapacity
from domains.forecast.curves.profiles_file import ProfilesFileError, dumps, loads
from domains.forecast.history.source import Reading
from domains.forecast.learning.attributed import with_attribution
from domains.forecast.learning.attribution import AttributionSettings, attribute
from domains.forecast.learning.opening import open_sources, openable, refit_settings
from domains.forecast.learning.refit import BackgroundStudy, Refit
from domains.forecast.ledger.node_loads import NodeLoads
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.service import service_of
from domains.forecast.service_names import PodName
from domains.forecast.settings.learning import LearningSettings
from domains.forecast.settings.sources import CsvSettings, LoadSettings, PrometheusSettings, SourceSettings
from multisched.forecasting.fit import fit
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.recent import recent_of
from multisched.framework.context import PluginContext
from multisched.framework.plugin_args import PluginArgsError

PODS_PER_PIECE: Final = 2_000
"""Pods processed before yielding to the event loop: about two milliseconds."""

logger = logging.getLogger(__name__)


class Learner:
    """Loads the saved profiles, and creates the refit."""

    def __init__(self, settings: LearningSettings, capacities: Mapping[str, Capacity | MeasuredCapacity]) -> None:
        self._settings = settings
        self._measured = {name: one for name, one in capacities.items() if isinstance(one, MeasuredCapacity)}
        self._known = self._of_before()

    @property
    def known(self) -> Profiles | None:
        """Returns the profiles saved by an earlier run; None if there are none."""
        return self._known

    def refit(self, context: PluginContext, ledger: PeakLedger, adopt: Callable[[Profiles], None]) -> Refit | None:
        """Creates the refit, to be run in the background; returns None without a source. What-if and simulations read
        files only."""
        history = self._settings.history
        if history is None:
            return None

        async def pods() -> Mapping[PodName, str]:
            return await known_pods(ledger)

        loads = NodeLoads(ledger, ledger.rows if context.rows is None else context.rows)
        sources = open_sources(history, context.measures, pods, loads.note_uses)
        if not sources:
            return None
        ledger.keep_pods()
        lesson = learning_task_of(self._settings, openable(history, context.measures))
        return Refit(
            sources,
            partial(learn, self._settings),
            adopt,
            refit_settings(history),
            self._known,
            background=BackgroundStudy("domains.forecast.learning.process:learning_assistant", lesson, pods),
            keep=partial(keep, self._settings),
            measured=self._measure,
            loads=loads,
            covered=self._covered(),
        )

    def _covered(self) -> frozenset[str]:
        """Returns the dimensions with values in the saved profiles that are still configured."""
        if self._known is None:
            return frozenset()
        asked = {one.name for one in self._settings.dimensions}
        return frozenset(
            name
            for number, name in enumerate(self._known.dimensions)
            if name in asked and np.isfinite(self._known.peak[:, number]).any()
        )

    def _measure(self, capacities: Mapping[str, Mapping[str, float]]) -> None:
        for name, capacity in self._measured.items():
            answered = capacities.get(name)
            if answered:  # an empty answer does not replace earlier values
                capacity.measure(answered)

    def _of_before(self) -> Profiles | None:
        """Reads the saved profiles. Raises PluginArgsError if the file is unusable and no history is configured."""
        file, is_needed = self._settings.profiles_file, self._settings.history is None
        if not file:
            return None
        try:
            return loads(Path(file).read_bytes())
        except (OSError, ProfilesFileError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            if is_needed:
                raise PluginArgsError.at("args.profilesFile", f"{file}: {text}; name a profiles file") from error
            if not isinstance(error, FileNotFoundError):
                logger.warning("saved profiles are not used", extra={"file": file, "error": text})
            return None


class LearningTask(msgspec.Struct, frozen=True):
    """Settings of learning in the background process. Picklable."""

    settings: LearningSettings
    sources: Mapping[int, CsvSettings | PrometheusSettings]
    """The sources read in the process (all except polling ones), by index in the configuration."""


def learning_task_of(settings: LearningSettings, sources: Sequence[SourceSettings]) -> LearningTask:
    return LearningTask(
        settings, {index: one for index, one in enumerate(sources) if not isinstance(one, LoadSettings)}
    )


def learn(settings: LearningSettings, reading: Reading, version: int, now_s: float) -> Profiles:
    """Learns profiles, with attribution of dimensions measured only per node. Raises ValueError."""
    asked = settings.fit
    profiles = fit(reading.usage, asked, version, now_s)
    if reading.totals is not None:
        how = AttributionSettings(zone=asked.zone, rest_days=asked.rest_days, quantile=asked.quantile)
        profiles = with_attribution(profiles, attribute(reading.totals, how))
    recent = recent_of(reading.usage, asked.zone, asked.slot_s)
    return msgspec.structs.replace(profiles, recent=recent)


def keep(settings: LearningSettings, profiles: Profiles) -> str:
    """Writes the profiles file, if configured; returns an error text or "". A failure does not invalidate the profiles."""
    file = settings.profiles_file
    if not file:
        return ""
    temporary = Path(f"{file}.new")
    try:
        temporary.write_bytes(dumps(profiles))
        os.replace(temporary, file)
    except OSError as error:
        return f"{file}: {error.strerror or error}"
    return ""


async def known_pods(ledger: PeakLedger) -> dict[PodName, str]:
    """Returns (namespace, name) -> service of all assumed and confirmed pods."""
    pods = list((ledger.pods or {}).values())
    found: dict[PodName, str] = {}
    for start in range(0, len(pods), PODS_PER_PIECE):
        found |= {(pod.namespace, pod.name): service_of(pod) for pod in pods[start : start + PODS_PER_PIECE]}
        await asyncio.sleep(0)
    return found
