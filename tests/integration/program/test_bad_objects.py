"""Pods and nodes that no validating server would store: told on the object itself, in words that name the fix; the rest goes on.

Each is made well, then spoiled in the store, as a lax server, an older version or a broken webhook would leave it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from multisched.cluster.base.storage import Event, Stored
from multisched.testing.builders import node_document
from tests.integration.program.command import multisched
from tests.integration.program.faulty_api import FaultyApi
from tests.integration.program.test_bad_answers import CONFIGURATION, all_bound, forecast_pod

Document = dict[str, Any]
Spoil = Callable[[Document], None]
PODS = "/api/v1/namespaces/default/pods"
HEALTHY_PODS = 5


def gated(name: str) -> Document:
    """A pod that is not bound before it is spoiled."""
    document = forecast_pod(name)
    document["spec"]["schedulingGates"] = [{"name": "example.com/not-yet"}]
    return document


def spoil(api: FaultyApi, storage: str, key: str, change: Spoil) -> None:
    """Changes an object in the store as no request may."""
    store = api.cluster.server.store
    collection = store.collection(storage)
    before = collection.objects[key]
    document = before.document()
    change(document)
    document["spec"].pop("schedulingGates", None)
    version = store.next_version()
    document["metadata"]["resourceVersion"] = str(version)
    after = Stored(json.dumps(document, separators=(",", ":")).encode(), version, before.uid, {}, before.fields)
    collection.record(Event(version, key, before, after))


def requests(amounts: Any) -> Spoil:
    def change(document: Document) -> None:
        document["spec"]["containers"][0]["resources"] = {"requests": amounts}

    return change


def labels(found: Any) -> Spoil:
    def change(document: Document) -> None:
        document["metadata"]["labels"] = found

    return change


def affinity(terms: int, values: int) -> Spoil:
    def change(document: Document) -> None:
        expression = {"key": "k", "operator": "In", "values": [f"v{i}" for i in range(values)]}
        term = {"matchExpressions": [expression]}
        required = {"nodeSelectorTerms": [term] * terms}
        document["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    return change


def tolerations(found: Any) -> Spoil:
    def change(document: Document) -> None:
        document["spec"]["tolerations"] = found

    return change


BAD_PODS: dict[str, tuple[Spoil, str]] = {
    "quantity": (requests({"cpu": "banana"}), "spec.containers[c].resources.requests: cpu: 'banana' is not a quantity"),
    "huge-quantity": (requests({"memory": "1e99999999"}), "1e99999999"),
    "negative": (requests({"memory": "-1Gi"}), "spec.containers[c].resources.requests: memory: is negative"),
    "requests-list": (requests([1, 2]), "requests"),
    "labels-10000": (labels({f"k{i}": "v" for i in range(10_000)}), "10000"),
    "affinity-terms": (affinity(10_000, 1), "10000 terms"),
    "affinity-values": (affinity(1, 100_000), "values"),
    "tolerations-many": (tolerations([{"key": f"k{i}"} for i in range(10_000)]), "10000"),
    "tolerations-text": (tolerations("all"), "tolerations"),
}


def allocatable(**amounts: Any) -> Spoil:
    def change(document: Document) -> None:
        document["status"]["allocatable"].update(amounts)

    return change


def node_field(section: str, name: str, value: Any) -> Spoil:
    def change(document: Document) -> None:
        document[section][name] = value

    return change


BAD_NODES: dict[str, tuple[Spoil, str]] = {
    "negative": (allocatable(cpu="-4"), "cpu"),
    "absurd": (allocatable(memory="8000000Ei"), "memory"),
    "unparsable": (allocatable(pods="lots"), "lots"),
    "not-a-mapping": (node_field("status", "allocatable", ["cpu"]), "allocatable"),
    "labels": (node_field("metadata", "labels", {"k": ["v"]}), "labels"),
    "taints": (node_field("spec", "taints", "none"), "taints"),
}


async def condition_of(api: FaultyApi, name: str) -> Document:
    """The pod's PodScheduled condition, once it is there."""
    async with asyncio.timeout(60):
        while True:
            found = (await api.get(f"{PODS}/{name}"))["status"].get("conditions") or []
            for condition in found:
                if condition["type"] == "PodScheduled":
                    assert isinstance(condition, dict)
                    return condition
            await asyncio.sleep(0.05)


async def event_of(api: FaultyApi, name: str) -> Document:
    """The first event about a node, once it is there."""
    async with asyncio.timeout(60):
        while True:
            for event in (await api.get("/apis/events.k8s.io/v1/events"))["items"]:
                if event["regarding"]["name"] == name and event["reason"] == "MalformedNode":
                    assert isinstance(event, dict)
                    return event
            await asyncio.sleep(0.05)


def arguments(api: FaultyApi, folder: Path) -> list[str]:
    kubeconfig, config = folder / "kubeconfig", folder / "config.yaml"
    # No lease changes hands here, and who cannot renew a short one on a busy machine ends.
    config.write_text(yaml.safe_dump({**CONFIGURATION, "lease": {"retryPeriod": "500ms"}}))
    api.write_kubeconfig(kubeconfig)
    return ["run", "--kubeconfig", str(kubeconfig), "--config", str(config)]


@pytest.mark.parametrize("is_watched", [False, True], ids=["listed", "watched"])
async def test_malformed_pod_gets_an_event_with_the_fix_and_blocks_no_pod(is_watched: bool, tmp_path: Path) -> None:
    async with FaultyApi.start() as api:
        await api.create("/api/v1/nodes", node_document("n1"))

        async def make_bad() -> None:
            for name, (change, _) in BAD_PODS.items():
                await api.create(PODS, gated(name))
                spoil(api, "pods", f"default/{name}", change)

        if not is_watched:
            await make_bad()
        async with multisched(*arguments(api, tmp_path)) as command:
            await command.has_printed('"pods listed"')
            if is_watched:
                await make_bad()
            conditions = {name: await condition_of(api, name) for name in BAD_PODS}
            for name, (_, told) in BAD_PODS.items():
                async with asyncio.timeout(60):
                    while told not in conditions[name]["message"]:
                        await asyncio.sleep(0.05)
                        conditions[name] = await condition_of(api, name)
            for number in range(HEALTHY_PODS):
                await api.create(PODS, forecast_pod(f"healthy-{number}"))
            await all_bound(api, HEALTHY_PODS)
            ended = await command.end()

    assert ended.code == 0
    assert "Traceback" not in ended.err
    for name, (_, told) in BAD_PODS.items():
        assert (conditions[name]["status"], conditions[name]["reason"]) == ("False", "Unschedulable"), name
        assert told in conditions[name]["message"], name
        assert len(conditions[name]["message"]) < 1000, name


async def test_malformed_node_gets_an_event_with_the_fix_and_no_pods(tmp_path: Path) -> None:
    async with FaultyApi.start() as api:
        await api.create("/api/v1/nodes", node_document("healthy"))
        for name, (change, _) in BAD_NODES.items():
            await api.create("/api/v1/nodes", node_document(name))
            spoil(api, "nodes", name, change)
        for number in range(HEALTHY_PODS):
            await api.create(PODS, forecast_pod(f"healthy-{number}"))
        async with multisched(*arguments(api, tmp_path)) as command:
            await all_bound(api, HEALTHY_PODS)
            events = {name: await event_of(api, name) for name in BAD_NODES}
            nodes = {p["spec"]["nodeName"] for p in (await api.get(PODS))["items"]}

            # Mended, it serves again.
            spoil(api, "nodes", "negative", allocatable(cpu="64"))
            await api.create(PODS, forecast_pod("large", cpu="60"))
            await all_bound(api, HEALTHY_PODS + 1)
            large = await api.get(f"{PODS}/large")
            ended = await command.end()

    assert (ended.code, nodes, large["spec"]["nodeName"]) == (0, {"healthy"}, "negative")
    assert "Traceback" not in ended.err
    for name, (_, told) in BAD_NODES.items():
        assert told in events[name]["note"], name
        assert events[name]["regarding"]["kind"] == "Node"
