"""`multisched run` whose source of history fails: placement goes on by the last good profiles, and says how old they are and why."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import numpy as np
import pytest
import yaml

from domains.forecast.curves.profiles_file import dumps, loads
from multisched.forecasting.profiles import Origin, Profiles
from multisched.testing.builders import node_document
from tests.integration.program.command import Command, multisched
from tests.integration.program.faulty_api import FaultyApi
from tests.integration.program.test_bad_answers import all_bound, forecast_pod, metric, read, url_of
from tests.perf.history_server import HistoryServer, service_name
from tests.unit.client.servers import serving

pytestmark = pytest.mark.slow

VERSION: Final = 7
AGE_S: Final = 7_200
PODS: Final = 20
DIMENSIONS: Final = ("cpu", "log")
STEP_S: Final = 3_600


def configuration(url: str, file: Path) -> dict[str, Any]:
    source = {
        "type": "prometheus",
        "url": url,
        "owners": False,
        "tries": 1,
        "timeoutSeconds": 1,
        "answerBytesMax": 1_000_000,
    }
    dimensions = [
        {"name": name, "query": f"sum by (namespace, pod) (rate(use_{name}[$window]))", "capacity": "10"}
        for name in DIMENSIONS
    ]
    history = {"stepSeconds": STEP_S, "windowDays": 14, "sources": [source], "dimensions": dimensions}
    plugin = {"name": "PeakForecast", "weight": 5, "args": {"profilesFile": str(file), "history": history}}
    return {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "domains": [{"name": "forecast", "profile": {"plugins": {"enabled": [plugin]}}}],
        "lease": {"enabled": False},
        "server": {"port": 0},
        "logging": {"level": "debug"},
    }


def profiles_of_before() -> Profiles:
    shape = (PODS // 2, len(DIMENSIONS))
    curve = np.full((*shape, 168), 0.4, np.float32)
    names = tuple(f"bench/{service_name(number)}" for number in range(shape[0]))
    origin, error = np.full(shape, Origin.SEASONAL, np.uint8), np.full(shape, 0.25, np.float32)
    newest_s = time.time() - AGE_S
    return Profiles(VERSION, newest_s, newest_s, names, DIMENSIONS, curve, curve, curve, origin, error)


@asynccontextmanager
async def history(kind: str) -> AsyncIterator[str]:
    if kind == "down":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{closed.getsockname()[1]}"
    else:
        async with serving(HistoryServer(kind, PODS).handle) as url:
            yield url


@asynccontextmanager
async def running(kind: str, folder: Path) -> AsyncIterator[tuple[Command, str, Path]]:
    """(the program, its address, the file of its profiles) after its first refit, with a pod placed before and one after."""
    kubeconfig, config, file = folder / "kubeconfig", folder / "config.yaml", folder / "profiles"
    await anyio.Path(file).write_bytes(dumps(profiles_of_before()))
    async with FaultyApi.start() as api, history(kind) as source:
        await anyio.Path(config).write_text(yaml.safe_dump(configuration(source, file)))
        api.write_kubeconfig(kubeconfig)
        await api.create("/api/v1/nodes", node_document("n1"))
        await api.create("/api/v1/namespaces/default/pods", forecast_pod("before"))
        async with multisched("run", "--kubeconfig", str(kubeconfig), "--config", str(config)) as command:
            url = await url_of(command)
            await all_bound(api, 1)
            await until(url, "forecast_refits_total", "forecast_refit_failures_total")
            await api.create("/api/v1/namespaces/default/pods", forecast_pod("after"))
            await all_bound(api, 2)
            yield command, url, file
            ended = await command.end()
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err


async def until(url: str, *names: str) -> str:
    """The metrics, once one of these is above zero."""
    async with asyncio.timeout(60):
        while True:
            text = await anyio.to_thread.run_sync(read, f"{url}/metrics")
            if any(metric(text, name) for name in names):
                return text
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("down", "cannot be reached"),
        ("empty", "dimension cpu had samples before and has none now"),
    ],
)
async def test_last_good_profiles_stay_in_force_and_readiness_shows_their_age(
    kind: str, words: str, tmp_path: Path
) -> None:
    """tests/unit/domains/forecast/learning/test_refit.py has further kinds of failure."""
    async with running(kind, tmp_path) as (_, url, file):
        metrics = await anyio.to_thread.run_sync(read, f"{url}/metrics")
        ready = await anyio.to_thread.run_sync(read, f"{url}/readyz?verbose")
    assert metric(metrics, "forecast_profiles_version") == VERSION
    assert metric(metrics, "forecast_services") == PODS // 2
    assert AGE_S <= metric(metrics, "forecast_profiles_age_seconds") < AGE_S + 120
    assert metric(metrics, "forecast_refit_failures_in_a_row") == 1
    assert metric(metrics, "forecast_refit_last_error_time_seconds") == pytest.approx(time.time(), abs=600)
    assert metric(metrics, "forecast_node_peak_ratio") > 0
    assert "[+]caches ok\n" in ready
    assert "[+]plugins ok: forecast/PeakForecast: profiles 7, 2 h old; 1 refit failed, the last " in ready
    assert words in ready
    assert ready.endswith("\nok\n")
    assert loads(file.read_bytes()).version == VERSION, "the next life begins with them, too"


async def test_hundredfold_spikes_do_not_change_the_profiles(tmp_path: Path) -> None:
    async with running("spikes", tmp_path) as (_, url, file):
        metrics = await anyio.to_thread.run_sync(read, f"{url}/metrics")
        found = loads(await anyio.Path(file).read_bytes())
    assert metric(metrics, "forecast_profiles_version") == found.version == VERSION + 1
    assert 0.2 < np.median(found.peak) < 0.6
    assert found.peak.max() < 1.0


async def test_killed_refit_process_affects_nothing_else(tmp_path: Path) -> None:
    async with running("slow", tmp_path) as (command, url, _):
        [child] = await children_of(command.process.pid)
        os.kill(child, signal.SIGKILL)
        assert "ok" in await anyio.to_thread.run_sync(read, f"{url}/readyz")
    assert not await anyio.Path(f"/proc/{child}").exists()


async def test_refit_process_ends_with_the_program(tmp_path: Path) -> None:
    async with running("slow", tmp_path) as (command, _, _):
        [child] = await children_of(command.process.pid)
    assert not await anyio.Path(f"/proc/{child}").exists()


async def children_of(pid: int) -> list[int]:
    text = await anyio.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    others = [anyio.Path(task) async for task in anyio.Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    texts = [text, *[await (task / "children").read_text() for task in others]]
    return [int(child) for one in texts for child in one.split()]
