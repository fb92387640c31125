"""The taint of cordoned nodes, on virtual time."""

from __future__ import annotations

import pytest

from multisched.cluster.client.object_client import NODES, Document
from tests.unit.cluster.cluster_kit import a_cluster, a_node

pytestmark = pytest.mark.looptime

TAINT = ("node.kubernetes.io/unschedulable", "NoSchedule")


def taints(node: Document) -> list[tuple[str, str]]:
    return [(taint["key"], taint["effect"]) for taint in node["spec"].get("taints") or ()]


async def test_cordon_adds_taint_and_uncordon_removes_it() -> None:
    async with a_cluster(a_node()) as cluster:
        own = {"key": "example.com/own", "effect": "NoSchedule"}
        (name,) = [node["metadata"]["name"] for node in await cluster.list_all(NODES)]
        await cluster.client.patch(NODES, "", name, body={"spec": {"unschedulable": True, "taints": [own]}})
        node = await cluster.wait_until(NODES, name, lambda node: TAINT in taints(node))
        assert taints(node) == [("example.com/own", "NoSchedule"), TAINT]
        assert node["spec"]["taints"][1]["timeAdded"]
        await cluster.client.patch(NODES, "", name, body={"spec": {"unschedulable": False}})
        node = await cluster.wait_until(NODES, name, lambda node: TAINT not in taints(node))
        assert taints(node) == [("example.com/own", "NoSchedule")]
