"""Opens the sources that the configuration names, for the plugin that learns from them."""

from __future__ import annotations

from domains.forecast.capacity import SettingError
from domains.forecast.load_source import LoadSource
from domains.forecast.prometheus_source import KnownPods, PrometheusSource
from domains.forecast.refit import RefitSettings
from domains.forecast.source import Source
from domains.forecast.source_settings import CsvSettings, HistorySettings, LoadSettings, PrometheusSettings
from domains.forecast.usage_csv import CsvSource
from multisched.framework.measures import Measures, MeterError


def open_sources(settings: HistorySettings, measures: Measures | None, known: KnownPods) -> list[Source]:
    """In the order of the configuration, which is their precedence. Nothing is asked yet.

    Without `measures` (what-if, simulations) only files are opened. Raises SettingError for certificates that cannot be used.
    """
    found: list[Source] = []
    for one in settings.sources:
        match one:
            case CsvSettings():
                found.append(CsvSource(one, settings.dimensions))
            case PrometheusSettings() if measures is not None:
                try:
                    meter = measures.meter(one.meter)
                except MeterError as error:
                    raise SettingError(f"args.history.sources: {error}") from error
                found.append(PrometheusSource(one, meter, settings.dimensions, known))
            case LoadSettings() if measures is not None:
                found.append(LoadSource(one, measures.load(), settings.dimensions, known, settings.step_s))
    return found


def refit_settings(settings: HistorySettings) -> RefitSettings:
    """When history is read, and how much of it."""
    return RefitSettings(float(settings.refresh_s), float(settings.step_s), settings.steps)
