"""Elastic quotas through the whole program, in its shipped configuration: the walk-through of ACK's manual, trees that come, change
and go, and trees with mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.model.gang import ACK_MIN, ACK_NAME
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.plugins.quota import quota_ledger
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    install_definitions,
    open_cluster,
    with_controllers,
)
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import Json, acks_example, leaf, node

TREES = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
SETTLED_S = 60.0


async def tree(cluster: ProgramCluster, root: Json, name: str = "tree") -> None:
    await cluster.post(TREES, name, {}, spec={"root": root})


async def quota(cluster: ProgramCluster, document: Json) -> None:
    """An ElasticQuota of any API."""
    metadata = dict(document["metadata"])
    name, namespace = metadata.pop("name"), metadata.pop("namespace")
    path = f"/apis/{document['apiVersion']}/namespaces/{namespace}/elasticquotas"
    await cluster.post(path, name, metadata, spec=document["spec"])


async def replicas(cluster: ProgramCluster, namespace: str, count: int, cpu: str, **own: str) -> None:
    """A ReplicaSet of the forecast-scheduler's. `own`: labels of its pods besides."""
    labels = {"app": namespace, **own}
    spec: dict[str, Any] = {
        "schedulerName": "forecast-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": cpu}}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    path = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
    await cluster.post(
        path,
        "-".join(["web", *own.values()]),
        {},
        spec={"replicas": count, "selector": {"matchLabels": labels}, "template": template},
    )


def running(cluster: ProgramCluster) -> list[int]:
    """Bound pods by namespace, in their order."""
    found = Counter(pod.namespace for pod in cluster.api_checker.pods().values() if pod.node)
    return [found[name] for name in sorted(found)]


@asynccontextmanager
async def quota_cluster(namespaces: int, cpu: str = "56", head: str = HEAD) -> AsyncIterator[ProgramCluster]:
    async def before(cluster: ProgramCluster) -> None:
        await install_definitions(cluster)
        await cluster.node("n", cpu=cpu)
        for number in range(1, namespaces + 1):
            await cluster.post("namespaces", f"namespace{number}", {})

    async with open_cluster(head, before=before) as cluster, with_controllers(cluster):
        yield cluster


async def becomes(cluster: ProgramCluster, counts: list[int]) -> None:
    """The counts come about, and stay."""
    await cluster.until(lambda: running(cluster) == counts, SETTLED_S)
    calm_until_s = cluster.now_s + 30.0
    await cluster.until(lambda: cluster.now_s > calm_until_s)
    assert running(cluster) == counts


def test_ack_walk_through_ends_with_two_pods_per_namespace() -> None:
    async def main() -> None:
        async with quota_cluster(4) as cluster:
            await tree(cluster, acks_example())
            for number, counts in enumerate(([4], [4, 4], [3, 3, 2], [2, 2, 2, 2]), 1):
                await replicas(cluster, f"namespace{number}", 5, "5")
                await becomes(cluster, counts)
            await cluster.at_rest()

    in_virtual_time(main)


def two(first: tuple[int, int], second: tuple[int, int], whole: int) -> Json:
    return node(
        "root", {"cpu": whole}, {"cpu": whole}, leaf("q1", *first, "namespace1"), leaf("q2", *second, "namespace2")
    )


def test_raised_tree_requeues_blocked_pods_and_consented_deletion_frees_all() -> None:
    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await tree(cluster, two((1, 1), (1, 1), 2))
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [1])
            await cluster.patch(f"{TREES}/tree", {"spec": {"root": two((3, 3), (1, 1), 4)}})
            await becomes(cluster, [3])
            await cluster.patch(f"{TREES}/tree", {"metadata": {"annotations": {"multisched.io/lift-quotas": "true"}}})
            await cluster.delete(f"{TREES}/tree")
            await becomes(cluster, [5])
            await cluster.at_rest()

    in_virtual_time(main)


def test_tree_that_is_counted_in_steps_requeues_blocked_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_ledger, "PODS_AT_ONCE", 1)

    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await tree(cluster, two((2, 2), (1, 1), 3))
            await replicas(cluster, "namespace1", 6, "1")
            await becomes(cluster, [2])
            await cluster.patch(f"{TREES}/tree", {"spec": {"root": two((4, 4), (1, 1), 5)}})
            await cluster.until(lambda: running(cluster) == [4], 5.0)
            await becomes(cluster, [4])
            answer = await DirectTransport(cluster.server).request("GET", f"{TREES}/tree")
            shown = orjson.loads(answer.body)["status"]["levels"]["root.q1"]
            assert (shown["max"], shown["used"]) == ({"cpu": "4"}, {"cpu": "4"})
            await cluster.at_rest()
        async with open_cluster(HEAD, server=cluster.server) as cluster, with_controllers(cluster):
            await becomes(cluster, [4])

    in_virtual_time(main)


def test_invalid_tree_changes_nothing_and_evicts_no_pod() -> None:
    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await tree(cluster, two((1, 4), (1, 4), 4))
            await replicas(cluster, "namespace1", 4, "1")
            await becomes(cluster, [4])
            await cluster.patch(f"{TREES}/tree", {"spec": {"root": two((1, 4), (9, 4), 4)}})
            await replicas(cluster, "namespace2", 2, "1")
            await becomes(cluster, [3, 1])
            await cluster.at_rest()

    in_virtual_time(main)


def test_scheduler_plugins_quotas_lend_idle_amounts_and_reclaim() -> None:
    async def main() -> None:
        async with quota_cluster(2) as cluster:
            await quota(cluster, flat("namespace1", 2, 3))
            await quota(cluster, flat("namespace2", 2, 3))
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [3])
            await replicas(cluster, "namespace2", 5, "1")
            await becomes(cluster, [2, 2])
            await cluster.at_rest()

    in_virtual_time(main)


def test_koordinator_label_splits_a_namespace_into_two_quotas() -> None:
    async def main() -> None:
        async with quota_cluster(1) as cluster:
            await quota(cluster, linked("company", 4, 4, is_parent="true"))
            await quota(cluster, linked("batch", 1, 4, "company", namespaces=["namespace1"]))
            await quota(cluster, linked("web", 3, 4, "company", namespaces=["namespace1"]))
            await replicas(cluster, "namespace1", 5, "1")
            await becomes(cluster, [4])
            await replicas(cluster, "namespace1", 5, "1", **{POD_LABEL: "web"})
            await cluster.until(lambda: of_web(cluster) == 3, SETTLED_S)
            await becomes(cluster, [4])
            assert of_web(cluster) == 3
            await cluster.at_rest()

    def of_web(cluster: ProgramCluster) -> int:
        return sum(bool(pod.node) and pod.labels.get(POD_LABEL) == "web" for pod in cluster.api_checker.pods().values())

    in_virtual_time(main)


def test_definition_installed_later_is_found_within_75_seconds() -> None:
    async def before(cluster: ProgramCluster) -> None:
        await cluster.node("n", cpu="56")
        await cluster.post("namespaces", "namespace1", {})

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as cluster, with_controllers(cluster):
            await replicas(cluster, "namespace1", 1, "1")
            await becomes(cluster, [1])
            assert not cluster.program.objects.unreadable()
            await install_definitions(cluster)
            await tree(cluster, two((2, 2), (1, 1), 3))
            source_seen_s = cluster.now_s + 75.0
            await cluster.until(lambda: cluster.now_s > source_seen_s, 2 * 75.0)
            await replicas(cluster, "namespace1", 5, "1", of="more")
            await becomes(cluster, [2])
            await cluster.at_rest()

    in_virtual_time(main)


def test_nominated_pod_keeps_its_room_over_a_restart() -> None:
    """Its victims have gone while nobody led. The pod's nomination is all that the next process knows of it."""

    async def before(cluster: ProgramCluster) -> None:
        await install_definitions(cluster)
        await cluster.node("n", cpu="1")
        await tree(cluster, two((1, 1), (1, 1), 2))
        await cluster.priority_class("high", 100)
        for number in (1, 2):
            await cluster.post("namespaces", f"namespace{number}", {})
        for namespace, priority in (("namespace1", ""), ("namespace2", "high")):
            one = {"image": "app:v1", "name": "main", "resources": {"requests": {"cpu": "1"}}}
            spec = {"schedulerName": "forecast-scheduler", "containers": [one], "priorityClassName": priority}
            await cluster.post(f"/api/v1/namespaces/{namespace}/pods", "p", {}, spec=spec)
        await cluster.patch("namespaces/namespace1/pods/p/status", {"status": {"nominatedNodeName": "n"}})

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            await cluster.until(lambda: bool(cluster.bound_at))
            assert [pod.namespace for pod in cluster.api_checker.pods().values() if pod.node] == ["namespace1"]

    in_virtual_time(main)


def test_entitled_gang_reclaims_a_whole_borrowing_gang() -> None:
    async def main() -> None:
        async with quota_cluster(2, cpu="4") as cluster:
            await cluster.node("m", cpu="4")
            await tree(cluster, node("root", {"cpu": 8}, {"cpu": 8}, team("1", 2, 8), team("2", 4, 8)))
            await replicas(cluster, "namespace1", 4, "2", **gang("borrower", 4))
            await cluster.until(lambda: running(cluster) == [4], SETTLED_S)
            counts: set[tuple[int, int]] = set()

            def is_there() -> bool:
                found = Counter(pod.namespace for pod in cluster.api_checker.pods().values() if pod.node)
                counts.add((found["namespace1"], found["namespace2"]))
                return found == {"namespace2": 2}

            await replicas(cluster, "namespace2", 2, "2", **gang("entitled", 2))
            await cluster.until(is_there, SETTLED_S)
            assert all(entitled in (0, 2) or not borrowers for borrowers, entitled in counts)
            await becomes(cluster, [2])
            waiting = [pod for pod in cluster.api_checker.pods().values() if not pod.node]
            assert [pod.namespace for pod in waiting] == ["namespace1"] * 4, "all of them, and nobody twice"

    in_virtual_time(main)


def team(number: str, least: int, most: int) -> Json:
    return leaf(f"team{number}", least, most, f"namespace{number}")


def gang(name: str, least: int) -> dict[str, str]:
    """Labels of its members."""
    return {ACK_NAME: name, ACK_MIN: str(least)}
