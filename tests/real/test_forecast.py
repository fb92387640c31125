"""From a real Prometheus to a placement: what was measured decides, and explain says so."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Final

import orjson
import pytest

from domains.forecast.forecast import Forecast
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.observe.explain_view import ExplainQuery
from multisched.shell.workers.background_tasks import NetworkMeasures
from multisched.whatif.explain_source import ProgramExplanations
from tests.integration.plugins.program_cluster import HEAD, LoopClock, ProgramCluster, open_cluster
from tests.real.prometheus_server import Series, make_blocks, serving

pytestmark = pytest.mark.timeout(240)

STEP_S: Final = 300
DAYS: Final = 9
NODES: Final = 4
REPLICAS: Final = 2
CHATTY: Final = ("audit", "trace")
"""Little CPU, and logs in the evening."""
BUSY: Final = ("web", "search")
CAPACITY: Final = "10M"


def measured(now_s: float) -> list[Series]:
    """Use of one pod of each service up to now: CPU in cores, log in bytes per second."""
    end = int(now_s // STEP_S)
    moments = [number * STEP_S for number in range(end - DAYS * 86_400 // STEP_S, end + 1)]
    found: list[Series] = []
    for service in (*CHATTY, *BUSY):
        labels = {"namespace": "default", "pod": f"{service}-0"}
        cpu, log = (0.05, 6e6) if service in CHATTY else (1.0, 1e4)
        evening = [(1 + math.cos(2 * math.pi * (at % 86_400 / 86_400 - 20 / 24))) / 2 for at in moments]
        found.append(("pod_cpu", labels, [(at - 1, cpu) for at in moments]))
        found.append(
            ("pod_log", labels, [(at - 1, 1e3 + log * share**4) for at, share in zip(moments, evening, strict=True)])
        )
    return found


def configuration(url: str, folder: Path) -> str:
    def of(name: str) -> str:
        return f"sum by (namespace, pod) (last_over_time(pod_{name}[$window]))"

    args = {
        "history": {
            "stepSeconds": STEP_S,
            "windowDays": DAYS,
            "sources": [{"type": "prometheus", "url": url, "owners": False}],
            "dimensions": [
                {"name": "cpu", "query": of("cpu"), "capacity": "allocatable"},
                {"name": "log", "query": of("log"), "capacity": CAPACITY},
            ],
        },
        "profilesFile": str(folder / "profiles"),
    }
    plugin = {"name": "PeakForecast", "weight": 5, "args": args}
    domain = {"name": "forecast", "profile": {"plugins": {"enabled": [plugin]}}}
    return HEAD + "domains: " + orjson.dumps([domain]).decode()


def forecast(cluster: ProgramCluster) -> Forecast:
    (found,) = [b.plugin for b in cluster.worker("forecast").plugins.built if isinstance(b.plugin, Forecast)]
    return found


async def test_services_with_much_logging_are_separated_and_explain_gives_the_peak_time(tmp_path: Path) -> None:
    make_blocks(tmp_path, measured(LoopClock().now().timestamp()))
    async with serving(tmp_path) as url:
        text = configuration(url, tmp_path)
        measures = NetworkMeasures(DirectTransport(ApiServer(LoopClock(), seed=0, rbac=False)), random.Random(0))
        async with open_cluster(text, measures=measures) as cluster:
            for number in range(NODES):
                await cluster.node(f"n{number}")
            await cluster.until(lambda: _is_learned(cluster), within_s=90)
            names = [f"{service}-{replica}" for replica in range(REPLICAS) for service in (*CHATTY, *BUSY)]
            for name in names:
                labels = {"multisched.io/service": name.rpartition("-")[0]}
                await cluster.pod(name, scheduler="forecast-scheduler", cpu="500m", labels=labels)
            await cluster.bound(*names)
            chatty = {name: cluster.node_of(name) for name in names if name.rpartition("-")[0] in CHATTY}
            assert len(set(chatty.values())) == len(chatty), f"they share nodes: {chatty}"

            explained = ProgramExplanations(cluster.program)
            view = await explained.pod(ExplainQuery("default", "audit-0", node=chatty["trace-0"]))
            [own, other] = [note for note in view.notes if note.startswith("PeakForecast about ")]
            assert f"about {chatty['audit-0']}: with this pod, the highest predicted load of the node is log at " in own
            assert (
                f"about {chatty['trace-0']}: with this pod, the highest predicted load of the node is log at " in other
            )
            assert _percent(own) < 75 < 100 < _percent(other) < 150
            await cluster.until(lambda: figure(cluster, "forecast_catch_up_rows") == 0)
            assert figure(cluster, "forecast_pods", "own") == len(names)
            assert 0.6 < figure(cluster, "forecast_node_peak_ratio", "log", "100") < 0.75, "each node has one of them"
            await cluster.at_rest()


def figure(cluster: ProgramCluster, name: str, *labels: str) -> float:
    [metric] = [one for one in forecast(cluster).metrics(LoopClock().now().timestamp()) if one.name == name]
    return metric.values[labels]


def _is_learned(cluster: ProgramCluster) -> bool:
    state = forecast(cluster).refit_state()
    assert state is not None
    assert not state.last_error, state.last_error
    return state.refits == 1


def _percent(note: str) -> int:
    return int(note.partition(" % of capacity")[0].rpartition(": ")[2])
