"""The hooks of the forecast domain for one run: PeakForecast learns from the scenario's usage, and repairs in windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from domains.forecast.simulation.args import with_scenario
from domains.forecast.simulation.fits import FitCache, LearningSettings, Refits
from domains.forecast.simulation.repair_section import Repair, repair_windows
from domains.forecast.simulation.repairs import Repairs
from multisched.config.schema import Configuration
from multisched.simulate.contribution import RunExtension, RunReport, ServicesRun, TimedStep
from multisched.simulate.scenario import Policy, Scenario
from multisched.simulate.scenario_time import format_time


class ForecastRun(RunExtension):
    """The hooks; without PeakForecast in the policy they do nothing."""

    def __init__(self, scenario: Scenario, policy: Policy, fits: FitCache) -> None:
        self._scenario = scenario
        self._policy = policy
        self._fits = fits
        self._learning: Mapping[str, LearningSettings] = {}
        self._refits: Refits | None = None
        self._repair: Repair | None = policy.sections.get("repair")
        self._repairs: Repairs | None = None

    def configured(self, configuration: Configuration) -> Configuration:
        dimensions, scheduler_name = self._scenario.usage.dimensions, self._policy.scheduler_name
        configuration, self._learning = with_scenario(configuration, scheduler_name, dimensions, self._repair_args())
        return configuration

    def _repair_args(self) -> Mapping[str, Any] | None:
        if self._repair is None:
            return None
        _, in_window = self._repair.moves(self._scenario.replicas)
        return {**self._repair.args, "movesPerWindow": in_window}

    def begin(self, run: ServicesRun) -> None:
        self._refits = Refits(self._fits, self._scenario.known_until_s, run.cluster, self._learning)
        if self._repair is not None:
            self._repairs = Repairs(run, self._repair, self._scenario.replicas)

    def on_time(self, epoch_s: float) -> None:
        assert self._refits is not None, "begin comes first"
        self._refits.refit_due(epoch_s)

    def timed_steps(self) -> Sequence[TimedStep]:
        if self._repair is None or self._repairs is None:
            return ()
        windows = repair_windows(self._repair, self._scenario)
        return [TimedStep(one.opens_s, partial(self._repairs.repair_in, one)) for one in windows]

    def report(self) -> RunReport:
        results = () if self._repairs is None else self._repairs.results
        repairs = [{"at": format_time(one.opens_s), "moves": one.moves, "stopped": one.reason} for one in results]
        notes = (f"repair of {format_time(one.opens_s)}: {one.reason}" for one in results if one.reason)
        return RunReport({"repairs": repairs}, tuple(notes))
