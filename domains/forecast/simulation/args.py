"""The args of PeakForecast in a run: the scenario's dimensions, capacities and usage replace what a cluster would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from domains.forecast.peak_forecast import PeakForecast
from domains.forecast.settings.args import PeakSettings
from domains.forecast.simulation.fits import LearningSettings
from multisched.config.schema import Configuration
from multisched.framework.registry import PluginUse
from multisched.simulate.policies import plugins_of, with_plugin
from multisched.simulate.scenario import CAPACITY_ANNOTATION
from multisched.simulate.scenario_time import DAY_S

FORECAST: Final = PeakForecast.name
OWN: Final = {"files", "historyDir", "profilesFile"}
"""Args by which PeakForecast loads its profiles itself, independent of the scenario."""
LEARNED: Final = {"history", "fit"}
"""Args that configure how it learns from the scenario's usage."""


def with_scenario(
    configuration: Configuration, scheduler_name: str, dimensions: Sequence[str], repair: Mapping[str, Any] | None
) -> tuple[Configuration, dict[str, LearningSettings]]:
    """Gives PeakForecast, in every domain that runs it, the scenario's dimensions and capacities. Returns how it learns, per domain.

    If its args configure a history, the scenario's usage replaces the sources, refitted as often as the args say. Files and
    imported profiles stay as configured.
    `repair`: args of its repair in the domain that serves `scheduler_name`, which places the services.
    """
    settings: dict[str, LearningSettings] = {}
    for index, domain in enumerate(configuration.domains):
        uses = plugins_of(domain)
        if FORECAST in uses:
            args = _forecast_args(uses[FORECAST], dimensions)
            if not OWN & set(args):
                settings[domain.name] = _learning_settings(args)
                args = {key: value for key, value in args.items() if key not in LEARNED}
            if repair is not None and scheduler_name in domain.scheduler_names:
                args["repair"] = {**(args.get("repair") or {}), **repair}
            configuration = with_plugin(configuration, index, FORECAST, uses[FORECAST].weight, args)
    return configuration, settings


def _forecast_args(use: PluginUse, dimensions: Sequence[str]) -> dict[str, Any]:
    args = {
        "dimensions": list(dimensions),
        "capacities": {name: {"annotation": CAPACITY_ANNOTATION + name} for name in dimensions},
        **use.args,
    }
    if use.args.get("history") is not None:
        args.pop("profilesFile", None)  # profiles learned from the replaced history
        weights = PeakSettings.from_config(use.args).weights
        args["weights"] = {name: weights[name] for name in dimensions if name in weights}
        repair = args.get("repair") or {}
        thresholds = repair.get("thresholdPercent")
        if isinstance(thresholds, Mapping):
            thresholds = {name: thresholds[name] for name in dimensions if name in thresholds}
            args["repair"] = {**repair, "thresholdPercent": thresholds}
    return args


def _learning_settings(args: Mapping[str, Any]) -> LearningSettings:
    """Reads how PeakForecast learns from args that have been validated."""
    settings = PeakSettings.from_config(args)
    history = None if settings.learning is None else settings.learning.history
    if history is None:
        return LearningSettings(settings.fit_of_files(), settings.window_days)
    window_days = history.steps * history.step_s / DAY_S
    return LearningSettings(settings.fit_of_files(), window_days, float(history.refresh_s))
