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
from tests.integration.plugins.house import HEAD, House, controlled, in_virtual_time, install_definitions, open_house
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import Json, acks_example, leaf, node

TREES = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
SETTLED_S = 60.0


async def tree(house: House, root: Json, name: str = "tree") -> None:
    await house.post(TREES, name, {}, spec={"root": root})


async def quota(house: House, document: Json) -> None:
    """An ElasticQuota of any API."""
    metadata = dict(document["metadata"])
    name, namespace = metadata.pop("name"), metadata.pop("namespace")
    path = f"/apis/{document['apiVersion']}/namespaces/{namespace}/elasticquotas"
    await house.post(path, name, metadata, spec=document["spec"])


async def replicas(house: House, namespace: str, count: int, cpu: str, **own: str) -> None:
    """A ReplicaSet of the forecast-scheduler's. `own`: labels of its pods besides."""
    labels = {"app": namespace, **own}
    spec: dict[str, Any] = {
        "schedulerName": "forecast-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": cpu}}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    path = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
    await house.post(
        path,
        "-".join(["web", *own.values()]),
        {},
        spec={"replicas": count, "selector": {"matchLabels": labels}, "template": template},
    )


def running(house: House) -> list[int]:
    """Bound pods by namespace, in their order."""
    found = Counter(pod.namespace for pod in house.api_checker.pods().values() if pod.node)
    return [found[name] for name in sorted(found)]


@asynccontextmanager
async def town(namespaces: int, cpu: str = "56", head: str = HEAD) -> AsyncIterator[House]:
    async def before(house: House) -> None:
        await install_definitions(house)
        await house.node("n", cpu=cpu)
        for number in range(1, namespaces + 1):
            await house.post("namespaces", f"namespace{number}", {})

    async with open_house(head, before=before) as house, controlled(house):
        yield house


async def becomes(house: House, counts: list[int]) -> None:
    """The counts come about, and stay."""
    await house.until(lambda: running(house) == counts, SETTLED_S)
    calm_until_s = house.now_s + 30.0
    await house.until(lambda: house.now_s > calm_until_s)
    assert running(house) == counts


def test_ack_walk_through_ends_with_two_pods_per_namespace() -> None:
    async def story() -> None:
        async with town(4) as house:
            await tree(house, acks_example())
            for number, counts in enumerate(([4], [4, 4], [3, 3, 2], [2, 2, 2, 2]), 1):
                await replicas(house, f"namespace{number}", 5, "5")
                await becomes(house, counts)
            await house.at_rest()

    in_virtual_time(story)


def two(first: tuple[int, int], second: tuple[int, int], whole: int) -> Json:
    return node(
        "root", {"cpu": whole}, {"cpu": whole}, leaf("q1", *first, "namespace1"), leaf("q2", *second, "namespace2")
    )


def test_raised_tree_requeues_blocked_pods_and_consented_deletion_frees_all() -> None:
    async def story() -> None:
        async with town(2) as house:
            await tree(house, two((1, 1), (1, 1), 2))
            await replicas(house, "namespace1", 5, "1")
            await becomes(house, [1])
            await house.patch(f"{TREES}/tree", {"spec": {"root": two((3, 3), (1, 1), 4)}})
            await becomes(house, [3])
            await house.patch(f"{TREES}/tree", {"metadata": {"annotations": {"multisched.io/lift-quotas": "true"}}})
            await house.delete(f"{TREES}/tree")
            await becomes(house, [5])
            await house.at_rest()

    in_virtual_time(story)


def test_tree_that_is_counted_in_steps_requeues_blocked_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_ledger, "PODS_AT_ONCE", 1)

    async def story() -> None:
        async with town(2) as house:
            await tree(house, two((2, 2), (1, 1), 3))
            await replicas(house, "namespace1", 6, "1")
            await becomes(house, [2])
            await house.patch(f"{TREES}/tree", {"spec": {"root": two((4, 4), (1, 1), 5)}})
            await house.until(lambda: running(house) == [4], 5.0)
            await becomes(house, [4])
            answer = await DirectTransport(house.server).request("GET", f"{TREES}/tree")
            shown = orjson.loads(answer.body)["status"]["levels"]["root.q1"]
            assert (shown["max"], shown["used"]) == ({"cpu": "4"}, {"cpu": "4"})
            await house.at_rest()
        async with open_house(HEAD, server=house.server) as house, controlled(house):
            await becomes(house, [4])

    in_virtual_time(story)


def test_invalid_tree_changes_nothing_and_evicts_no_pod() -> None:
    async def story() -> None:
        async with town(2) as house:
            await tree(house, two((1, 4), (1, 4), 4))
            await replicas(house, "namespace1", 4, "1")
            await becomes(house, [4])
            await house.patch(f"{TREES}/tree", {"spec": {"root": two((1, 4), (9, 4), 4)}})
            await replicas(house, "namespace2", 2, "1")
            await becomes(house, [3, 1])
            await house.at_rest()

    in_virtual_time(story)


def test_scheduler_plugins_quotas_lend_idle_amounts_and_reclaim() -> None:
    async def story() -> None:
        async with town(2) as house:
            await quota(house, flat("namespace1", 2, 3))
            await quota(house, flat("namespace2", 2, 3))
            await replicas(house, "namespace1", 5, "1")
            await becomes(house, [3])
            await replicas(house, "namespace2", 5, "1")
            await becomes(house, [2, 2])
            await house.at_rest()

    in_virtual_time(story)


def test_koordinator_label_splits_a_namespace_into_two_quotas() -> None:
    async def story() -> None:
        async with town(1) as house:
            await quota(house, linked("company", 4, 4, is_parent="true"))
            await quota(house, linked("batch", 1, 4, "company", namespaces=["namespace1"]))
            await quota(house, linked("web", 3, 4, "company", namespaces=["namespace1"]))
            await replicas(house, "namespace1", 5, "1")
            await becomes(house, [4])
            await replicas(house, "namespace1", 5, "1", **{POD_LABEL: "web"})
            await house.until(lambda: of_web(house) == 3, SETTLED_S)
            await becomes(house, [4])
            assert of_web(house) == 3
            await house.at_rest()

    def of_web(house: House) -> int:
        return sum(bool(pod.node) and pod.labels.get(POD_LABEL) == "web" for pod in house.api_checker.pods().values())

    in_virtual_time(story)


def test_definition_installed_later_is_found_within_75_seconds() -> None:
    async def before(house: House) -> None:
        await house.node("n", cpu="56")
        await house.post("namespaces", "namespace1", {})

    async def story() -> None:
        async with open_house(HEAD, before=before) as house, controlled(house):
            await replicas(house, "namespace1", 1, "1")
            await becomes(house, [1])
            assert not house.program.objects.unreadable()
            await install_definitions(house)
            await tree(house, two((2, 2), (1, 1), 3))
            source_seen_s = house.now_s + 75.0
            await house.until(lambda: house.now_s > source_seen_s, 2 * 75.0)
            await replicas(house, "namespace1", 5, "1", of="more")
            await becomes(house, [2])
            await house.at_rest()

    in_virtual_time(story)


def test_nominated_pod_keeps_its_room_over_a_restart() -> None:
    """Its victims have gone while nobody led. The pod's nomination is all that the next process knows of it."""

    async def before(house: House) -> None:
        await install_definitions(house)
        await house.node("n", cpu="1")
        await tree(house, two((1, 1), (1, 1), 2))
        await house.priority_class("high", 100)
        for number in (1, 2):
            await house.post("namespaces", f"namespace{number}", {})
        for namespace, priority in (("namespace1", ""), ("namespace2", "high")):
            one = {"image": "app:v1", "name": "main", "resources": {"requests": {"cpu": "1"}}}
            spec = {"schedulerName": "forecast-scheduler", "containers": [one], "priorityClassName": priority}
            await house.post(f"/api/v1/namespaces/{namespace}/pods", "p", {}, spec=spec)
        await house.patch("namespaces/namespace1/pods/p/status", {"status": {"nominatedNodeName": "n"}})

    async def story() -> None:
        async with open_house(HEAD, before=before) as house:
            await house.until(lambda: bool(house.bound_at))
            assert [pod.namespace for pod in house.api_checker.pods().values() if pod.node] == ["namespace1"]

    in_virtual_time(story)


def test_entitled_gang_reclaims_a_whole_borrowing_gang() -> None:
    async def story() -> None:
        async with town(2, cpu="4") as house:
            await house.node("m", cpu="4")
            await tree(house, node("root", {"cpu": 8}, {"cpu": 8}, team("1", 2, 8), team("2", 4, 8)))
            await replicas(house, "namespace1", 4, "2", **gang("borrower", 4))
            await house.until(lambda: running(house) == [4], SETTLED_S)
            counts: set[tuple[int, int]] = set()

            def is_there() -> bool:
                found = Counter(pod.namespace for pod in house.api_checker.pods().values() if pod.node)
                counts.add((found["namespace1"], found["namespace2"]))
                return found == {"namespace2": 2}

            await replicas(house, "namespace2", 2, "2", **gang("entitled", 2))
            await house.until(is_there, SETTLED_S)
            assert all(entitled in (0, 2) or not borrowers for borrowers, entitled in counts)
            await becomes(house, [2])
            waiting = [pod for pod in house.api_checker.pods().values() if not pod.node]
            assert [pod.namespace for pod in waiting] == ["namespace1"] * 4, "all of them, and nobody twice"

    in_virtual_time(story)


def team(number: str, least: int, most: int) -> Json:
    return leaf(f"team{number}", least, most, f"namespace{number}")


def gang(name: str, least: int) -> dict[str, str]:
    """Labels of its members."""
    return {ACK_NAME: name, ACK_MIN: str(least)}
