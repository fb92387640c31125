"""Helpers for gangs: members in any of the APIs, and what users see of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.model.gang import ACK_MIN, ACK_NAME, KOORDINATOR
from tests.integration.plugins.program_cluster import ProgramCluster, install_definitions

PODS = "/api/v1/namespaces/default/pods"
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
SCHEDULER = "forecast-scheduler"


def ack(gang: str, least: int) -> dict[str, Any]:
    """Metadata by ACK's labels."""
    return {"labels": {ACK_NAME: gang, ACK_MIN: str(least)}}


def koordinator(gang: str, least: int, **fields: str) -> dict[str, Any]:
    """Metadata by Koordinator's annotations; `waiting_time` stands for waiting-time."""
    said = {"name": gang, "min-available": str(least), "match-policy": "waiting-and-running"}
    said |= {key.replace("_", "-"): text for key, text in fields.items()}
    return {"annotations": {f"{KOORDINATOR}{key}": text for key, text in said.items()}}


async def member(
    cluster: ProgramCluster,
    name: str,
    metadata: Mapping[str, Any],
    *,
    cpu: str = "1",
    namespace: str = "default",
    scheduler: str = SCHEDULER,
    **spec: Any,
) -> None:
    """A pod with this metadata. `spec`: fields of its spec besides."""
    requests = {"requests": {"cpu": cpu}}
    full = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "app:v1", "resources": requests}],
        **spec,
    }
    await cluster.post(f"/api/v1/namespaces/{namespace}/pods", name, metadata, spec=full)


async def members(cluster: ProgramCluster, metadata: Mapping[str, Any], *names: str, **fields: Any) -> None:
    for name in names:
        await member(cluster, name, metadata, **fields)


async def nodes(cluster: ProgramCluster, *names: str, cpu: str = "4") -> None:
    """With the definitions that ship."""
    await install_definitions(cluster)
    for name in names:
        await cluster.node(name, cpu=cpu)


def waiting(cluster: ProgramCluster, name: str) -> str:
    """Place and message of a waiting pod; empty for one that waits no more."""
    entries = cluster.worker("forecast").queue.entries()
    return next((f"{entry.state.value}: {entry.message}" for entry in entries if entry.pod.name == name), "")


async def get(cluster: ProgramCluster, path: str) -> dict[str, Any]:
    answer = await DirectTransport(cluster.server).request("GET", path)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = orjson.loads(answer.body)
    return found


async def condition(cluster: ProgramCluster, name: str) -> tuple[str, str]:
    """Reason and message of the pod's PodScheduled condition."""
    status = (await get(cluster, f"{PODS}/{name}")).get("status", {})
    return next(
        ((c["reason"], c["message"]) for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), ("", "")
    )


async def notes(cluster: ProgramCluster, reason: str) -> dict[str, list[str]]:
    """Pod -> notes of its events for this reason."""
    found: dict[str, list[str]] = {}
    for event in (await get(cluster, EVENTS))["items"]:
        if event["reason"] == reason:
            found.setdefault(event["regarding"]["name"], []).append(event["note"])
    return found
