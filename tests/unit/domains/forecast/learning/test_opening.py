"""The configured sources, opened: those that need a network only where there is one."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from domains.forecast.history.load_source import LoadSource
from domains.forecast.history.prometheus_source import PrometheusSource
from domains.forecast.history.usage_csv import CsvSource
from domains.forecast.learning.opening import open_sources, refit_settings
from domains.forecast.learning.refit import RefitSettings
from domains.forecast.service_names import PodName
from multisched.app import SystemClock
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.framework.plugin_args import PluginArgsError
from multisched.shell.workers.background_tasks import NetworkMeasures
from tests.unit.domains.forecast.history_settings import read_history_settings


async def known() -> Mapping[PodName, str]:
    return {}


def document(url: str, **more: object) -> dict[str, object]:
    sources = [{"type": "prometheus", "url": url, **more}, {"type": "metrics-api"}, {"type": "csv", "files": ["a.csv"]}]
    return {"sources": sources, "dimensions": [{"name": "cpu", "ready": "cadvisor-cpu"}], "windowDays": 1}


async def test_sources_are_opened_in_their_order() -> None:
    settings = read_history_settings(document("http://127.0.0.1:1"))
    measures = NetworkMeasures(DirectTransport(ApiServer(SystemClock())), random.Random(1))
    sources = open_sources(settings, measures, known)
    assert [type(source) for source in sources] == [PrometheusSource, LoadSource, CsvSource]
    assert [type(source) for source in open_sources(settings, None, known)] == [CsvSource]
    assert refit_settings(settings) == RefitSettings(3_600.0, 300.0, 288)


async def test_unusable_certificates_are_refused_at_the_start() -> None:
    settings = read_history_settings(document("https://127.0.0.1:1", tls={"caFile": "/nowhere/ca.pem"}))
    measures = NetworkMeasures(DirectTransport(ApiServer(SystemClock())), random.Random(1))
    with pytest.raises(
        PluginArgsError, match=r"args\.history\.sources: prometheus https://127.0.0.1:1: tls cannot be used"
    ):
        open_sources(settings, measures, known)
