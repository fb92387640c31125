"""Gangs whose members end slowly while their replacements appear: they start again as a whole or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from multisched.model.objects import Pod
from tests.integration.plugins.gang_kit import PODS, SCHEDULER, ack, koordinator, members, nodes, waiting
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    open_cluster,
    with_controllers,
)

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SLOW_S = 3600
"""Grace period that no kubelet of the test ends: a deleted pod stays until the test removes it."""


@asynccontextmanager
async def prepared_cluster(**cpus: str) -> AsyncIterator[ProgramCluster]:
    """Node -> its CPUs. With the controllers that replace pods, and without kubelets."""

    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster)
        for name, cpu in cpus.items():
            await cluster.node(name, cpu=cpu, labels={"name": name})

    async with open_cluster(HEAD, before=before) as cluster, with_controllers(cluster):
        yield cluster
        await cluster.at_rest()


async def deployment(cluster: ProgramCluster, name: str, metadata: Mapping[str, Any], replicas: int = 4) -> None:
    """Its pods are one gang of one CPU each."""
    labels = {"app": name, **metadata.get("labels", {})}
    main = {"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": "1"}}}
    pod = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": SLOW_S, "containers": [main]}
    template = {"metadata": {**metadata, "labels": labels}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    await cluster.post(DEPLOYMENTS, name, {}, spec=spec)


def pods_of(cluster: ProgramCluster, app: str) -> list[Pod]:
    return [pod for pod in cluster.api_checker.pods().values() if pod.labels.get("app") == app]


def staying(cluster: ProgramCluster, app: str) -> Counter[str]:
    """Node -> pods of the Deployment there that are not being deleted; an empty name: pods that wait."""
    return Counter(pod.node for pod in pods_of(cluster, app) if not pod.is_deleting)


async def started(cluster: ProgramCluster, *apps: str) -> None:
    await cluster.until(lambda: all(len([pod for pod in pods_of(cluster, app) if pod.node]) == 4 for app in apps))


async def begin_deletion(cluster: ProgramCluster, pod: Pod) -> None:
    """As eviction does: the pod stays, being deleted."""
    await cluster.patch(f"{PODS}/{pod.name}", {"metadata": {"finalizers": ["example.com/slow"]}})
    await cluster.delete(f"{PODS}/{pod.name}")


async def end(cluster: ProgramCluster, pod: Pod) -> None:
    await cluster.patch(f"{PODS}/{pod.name}", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    "metadata", [ack("g", 4), koordinator("g", 4), koordinator("g", 4, match_policy="once-satisfied")]
)
def test_replacements_of_an_evicted_gang_start_all_or_none(metadata: Mapping[str, Any]) -> None:
    async def main() -> None:
        async with prepared_cluster(n0="4") as cluster:
            await cluster.priority_class("high", 100)
            await deployment(cluster, "g", metadata)
            await started(cluster, "g")
            await cluster.node("n1", cpu="1")
            names, where = [f"i{at}" for at in range(4)], {"name": "n0"}
            await members(cluster, ack("i", 4), *names, priorityClassName="high", nodeSelector=where)
            await cluster.until(lambda: all(pod.is_deleting for pod in pods_of(cluster, "g") if pod.node))
            await asyncio.sleep(5.0)
            assert staying(cluster, "g") == {"": 4}, "n1 has room for one of them"
            for pod in pods_of(cluster, "g"):
                if pod.node:
                    await cluster.delete(f"{PODS}/{pod.name}")
                    await asyncio.sleep(1.0)
            await cluster.bound(*names)
            await asyncio.sleep(60.0)
            assert staying(cluster, "g") == {"": 4}
            await cluster.node("n2", cpu="3")
            await cluster.until(lambda: staying(cluster, "g") == {"n1": 1, "n2": 3})

    in_virtual_time(main)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (4, 0, 5, 1, 6, 2, 7, 3)])
def test_one_of_two_evicted_gangs_runs_whole_if_there_is_room_for_one(order: tuple[int, ...]) -> None:
    """Pods of both end in this order, while their replacements wait for room on n1."""

    async def main() -> None:
        async with prepared_cluster(n0="8") as cluster:
            for app in "ab":
                await deployment(cluster, app, ack(app, 4))
            await started(cluster, "a", "b")
            await cluster.patch("nodes/n0", {"spec": {"unschedulable": True}})
            old = [*pods_of(cluster, "a"), *pods_of(cluster, "b")]
            for pod in old:
                await begin_deletion(cluster, pod)
            await cluster.until(lambda: staying(cluster, "a") == staying(cluster, "b") == {"": 4})
            await cluster.node("n1", cpu="1")
            for number, at in enumerate(order):
                await end(cluster, old[at])
                await asyncio.sleep(0.5)
                if number < 4:
                    await cluster.patch("nodes/n1/status", {"status": {"allocatable": {"cpu": str(number + 2)}}})
                    await asyncio.sleep(2.0)
            await asyncio.sleep(60.0)
            assert sorted(staying(cluster, app)["n1"] for app in "ab") == [0, 4]

    in_virtual_time(main)


def test_slowly_deleted_gang_recreated_with_its_names_starts_together() -> None:
    async def main() -> None:
        async with prepared_cluster(n0="4") as cluster:
            names = tuple(f"m{at}" for at in range(4))
            await members(cluster, ack("g", 4), *names)
            await cluster.bound(*names)
            await cluster.patch("nodes/n0", {"spec": {"unschedulable": True}})
            await cluster.node("n1", cpu="3")
            old = list(cluster.api_checker.pods().values())
            for pod in old:
                await begin_deletion(cluster, pod)
            for pod in old:
                await end(cluster, pod)
                await members(cluster, ack("g", 4), pod.name)
                await asyncio.sleep(2.0)
            assert {pod.node for pod in cluster.api_checker.pods().values()} == {""}
            await cluster.node("n2", cpu="1")
            await cluster.until(lambda: all(pod.node for pod in cluster.api_checker.pods().values()))

    in_virtual_time(main)


def test_finished_members_of_an_earlier_job_run_do_not_count() -> None:
    """Its uid is another one, and its finished pods are deleted while its new pods come."""

    def of_run(uid: str) -> dict[str, Any]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
        return {**ack("g", 4), "ownerReferences": [job]}

    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "n0", cpu="4")

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            first, second = ([f"{run}-{at}" for at in range(4)] for run in ("first", "second"))
            await members(cluster, of_run("uid-first"), *first)
            await cluster.bound(*first)
            for name in first:
                await cluster.patch(f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
            await asyncio.sleep(5.0)
            await cluster.pod("other", cpu="2", scheduler=SCHEDULER)
            await cluster.bound("other")
            for old, new in zip(first, second, strict=True):
                await members(cluster, of_run("uid-second"), new)
                await cluster.delete(f"{PODS}/{old}")
            await asyncio.sleep(30.0)
            assert not {*second} & cluster.bound_at.keys(), "there is room for two"
            await cluster.delete(f"{PODS}/other")
            await cluster.bound(*second)
            await cluster.at_rest()

    in_virtual_time(main)


def test_slowly_ending_member_is_replaced_by_one() -> None:
    async def main() -> None:
        async with prepared_cluster(n0="4", n1="1") as cluster:
            await deployment(cluster, "g", ack("g", 4))
            await started(cluster, "g")
            (one, *_) = (pod for pod in pods_of(cluster, "g") if pod.node == "n0")
            await cluster.node("n2", cpu="1")
            await begin_deletion(cluster, one)
            await cluster.until(lambda: staying(cluster, "g").total() - staying(cluster, "g")[""] == 4)
            await end(cluster, one)

    in_virtual_time(main)


def test_pending_members_report_that_terminating_ones_do_not_count() -> None:
    async def main() -> None:
        async with prepared_cluster(n0="4") as cluster:
            await members(cluster, ack("g", 2), "m0", "m1")
            await cluster.bound("m0", "m1")
            for pod in list(cluster.api_checker.pods().values()):
                await begin_deletion(cluster, pod)
            await members(cluster, ack("g", 2), "m2")
            why = "gang default/g: waits until 2 members are there, not counting 2 that are being deleted"
            await cluster.until(lambda: waiting(cluster, "m2") == f"gated: {why}")

    in_virtual_time(main)
