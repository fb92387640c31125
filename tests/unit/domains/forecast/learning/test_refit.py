"""The refit: new profiles come in force in time, and nothing that a source or the fit does takes the last good ones away."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
import pytest
from aiohttp import web

from domains.forecast.curves.node_usage import LoadRequest, MeasuredLoads
from domains.forecast.curves.predictor import Predictor
from domains.forecast.history.prometheus_source import PrometheusSource
from domains.forecast.history.source import Reading, Source, SourceError
from domains.forecast.learning.refit import RETRY_S, Refit, RefitSettings
from domains.forecast.ledger.node_loads import NodeLoads
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.settings.sources import Dimension, PrometheusSettings
from multisched.client.prometheus import PrometheusMeter
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.usage import Usage
from multisched.framework.background import BackgroundPorts, InThread
from multisched.framework.measures import Grid, MeterSettings
from multisched.testing.builders import make_node
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from tests.leaping_loop import leap
from tests.unit.client.servers import raw_serving
from tests.unit.domains.forecast.history.prometheus_kit import RealClock, SmallPrometheus, ports_at, source_of
from tests.unit.domains.forecast.profiles import no_profiles

T = TypeVar("T")
NOW_S = 1_700_000_000.0
SETTINGS = RefitSettings(interval_s=3_600, step_s=300, steps=24, deadline_s=5)
POD = {"namespace": "shop", "pod": "a"}
CPU = Dimension("cpu", "Q")


def learn(reading: Reading, version: int, now_s: float) -> Profiles:
    """The highest of each series, at all times."""
    usage = reading.usage
    with np.errstate(invalid="ignore"):
        highest = np.nanmax(np.nan_to_num(usage.values, nan=-1), axis=2, keepdims=True)
    peak = np.repeat(highest, 168, axis=2)
    shape = peak.shape[:2]
    newest_s = usage.start_s + usage.step_s * usage.values.shape[2]
    origin, error = np.ones(shape, np.uint8), np.full(shape, np.nan, np.float32)
    return Profiles(version, now_s, newest_s, usage.services, usage.dimensions, peak, peak, peak, origin, error)


class AdoptedProfiles:
    """What placement would go by."""

    def __init__(self) -> None:
        self.profiles = no_profiles()
        self.adopted: list[int] = []

    def adopt(self, profiles: Profiles) -> None:
        self.profiles = profiles
        self.adopted.append(profiles.version)


@asynccontextmanager
async def refit_on(
    server: SmallPrometheus, force: AdoptedProfiles, *dimensions: Dimension, **meter: Any
) -> AsyncIterator[Refit]:
    async with source_of(server, *(dimensions or (CPU,)), known={("shop", "a"): "web"}, **meter) as source:
        yield Refit([source], learn, force.adopt, SETTINGS)


async def test_profiles_are_learned_from_the_ended_window_and_put_in_force() -> None:
    server, force = SmallPrometheus(Q=[(POD, lambda time: time)]), AdoptedProfiles()
    async with refit_on(server, force) as refit:
        assert refit.state().detail(NOW_S) == "no profiles yet"
        assert await refit.once(ports_at(NOW_S))
        assert await refit.once(ports_at(NOW_S + 3_600))
    assert force.adopted == [1, 2]
    assert force.profiles.services == ("shop/web",)
    newest_s = (NOW_S + 3_600) // 300 * 300
    assert force.profiles.peak[0, 0, 0] == np.float32(newest_s)
    state = refit.state()
    assert (state.refits, state.version, state.newest_s, state.last_error) == (2, 2, newest_s, "")
    assert state.detail(newest_s + 7_200) == "profiles 2, 2 h old"


def broken_source(kind: str) -> Callable[[SmallPrometheus], None]:
    def break_it(server: SmallPrometheus) -> None:
        match kind:
            case "down":
                server.fail_with = web.Response(status=503, body=b"starting up")
            case "empty":
                server.queries.clear()
            case "NaN":
                server.queries["Q"] = [(POD, lambda _: "NaN")]
            case "negative":
                server.queries["Q"] = [(POD, lambda _: -1)]
            case "labels":
                server.queries["Q"] = [({}, lambda _: 1)]
            case "html":
                server.fail_with = web.Response(status=200, body=b"<html>")

    return break_it


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("down", "HTTP 503: starting up"),
        ("html", "the response is not a Prometheus range"),
        ("labels", "without the label 'namespace'"),
    ],
)
async def test_last_valid_profiles_stay_in_force_with_age_and_reason(kind: str, words: str) -> None:
    server, force = SmallPrometheus(Q=[(POD, lambda _: 5)]), AdoptedProfiles()
    async with refit_on(server, force) as refit:
        await refit.once(ports_at(NOW_S))
        broken_source(kind)(server)
        assert not await refit.once(ports_at(NOW_S + 3_600))
        assert not await refit.once(ports_at(NOW_S + 7_200))
        state = refit.state()
        assert force.adopted == [1]
        assert (state.failures, state.failures_in_a_row, state.version) == (2, 2, 1)
        assert words in state.last_error
        assert state.age_s(NOW_S + 7_200) == NOW_S + 7_200 - NOW_S // 300 * 300
        assert state.detail(NOW_S + 7_260).startswith("profiles 1, 2 h old; 2 refits failed, the last 60 s ago: ")


@pytest.mark.parametrize("kind", ["empty", "NaN", "negative"])
async def test_dimension_that_lost_all_samples_keeps_its_profiles(kind: str) -> None:
    """A window later, when nothing kept is left of the good samples."""
    later_s = NOW_S + SETTINGS.steps * SETTINGS.step_s + 3_600
    server, force = SmallPrometheus(Q=[(POD, lambda _: 5)]), AdoptedProfiles()
    async with refit_on(server, force) as refit:
        await refit.once(ports_at(NOW_S))
        broken_source(kind)(server)
        assert not await refit.once(ports_at(later_s))
        assert refit.state().last_error == (
            "dimension cpu had samples before and has none now; its last profiles stay active"
        )
        server.queries["Q"] = [(POD, lambda _: 7)]
        assert await refit.once(ports_at(later_s))
    assert force.adopted == [1, 2]
    assert force.profiles.peak[0, 0, 0] == 7


async def test_sources_without_samples_are_reported_with_their_notes() -> None:
    force = AdoptedProfiles()
    async with refit_on(SmallPrometheus(), force) as refit:
        assert not await refit.once(ports_at(NOW_S))
    assert force.adopted == []
    assert refit.state().last_error == (
        "the sources have no sample in the window (cpu: the query returns no samples; "
        "check that this server has the metric with these labels (query: Q))"
    )


async def test_impossible_spike_is_a_reported_gap() -> None:
    server, force = SmallPrometheus(Q=[(POD, lambda time: 100 if time == NOW_S // 300 * 300 else 1)]), AdoptedProfiles()
    async with refit_on(server, force) as refit:
        assert await refit.once(ports_at(NOW_S))
    assert force.profiles.peak[0, 0, 0] == 1
    told = "1 single sample is over 10 times as high as its series usually is; it counts as a gap"
    assert told in refit.state().notes


async def test_endless_or_oversized_responses_are_aborted_in_time() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for _ in range(1_000_000_000 // 65_536):
            writer.write(b" " * 65_536)
            await writer.drain()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{")
        await reader.read()

    for handler, words in ((flood, "an answer of over 1000000 bytes"), (drip, "no answer within 0.2 s")):
        force = AdoptedProfiles()
        meter = {"answer_bytes_max": 1_000_000, "timeout_s": 0.2 if handler is drip else 60.0}
        async with raw_serving(handler) as url, refit_at(url, force, **meter) as refit:
            assert not await refit.once(ports_at(NOW_S))
        assert words in refit.state().last_error
        assert force.adopted == []


@asynccontextmanager
async def refit_at(url: str, force: AdoptedProfiles, **meter: Any) -> AsyncIterator[Refit]:
    """Of a server that is none of `SmallPrometheus`."""

    async def known() -> Mapping[tuple[str, str], str]:
        return {}

    settings = PrometheusSettings(MeterSettings(url, tries=1, **meter), asks_owners=False)
    client = PrometheusMeter(settings.meter, random.Random(1))
    yield Refit([PrometheusSource(settings, client, [CPU], known)], learn, force.adopt, SETTINGS)


async def test_failed_or_hung_fit_keeps_the_last_profiles_in_force() -> None:
    server, force = SmallPrometheus(Q=[(POD, lambda _: 5)]), AdoptedProfiles()
    ending, loop, hangs = threading.Event(), asyncio.get_running_loop(), asyncio.Event()
    ways = iter(["good", "raise", "hang", "good"])

    def fickle(reading: Reading, version: int, now_s: float) -> Profiles:
        assert threading.current_thread() is not threading.main_thread()
        way = next(ways)
        if way == "raise":
            raise ZeroDivisionError("no weights")
        if way == "hang":
            loop.call_soon_threadsafe(hangs.set)
            ending.wait(600)
        return learn(reading, version, now_s)

    async def abandoning(work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)

    ports = BackgroundPorts(RealClock(NOW_S), random.Random(1), abandoning)
    async with source_of(server, CPU) as source:
        refit = Refit([source], fickle, force.adopt, RefitSettings(3_600, 300, 24, deadline_s=60.0))
        assert [await refit.once(ports) for _ in range(2)] == [True, False]
        assert refit.state().last_error == "ZeroDivisionError: no weights"
        asking = asyncio.create_task(refit.once(ports))
        await hangs.wait()
        leap(60.0)
        assert not await asking
        assert refit.state().last_error == "not learned within 60 s"
        ending.set()
        assert await refit.once(ports)
    assert force.adopted == [1, 2]


class ScriptedSource:
    """A source that says what it is told to, under virtual time."""

    name = "told"

    def __init__(self, *results: float | str) -> None:
        self._results = list(results)
        self.asked_s: list[float] = []
        self.polled_s: list[float] = []
        self.interval_s = 600.0

    async def read(self, grid: Grid, in_thread: InThread) -> Reading:
        self.asked_s.append(asyncio.get_running_loop().time())
        results = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(results, str):
            raise SourceError(results)
        values = np.full((1, 1, grid.steps), results, np.float32)
        return Reading(Usage(grid.start_s, grid.step_s, ("web",), ("cpu",), values))

    async def poll(self, now_s: float) -> None:
        self.polled_s.append(asyncio.get_running_loop().time())
        if len(self.polled_s) % 2:
            raise SourceError("not this time")


async def at_once(work: Callable[[], T]) -> T:
    return work()


def run_for(source: Source, hours: float, loads: NodeLoads | None = None) -> tuple[Refit, AdoptedProfiles]:
    loop, force = SimLoop(1), AdoptedProfiles()
    refit = Refit([source], learn, force.adopt, SETTINGS, loads=loads)

    async def live() -> None:
        ports = BackgroundPorts(SimClock(loop), random.Random(1), at_once)
        with anyio.move_on_after(hours * 3_600):
            await refit.run(ports)

    simulate(live(), loop)
    return refit, force


def test_refits_follow_the_interval_with_jitter() -> None:
    source = ScriptedSource(1.0)
    _, force = run_for(source, 10)
    waits = np.diff(source.asked_s)
    assert force.adopted == list(range(1, len(source.asked_s) + 1))
    assert len(waits) >= 8
    assert all(3_600 <= wait <= 3_960 for wait in waits)
    assert len(set(waits)) == len(waits)


def test_failed_refit_is_retried_with_growing_delays_up_to_the_interval() -> None:
    source = ScriptedSource(*["down"] * 9, 1.0)
    refit, force = run_for(source, 8)
    waits = np.diff(source.asked_s)
    for number, wait in enumerate(waits[:9]):
        least = min(3_600, RETRY_S * 2**number)
        assert least <= wait <= 1.1 * least
    assert force.adopted
    assert refit.state().failures == 9
    assert refit.state().last_error == ""


def test_polling_source_is_polled_at_its_own_interval_and_may_fail() -> None:
    source = ScriptedSource(1.0)
    refit, _ = run_for(source, 2)
    assert source.polled_s == [600.0 * number for number in range(len(source.polled_s))]
    assert len(source.polled_s) >= 12
    assert refit.state().polls_failed == (len(source.polled_s) + 1) // 2


class LoadQuerySource:
    """Can be asked about any moment, and fails every other time."""

    name = "looking"

    def __init__(self) -> None:
        self.queried_s: list[float] = []

    async def read(self, grid: Grid, in_thread: InThread) -> Reading:
        return await ScriptedSource(1.0).read(grid, in_thread)

    async def look(self, asked: LoadRequest) -> MeasuredLoads:
        self.queried_s.append(asyncio.get_running_loop().time())
        assert asked.row_of_pod == {}
        if len(self.queried_s) % 2:
            raise SourceError("not this time")
        return MeasuredLoads(by_node={"cpu": {"n": 2.0}})


def test_current_load_is_queried_once_per_step_and_may_fail() -> None:
    ledger = PeakLedger("peaks", Predictor(("cpu",)), {})
    ledger.set_node(0, make_node("n", cpu_milli=4_000))
    loads, source = NodeLoads(ledger, ledger.rows), LoadQuerySource()
    refit, _ = run_for(source, 1, loads)
    assert set(np.diff(source.queried_s).tolist()) == {SETTINGS.step_s}
    assert len(source.queried_s) >= 10
    assert loads.latest()["cpu"].shares.tolist() == [0.5]
    assert refit.state().polls_failed >= len(source.queried_s) // 2


def test_profiles_from_before_a_restart_keep_version_and_age() -> None:
    earlier = no_profiles(("cpu",))
    profiles = Profiles(
        7, 5.0, NOW_S, (), ("cpu",), earlier.peak, earlier.low, earlier.high, earlier.origin, earlier.error
    )
    refit = Refit([], learn, AdoptedProfiles().adopt, SETTINGS, profiles)
    assert refit.state().detail(NOW_S + 3 * 86_400) == "profiles 7, 3 d old"
