"""Creation of the configured sources of history."""

from __future__ import annotations

from domains.forecast.history.load_source import LoadSource, OnPodUses
from domains.forecast.history.prometheus_source import KnownPods, PrometheusSource
from domains.forecast.history.source import Source
from domains.forecast.history.usage_csv import CsvSource
from domains.forecast.learning.refit import RefitSettings
from domains.forecast.settings.sources import (
    CsvSettings,
    HistorySettings,
    LoadSettings,
    PrometheusSettings,
    SourceSettings,
)
from multisched.framework.measures import Measures, MeterError, Meters
from multisched.framework.plugin_args import PluginArgsError


def open_sources(
    settings: HistorySettings, measures: Measures | None, known: KnownPods, on_pod_uses: OnPodUses | None = None
) -> list[Source]:
    """Creates the sources in the order of the configuration, which is their precedence. Sends no request.

    Without `measures` (what-if, simulations) creates only sources of files. Raises PluginArgsError for unusable
    certificates.
    """
    found: list[Source] = []
    for one in openable(settings, measures):
        if isinstance(one, LoadSettings):
            assert measures is not None
            found.append(LoadSource(one, measures.load(), settings.dimensions, known, settings.step_s, on_pod_uses))
        else:
            found.append(open_history(one, settings, measures, known))
    return found


def openable(settings: HistorySettings, measures: Measures | None) -> list[SourceSettings]:
    """Returns the settings of the sources that `open_sources` creates, in the same order."""
    return [one for one in settings.sources if measures is not None or isinstance(one, CsvSettings)]


def open_history(
    one: CsvSettings | PrometheusSettings, settings: HistorySettings, meters: Meters | None, known: KnownPods
) -> Source:
    """Creates a source that can read past data, so it may be recreated at any time. Raises PluginArgsError."""
    if isinstance(one, CsvSettings):
        return CsvSource(one, settings.dimensions)
    assert meters is not None
    try:
        meter = meters.meter(one.meter)
    except MeterError as error:
        raise PluginArgsError.at("args.history.sources", str(error)) from error
    return PrometheusSource(one, meter, settings.dimensions, known)


def refit_settings(settings: HistorySettings) -> RefitSettings:
    """Returns the schedule and window of refits."""
    return RefitSettings(float(settings.refresh_s), float(settings.step_s), settings.steps)
