"""A busy program under a real Prometheus: all domains, gangs, quotas with a reclaim, a forecast, pods that cannot be placed.

`busy(folder)` starts the embedded cluster, Prometheus with a history of the services, and `multisched run`; it yields once
everything that a metric is about has happened. Everything ends with the block.
"""

from __future__ import annotations

import json
import math
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import orjson
import yaml

from multisched.client.transport import connect
from multisched.cluster.seed import demo_workload
from multisched.model.wire import Transport
from tests.real.program import Program
from tests.real.prometheus_server import Scraped, Series, free_port, make_blocks, serving
from tests.unit.plugins.quota.trees import acks_example

CRDS: Final = Path(__file__).parents[2] / "deploy" / "crds"
MULTISCHED: Final = Path(sys.executable).with_name("multisched")
NODES: Final = 60
JOB_PODS: Final = 200
LIMIT_S: Final = 150
ERROR_CHARS: Final = 300
SCRAPES_MAX: Final = 20
POLL_S: Final = 1.0
HISTORY_DAYS: Final = 9
HISTORY_STEP_S: Final = 600
SERVICES: Final = ("web", "api", "search", "ingest", "cache", "reports")
GANG: Final = "pod-group.scheduling.sigs.k8s.io"
PATHS: Final = {
    "Namespace": "/api/v1/namespaces",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ElasticQuotaTree": "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/{}/elasticquotatrees",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
HAPPENED: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    ("multisched_pod_scheduling_sli_duration_seconds_count", {"domain": "forecast"}),
    ("multisched_pod_scheduling_sli_duration_seconds_count", {"domain": "gpu"}),
    ("multisched_pod_scheduling_sli_duration_seconds_count", {"domain": "job"}),
    ("multisched_quota_reclaims_total", {}),
    ("multisched_preemption_goroutines_execution_total", {"result": "success"}),
    ("multisched_unschedulable_pods", {"plugin": "NodeResourcesFit"}),
    ("multisched_pending_pods", {"queue": "gated"}),
    ("multisched_forecast_refits_total", {}),
    ("multisched_forecast_node_peak_ratio", {}),
    ("multisched_verify_runs_total", {"result": "success"}),
    ("leader_election_master_status", {"name": "multisched-forecast"}),
    ("rest_client_requests_total", {"code": "200", "method": "PUT"}),
)
"""Metrics, with some of their labels, of which a series must be above 0 before tests look."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Busy:
    """The running program and who watches it."""

    url: str
    """Of the program's own server."""
    prometheus: str
    """Of the Prometheus that scrapes it."""
    kubeconfig: Path

    async def text(self) -> str:
        """The page that is scraped. It is asked for again while others are being rendered."""
        connector = aiohttp.TCPConnector(ssl=_unverified())
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(SCRAPES_MAX):
                async with session.get(f"{self.url}/metrics") as answer:
                    text = await answer.text()
                if answer.status != 429:
                    break
                await anyio.sleep(POLL_S)
        assert answer.status == 200, (answer.status, text[:ERROR_CHARS])
        return text

    async def query(self, query: str) -> list[Json]:
        """Series of an instant query; AssertionError with Prometheus' words for one that does not parse."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.prometheus}/api/v1/query", data={"query": query}) as answer,
        ):
            document = await answer.json()
            assert document["status"] == "success", f"{query}: {document.get('error')}"
            found: list[Json] = document["data"]["result"]
            return found


@asynccontextmanager
async def busy(folder: Path, metrics: Mapping[str, Any] | None = None) -> AsyncIterator[Busy]:
    """`metrics`: the section of that name in the program's configuration."""
    port, kubeconfig = free_port(), folder / "kubeconfig"
    make_blocks(folder, _history(time.time()))
    scraped = Scraped("multisched", f"127.0.0.1:{port}", is_tls=True)
    async with serving(folder, scraped) as prometheus:
        cluster = await _start("cluster", folder, "cluster", "--kubeconfig", str(kubeconfig), "--nodes", str(NODES))
        try:
            await _until(lambda: kubeconfig.exists(), cluster)
            configuration = folder / "multisched.yaml"
            configuration.write_text(json.dumps(_configuration(port, prometheus, folder, metrics or {})))
            async with connect(kubeconfig) as transport:
                await _create(transport, _quotas())
                arguments = ("run", "--kubeconfig", str(kubeconfig), "--config", str(configuration))
                program = await _start("run", folder, *arguments)
                try:
                    await _create(transport, _workload())
                    found = Busy(f"https://127.0.0.1:{port}", prometheus, kubeconfig)
                    await _has_happened(found, program)
                    yield found
                finally:
                    with anyio.CancelScope(shield=True):
                        await program.kill()
        finally:
            with anyio.CancelScope(shield=True):
                await cluster.kill()


async def _start(name: str, folder: Path, *arguments: str) -> Program:
    return await Program.start(name, [str(MULTISCHED), *arguments], folder / f"{name}.log")


async def _until(is_so: Any, program: Program) -> None:
    for _ in range(round(LIMIT_S / POLL_S)):
        program.check_running()
        if is_so():
            return
        await anyio.sleep(POLL_S)
    raise TimeoutError(f"{program.name}: see {program.log}")


async def _has_happened(found: Busy, program: Program) -> None:
    missing: Sequence[object] = HAPPENED
    for _ in range(round(LIMIT_S / POLL_S)):
        program.check_running()
        try:
            text = await found.text()
        except aiohttp.ClientError:
            text = ""  # it does not listen yet
        missing = [(name, labels) for name, labels in HAPPENED if not _is_above_zero(text, name, labels)]
        if not missing and await found.query('count_over_time(up{job="multisched"}[1h]) > 3'):
            return
        await anyio.sleep(POLL_S)
    raise TimeoutError(f"has not happened: {missing}; see {program.log}")


def _is_above_zero(text: str, name: str, labels: Mapping[str, str]) -> bool:
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return any(
        line.startswith((f"{name}{{", f"{name} "))
        and all(one in line for one in wanted)
        and float(line.split()[-1]) > 0
        for line in text.splitlines()
    )


def _unverified() -> ssl.SSLContext:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


# -- what it is configured with ------------------------------------------------------------------------------------------


def _configuration(port: int, prometheus: str, folder: Path, metrics: Mapping[str, Any]) -> Json:
    history = {
        "stepSeconds": HISTORY_STEP_S,
        "windowDays": HISTORY_DAYS,
        "sources": [{"type": "prometheus", "url": prometheus, "owners": False}],
        "dimensions": [
            {"name": "cpu", "query": "sum by (namespace, pod) (last_over_time(pod_cpu[$window]))"},
        ],
    }
    forecast = {"name": "PeakForecast", "args": {"history": history, "profilesFile": str(folder / "profiles")}}
    fast = {"maxBackoff": "1s"}
    return {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "domains": [
            {"name": "forecast", "profile": {"plugins": {"enabled": [forecast]}}, "queue": fast},
            {"name": "gpu", "queue": fast},
            {"name": "job", "queue": fast},
        ],
        "server": {"port": port, "tls": {"selfSigned": True}, "authentication": False},
        "verify": {"every": "10s"},
        **({"metrics": dict(metrics)} if metrics else {}),
    }


def _history(now_s: float) -> Iterator[Series]:
    """CPU of one pod of each service, highest at 20:00 UTC."""
    end = int(now_s // HISTORY_STEP_S)
    moments = [number * HISTORY_STEP_S for number in range(end - HISTORY_DAYS * 86_400 // HISTORY_STEP_S, end)]
    for service in SERVICES:
        labels = {"namespace": "default", "pod": f"{service}-6d4cf56db6-x7k2p"}
        day = [(1 + math.cos(2 * math.pi * (at % 86_400 / 86_400 - 20 / 24))) / 2 for at in moments]
        yield "pod_cpu", labels, [(at - 1, 0.1 + 0.4 * share) for at, share in zip(moments, day, strict=True)]


# -- what happens --------------------------------------------------------------------------------------------------------


def _quotas() -> Iterator[Json]:
    for file in sorted(CRDS.glob("elasticquota*.yaml")):
        yield yaml.safe_load(file.read_text("utf-8"))
    for number in range(1, 5):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"namespace{number}"}}
    yield {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "teams", "namespace": "kube-system"},
        "spec": {"root": acks_example()},
    }


def _workload() -> Iterator[Json]:
    """The demo's; borrowers and a lender who wants it back; a whole gang and one that never is; pods that wait for ever."""
    yield from demo_workload(JOB_PODS, NODES)
    for number in range(1, 5):
        yield _deployment(f"namespace{number}")
    for number in range(3):
        yield _pod(f"whole-{number}", labels={f"{GANG}/name": "whole", f"{GANG}/min-available": "3"})
        yield _pod(f"half-{number}", labels={f"{GANG}/name": "half", f"{GANG}/min-available": "4"})
    yield _pod("too-big", cpu="4000")
    yield _pod("held-back", schedulingGates=[{"name": "example.com/wait"}])


def _pod(name: str, *, cpu: str = "100m", labels: Mapping[str, str] | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels or {})},
        "spec": {"schedulerName": "forecast-scheduler", "containers": [container], **spec},
    }


def _deployment(namespace: str) -> Json:
    labels, pod = {"app": "nginx"}, _pod("nginx", cpu="5")
    spec = {**pod["spec"], "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "nginx", "namespace": namespace},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


async def _create(transport: Transport, documents: Iterator[Json]) -> None:
    for document in documents:
        path = PATHS[document["kind"]].format(document["metadata"].get("namespace", "default"))
        answer = await transport.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body
