"""What DaemonSets become: a pod per selected node, pinned there, rolled over; in process and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from multisched.cluster.client.object_client import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS, Document
from tests.unit.cluster.cluster_kit import Fleet, a_cluster, a_node, a_pod_spec, condition_of

pytestmark = pytest.mark.looptime

POLL_S = 0.2


def a_daemon_set(name: str, *, image: str = "app:1", pod: Document | None = None, **spec: Any) -> Document:
    template = {**a_pod_spec(node=""), **(pod or {})}
    template["containers"][0]["image"] = image
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template},
            **spec,
        },
    }


def pinned_to(pod: Document) -> str:
    """What the pod's affinity leaves its scheduler to choose from."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    assert term["matchFields"][0]["key"] == "metadata.name"
    return str(term["matchFields"][0]["values"][0])


class Binder:
    """Stands in for a scheduler, which has no choice here; keeps how many were there and how few were Ready."""

    def __init__(self, cluster: Fleet) -> None:
        self._cluster = cluster
        self.most = 0
        self.fewest_ready = 10**6

    async def run(self) -> None:
        while True:
            pods = [p for p in await self._cluster.list_all(PODS) if "deletionTimestamp" not in p["metadata"]]
            for pod in pods:
                if not pod["spec"].get("nodeName"):
                    await self._cluster.bind(pod["metadata"]["name"], pinned_to(pod))
            self.most = max(self.most, len(pods))
            ready = sum(condition_of(p, "Ready").get("status") == "True" for p in pods)
            self.fewest_ready = min(self.fewest_ready, ready)
            await asyncio.sleep(POLL_S)


def is_rolled_out(count: int) -> Callable[[Document], bool]:
    """As `kubectl rollout status` judges, and of the wanted size."""

    def holds(daemon_set: Document) -> bool:
        status = daemon_set.get("status") or {}
        return bool(
            status.get("observedGeneration") == daemon_set["metadata"]["generation"]
            and status.get("desiredNumberScheduled") == count
            and status.get("updatedNumberScheduled", 0) == count
            and status.get("numberAvailable", 0) == count
        )

    return holds


def nodes_of(pods: list[Document]) -> list[str]:
    return sorted(p["spec"].get("nodeName") or pinned_to(p) for p in pods if "deletionTimestamp" not in p["metadata"])


async def test_every_selected_node_gets_one_pod_pinned_to_it() -> None:
    tainted = a_node("c")
    tainted["spec"] = {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
    cordoned = a_node("d", disk="ssd")
    cordoned["spec"] = {
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    }
    async with a_cluster(a_node("a", disk="ssd"), a_node("b"), tainted, cordoned) as cluster:
        await cluster.create(DAEMON_SETS, a_daemon_set("all"))
        await cluster.create(DAEMON_SETS, a_daemon_set("ssd", pod={"nodeSelector": {"disk": "ssd"}}))
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) == 5)

        assert sorted((p["metadata"]["labels"]["app"], pinned_to(p)) for p in pods) == [
            ("all", "a"), ("all", "b"), ("all", "d"), ("ssd", "a"), ("ssd", "d"),
        ]  # fmt: skip
        keys = {t["key"].rpartition("/")[2] for t in pods[0]["spec"]["tolerations"]}
        assert keys == {"not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"}

        await cluster.create(NODES, a_node("e"))
        await cluster.patch(NODES, "b", {"metadata": {"labels": {"disk": "ssd"}}})
        await cluster.delete(NODES, "a")
        pods = await cluster.wait_listed(PODS, lambda pods: "b" in nodes_of(pods) and "e" in nodes_of(pods))
        await cluster.wait_listed(PODS, lambda pods: nodes_of(pods) == ["b", "b", "d", "d", "e"])


async def test_only_a_no_execute_taint_evicts_the_daemon_pod() -> None:
    async with a_cluster(a_node("a"), a_node("b")) as cluster:
        binding = asyncio.create_task(Binder(cluster).run())
        await cluster.create(DAEMON_SETS, a_daemon_set("all"))
        await cluster.wait_until(DAEMON_SETS, "all", is_rolled_out(2))
        await cluster.patch(NODES, "a", {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
        daemon_set = await cluster.wait_until(DAEMON_SETS, "all", lambda d: d["status"]["desiredNumberScheduled"] == 1)
        assert daemon_set["status"]["numberMisscheduled"] == 1
        await asyncio.sleep(10)
        assert nodes_of(await cluster.list_all(PODS)) == ["a", "b"]

        await cluster.patch(NODES, "a", {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})
        await cluster.wait_listed(PODS, lambda pods: nodes_of(pods) == ["b"])
        binding.cancel()


async def test_failed_and_lost_pods_are_replaced() -> None:
    async with a_cluster(a_node("a"), a_node("b")) as cluster:
        binding = asyncio.create_task(Binder(cluster).run())
        await cluster.create(DAEMON_SETS, a_daemon_set("all"))
        await cluster.wait_until(DAEMON_SETS, "all", is_rolled_out(2))
        first, second = await cluster.list_all(PODS)
        await cluster.patch(PODS, first["metadata"]["name"], {"status": {"phase": "Failed"}}, subresource="status")
        await cluster.delete(PODS, second["metadata"]["name"], grace_s=0)
        old = {first["metadata"]["name"], second["metadata"]["name"]}
        await cluster.wait_listed(
            PODS, lambda pods: len(pods) == 2 and old.isdisjoint(p["metadata"]["name"] for p in pods)
        )
        await cluster.wait_until(DAEMON_SETS, "all", is_rolled_out(2))
        binding.cancel()


@pytest.mark.parametrize(
    ("limits", "most", "fewest_ready"),
    [({"maxUnavailable": 1}, 4, 3), ({"maxUnavailable": "50%"}, 4, 2), ({"maxSurge": 1, "maxUnavailable": 0}, 5, 4)],
)
async def test_rolling_update_stays_within_its_limits(limits: Document, most: int, fewest_ready: int) -> None:
    async with a_cluster(*(a_node(name) for name in "abcd")) as cluster:
        binder = Binder(cluster)
        binding = asyncio.create_task(binder.run())
        strategy = {"type": "RollingUpdate", "rollingUpdate": limits}
        await cluster.create(DAEMON_SETS, a_daemon_set("all", updateStrategy=strategy))
        await cluster.wait_until(DAEMON_SETS, "all", is_rolled_out(4))
        binder.most, binder.fewest_ready = 0, 10**6
        template = a_daemon_set("all", image="app:2")["spec"]["template"]
        await cluster.patch(DAEMON_SETS, "all", {"spec": {"template": template}})
        await cluster.wait_until(DAEMON_SETS, "all", is_rolled_out(4))
        pods = await cluster.wait_listed(PODS, lambda pods: len(pods) == 4)

        assert {p["spec"]["containers"][0]["image"] for p in pods} == {"app:2"}
        assert nodes_of(pods) == ["a", "b", "c", "d"]
        assert binder.most <= most
        assert binder.fewest_ready >= fewest_ready
        assert sorted(r["revision"] for r in await cluster.list_all(CONTROLLER_REVISIONS)) == [1, 2]
        binding.cancel()


async def test_on_delete_strategy_replaces_no_running_pod() -> None:
    async with a_cluster(a_node("a")) as cluster:
        binding = asyncio.create_task(Binder(cluster).run())
        await cluster.create(DAEMON_SETS, a_daemon_set("all", updateStrategy={"type": "OnDelete"}))
        await cluster.wait_until(DAEMON_SETS, "all", is_rolled_out(1))
        template = a_daemon_set("all", image="app:2")["spec"]["template"]
        await cluster.patch(DAEMON_SETS, "all", {"spec": {"template": template}})
        await asyncio.sleep(10)
        [pod] = await cluster.list_all(PODS)
        assert pod["spec"]["containers"][0]["image"] == "app:1"
        await cluster.delete(PODS, pod["metadata"]["name"], grace_s=0)
        await cluster.wait_until(DAEMON_SETS, "all", is_rolled_out(1))
        binding.cancel()


async def test_orphaned_and_matching_pods_are_adopted() -> None:
    async with a_cluster(a_node("n1"), a_node("n2")) as cluster, asyncio.TaskGroup() as group:
        binder = group.create_task(Binder(cluster).run())
        await cluster.create(DAEMON_SETS, a_daemon_set("agent"))
        await cluster.wait_until(DAEMON_SETS, "agent", is_rolled_out(2))
        before = {p["metadata"]["uid"] for p in await cluster.list_all(PODS)}
        await cluster.delete(DAEMON_SETS, "agent", propagation="Orphan")
        await cluster.wait_gone(DAEMON_SETS, "agent")

        made = await cluster.create(DAEMON_SETS, a_daemon_set("agent"))
        await cluster.wait_until(DAEMON_SETS, "agent", is_rolled_out(2))

        pods = await cluster.list_all(PODS)
        assert {p["metadata"]["uid"] for p in pods} == before
        assert {p["metadata"]["ownerReferences"][0]["uid"] for p in pods} == {made["metadata"]["uid"]}

        stranger = {"metadata": {"name": "stranger", "namespace": "default"}, "spec": a_pod_spec(node="n1")}
        await cluster.create(PODS, stranger)
        await cluster.patch(PODS, "stranger", {"metadata": {"labels": {"app": "agent"}}})
        await cluster.wait_gone(PODS, "stranger")  # adopted, and the younger of two on its node
        binder.cancel()
