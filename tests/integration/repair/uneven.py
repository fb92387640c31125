"""A small cluster that a foreign scheduler made uneven: two log-heavy services with little CPU, too many of them on one node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson

from domains.forecast.forecast import Forecast
from multisched.cluster.api.direct import DirectTransport
from multisched.model.wire import MERGE_PATCH
from multisched.testing.builders import Document, container, pod_document
from multisched.whatif.repair_source import RepairPlans
from tests.integration.plugins.program_cluster import ProgramCluster, one_domain, open_cluster
from tests.unit.domains.forecast.profiles import make_profiles

EVENING: Any = np.where(np.arange(168) % 24 == 20, 40.0, 2.0)
MORNING: Any = np.where(np.arange(168) % 24 == 8, 40.0, 2.0)
CPU: Any = np.full(168, 0.05)
PROFILES = make_profiles(
    ("cpu", "log"),
    chatty={"cpu": CPU, "log": EVENING},
    early={"cpu": CPU, "log": MORNING},
    quiet={"cpu": CPU, "log": np.full(168, 1.0)},
)
LOG_CAPACITY = 100


def configuration(profiles: str = "", **repair: Any) -> str:
    """PeakForecast as a score and as a filter that refuses nodes past 50 %: a plan must not go by that."""
    args: dict[str, Any] = {
        "capacities": {"log": LOG_CAPACITY},
        "dimensions": ["cpu", "log"],
        "mode": "both",
        "thresholdPercent": 50,
        "repair": {"thresholdPercent": {"log": 100}, **repair},
    }
    if profiles:
        args["profilesFile"] = profiles
    return one_domain({"name": "PeakForecast", "args": args})


READY: Document = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "reason": ""}]}


def service_pod(name: str, service: str, node: str, **fields: Any) -> Document:
    """A replica of the service. `owner`, `labels`, `annotations`, `spec`, `status`, `cpu`, `scheduler`."""
    owner = {"kind": "ReplicaSet", "apiVersion": "apps/v1", "name": service, "uid": f"rs-{service}", "controller": True}
    return pod_document(
        name,
        container(cpu=fields.get("cpu", "100m")),
        node=node,
        labels={"app": service, **fields.get("labels", {})},
        annotations=fields.get("annotations", {}),
        metadata={"ownerReferences": [owner] if fields.get("owner", True) else []},
        status=fields.get("status", READY),
        schedulerName=fields.get("scheduler", "tests-scheduler"),
        **fields.get("spec", {}),
    )


async def put(cluster: ProgramCluster, name: str, service: str, node: str, **fields: Any) -> None:
    """A foreign scheduler binds a pod of ours, and it comes to be ready."""
    document = service_pod(name, service, node, **fields)
    transport, pods = DirectTransport(cluster.server), "/api/v1/namespaces/default/pods"
    answer = await transport.request("POST", pods, body=orjson.dumps(document))
    assert answer.status == 201, answer.body
    status = orjson.dumps({"status": document["status"]})
    answer = await transport.request("PATCH", f"{pods}/{name}/status", body=status, content_type=MERGE_PATCH)
    assert answer.status == 200, answer.body


async def known(cluster: ProgramCluster, *names: str) -> None:
    """The program has seen these pods ready."""

    def are_ready() -> bool:
        return {entry.pod.name for entry in cluster.program.cache if entry.pod.is_ready} >= set(names)

    await cluster.until(are_ready)


def forecast(cluster: ProgramCluster) -> Forecast:
    (found,) = [b.plugin for b in cluster.worker().plugins.built if isinstance(b.plugin, Forecast)]
    return found


@asynccontextmanager
async def uneven(
    text: str = "", nodes: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[ProgramCluster, RepairPlans]]:
    """Three pods of `chatty` on n0, 120 % of its log at 20:00, and one of `early` on each other node. `nodes`: name -> CPU."""
    text = text or configuration()
    async with open_cluster(text) as cluster:
        for name, cpu in (nodes or dict.fromkeys(("n0", "n1", "n2"), "8")).items():
            await cluster.node(name, cpu=cpu)
        placed = {f"chatty-{number}": ("chatty", "n0") for number in range(3)}
        placed |= {f"early-{name}": ("early", name) for name in (nodes or ("n0", "n1", "n2")) if name != "n0"}
        for name, (service, node) in placed.items():
            await put(cluster, name, service, node)
        await known(cluster, *placed)
        forecast(cluster).adopt(PROFILES)
        yield cluster, RepairPlans(cluster.program)
