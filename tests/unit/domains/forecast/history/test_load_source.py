"""The metrics API as a source: what was seen at each look, kept for the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from domains.forecast.history import load_source
from domains.forecast.history.load_source import LoadSource
from domains.forecast.history.source import PollingSource, Reading, SourceError, merged
from domains.forecast.learning.learning_run import covered_by, refuse_empty
from domains.forecast.service_names import PodName
from domains.forecast.settings.sources import Aggregation, Dimension, LoadSettings
from multisched.forecasting.usage import Usage
from multisched.framework.measures import Grid, MeterError, PodUse
from tests.unit.domains.forecast.history.prometheus_kit import in_thread

STEP_S = 300.0


class PolledMetrics:
    """What the API answers, look by look."""

    def __init__(self, *polls: dict[str, float] | None) -> None:
        self._looks = list(polls)

    async def pods(self) -> tuple[PodUse, ...]:
        poll_result = self._looks.pop(0)
        if poll_result is None:
            raise MeterError("metrics.k8s.io: HTTP 503")
        return tuple(PodUse("shop", name, cores, cores * 100) for name, cores in poll_result.items())


def source_of(*polls: dict[str, float] | None, aggregation: Aggregation = Aggregation.MEAN) -> LoadSource:
    async def known() -> Mapping[PodName, str]:
        return {("shop", "a"): "web", ("shop", "b"): "web"}

    dimensions = [Dimension("cpu", aggregation=aggregation), Dimension("log"), Dimension("memory")]
    return LoadSource(LoadSettings(60), PolledMetrics(*polls), dimensions, known, STEP_S)


@pytest.mark.parametrize(("aggregation", "cpu"), [(Aggregation.MEAN, 3.0), (Aggregation.MAX, 4.0)])
async def test_polls_within_a_step_become_one_sample(aggregation: Aggregation, cpu: float) -> None:
    source = source_of({"a": 1, "b": 3}, {"a": 4}, {"db-0": 7}, aggregation=aggregation)
    assert isinstance(source, PollingSource)
    for now_s in (300.0, 599.0, 900.0):
        await source.poll(now_s)
    usage = (await source.read(Grid(0.0, STEP_S, 4), in_thread)).usage
    assert (usage.services, usage.dimensions) == (("shop/db", "shop/web"), ("cpu", "memory"))
    nan = np.nan
    np.testing.assert_array_equal(usage.values[1, 0], [nan, cpu, nan, nan])
    np.testing.assert_array_equal(usage.values[1, 1], [nan, 300, nan, nan])
    np.testing.assert_array_equal(usage.values[0, 0], [nan, nan, nan, 7])


async def test_samples_outside_the_window_are_dropped() -> None:
    source = source_of({"a": 1}, {"a": 2})
    await source.poll(0.0)
    await source.poll(STEP_S)
    for _ in range(2):
        usage = (await source.read(Grid(STEP_S, STEP_S, 2), in_thread)).usage
        np.testing.assert_array_equal(usage.values[0, 0], [2, np.nan])
    assert not covered_by(await source.read(Grid(10 * STEP_S, STEP_S, 2), in_thread))


async def test_source_without_a_poll_is_empty_with_the_reason() -> None:
    source = source_of(None)
    reading = await source.read(Grid(0.0, STEP_S, 2), in_thread)
    assert (reading.usage.services, reading.notes) == ((), ("metrics-api: no poll within the window yet",))
    with pytest.raises(SourceError):
        await source.poll(0.0)
    reading = await source.read(Grid(0.0, STEP_S, 2), in_thread)
    assert reading.notes == ("metrics-api: metrics.k8s.io: HTTP 503",)


async def test_cluster_without_the_metrics_api_uses_the_other_sources() -> None:
    values = np.ones((1, 1, 2), np.float32)
    beside = Reading(Usage(0.0, STEP_S, ("shop/web",), ("cpu",), values))
    silent = await source_of().read(Grid(0.0, STEP_S, 2), in_thread)
    both = merged([beside, silent], 2)
    assert (both.usage.services, covered_by(both)) == (("shop/web",), frozenset({"cpu"}))
    assert both.notes == silent.notes
    with pytest.raises(SourceError, match=r"no sample in the window \(metrics-api: no poll"):
        refuse_empty(silent, frozenset())


async def test_failed_poll_is_reported_and_earlier_samples_are_kept() -> None:
    source = source_of({"a": 1}, None)
    await source.poll(0.0)
    with pytest.raises(SourceError, match=r"metrics-api: metrics\.k8s\.io: HTTP 503"):
        await source.poll(60.0)
    assert (await source.read(Grid(0.0, STEP_S, 1), in_thread)).usage.values[0, 0, 0] == 1


async def test_number_of_kept_samples_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_source, "SAMPLES_MAX", 6)
    source = source_of(*[{"a": float(number)} for number in range(5)])
    for step in range(5):
        await source.poll(step * STEP_S)
    usage = (await source.read(Grid(0.0, STEP_S, 5), in_thread)).usage
    np.testing.assert_array_equal(usage.values[0, 0], [np.nan, np.nan, np.nan, 3, 4])


async def test_each_successful_poll_is_passed_to_the_listener() -> None:
    heard: list[tuple[float, int]] = []

    async def hear(now_s: float, uses: Sequence[PodUse]) -> None:
        heard.append((now_s, len(uses)))

    async def known() -> Mapping[PodName, str]:
        return {}

    polls = PolledMetrics({"a": 1, "b": 3}, None)
    source = LoadSource(LoadSettings(60), polls, [Dimension("cpu")], known, STEP_S, hear)
    await source.poll(300.0)
    with pytest.raises(SourceError):
        await source.poll(360.0)
    assert heard == [(300.0, 2)]
