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
from tests.integration.plugins.house import HEAD, House, controlled, in_virtual_time, open_house

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SLOW_S = 3600
"""Grace period that no kubelet of the test ends: a deleted pod stays until the test removes it."""


@asynccontextmanager
async def cluster(**cpus: str) -> AsyncIterator[House]:
    """Node -> its CPUs. With the controllers that replace pods, and without kubelets."""

    async def before(house: House) -> None:
        await nodes(house)
        for name, cpu in cpus.items():
            await house.node(name, cpu=cpu, labels={"name": name})

    async with open_house(HEAD, before=before) as house, controlled(house):
        yield house
        await house.at_rest()


async def deployment(house: House, name: str, metadata: Mapping[str, Any], replicas: int = 4) -> None:
    """Its pods are one gang of one CPU each."""
    labels = {"app": name, **metadata.get("labels", {})}
    main = {"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": "1"}}}
    pod = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": SLOW_S, "containers": [main]}
    template = {"metadata": {**metadata, "labels": labels}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    await house.post(DEPLOYMENTS, name, {}, spec=spec)


def pods_of(house: House, app: str) -> list[Pod]:
    return [pod for pod in house.api_checker.pods().values() if pod.labels.get("app") == app]


def staying(house: House, app: str) -> Counter[str]:
    """Node -> pods of the Deployment there that are not being deleted; an empty name: pods that wait."""
    return Counter(pod.node for pod in pods_of(house, app) if not pod.is_deleting)


async def started(house: House, *apps: str) -> None:
    await house.until(lambda: all(len([pod for pod in pods_of(house, app) if pod.node]) == 4 for app in apps))


async def begin_deletion(house: House, pod: Pod) -> None:
    """As eviction does: the pod stays, being deleted."""
    await house.patch(f"{PODS}/{pod.name}", {"metadata": {"finalizers": ["example.com/slow"]}})
    await house.delete(f"{PODS}/{pod.name}")


async def end(house: House, pod: Pod) -> None:
    await house.patch(f"{PODS}/{pod.name}", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(
    "metadata", [ack("g", 4), koordinator("g", 4), koordinator("g", 4, match_policy="once-satisfied")]
)
def test_replacements_of_an_evicted_gang_start_all_or_none(metadata: Mapping[str, Any]) -> None:
    async def story() -> None:
        async with cluster(n0="4") as house:
            await house.priority_class("high", 100)
            await deployment(house, "g", metadata)
            await started(house, "g")
            await house.node("n1", cpu="1")
            names, where = [f"i{at}" for at in range(4)], {"name": "n0"}
            await members(house, ack("i", 4), *names, priorityClassName="high", nodeSelector=where)
            await house.until(lambda: all(pod.is_deleting for pod in pods_of(house, "g") if pod.node))
            await asyncio.sleep(5.0)
            assert staying(house, "g") == {"": 4}, "n1 has room for one of them"
            for pod in pods_of(house, "g"):
                if pod.node:
                    await house.delete(f"{PODS}/{pod.name}")
                    await asyncio.sleep(1.0)
            await house.bound(*names)
            await asyncio.sleep(60.0)
            assert staying(house, "g") == {"": 4}
            await house.node("n2", cpu="3")
            await house.until(lambda: staying(house, "g") == {"n1": 1, "n2": 3})

    in_virtual_time(story)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (4, 0, 5, 1, 6, 2, 7, 3)])
def test_one_of_two_evicted_gangs_runs_whole_if_there_is_room_for_one(order: tuple[int, ...]) -> None:
    """Pods of both end in this order, while their replacements wait for room on n1."""

    async def story() -> None:
        async with cluster(n0="8") as house:
            for app in "ab":
                await deployment(house, app, ack(app, 4))
            await started(house, "a", "b")
            await house.patch("nodes/n0", {"spec": {"unschedulable": True}})
            old = [*pods_of(house, "a"), *pods_of(house, "b")]
            for pod in old:
                await begin_deletion(house, pod)
            await house.until(lambda: staying(house, "a") == staying(house, "b") == {"": 4})
            await house.node("n1", cpu="1")
            for number, at in enumerate(order):
                await end(house, old[at])
                await asyncio.sleep(0.5)
                if number < 4:
                    await house.patch("nodes/n1/status", {"status": {"allocatable": {"cpu": str(number + 2)}}})
                    await asyncio.sleep(2.0)
            await asyncio.sleep(60.0)
            assert sorted(staying(house, app)["n1"] for app in "ab") == [0, 4]

    in_virtual_time(story)


def test_slowly_deleted_gang_recreated_with_its_names_starts_together() -> None:
    async def story() -> None:
        async with cluster(n0="4") as house:
            names = tuple(f"m{at}" for at in range(4))
            await members(house, ack("g", 4), *names)
            await house.bound(*names)
            await house.patch("nodes/n0", {"spec": {"unschedulable": True}})
            await house.node("n1", cpu="3")
            old = list(house.api_checker.pods().values())
            for pod in old:
                await begin_deletion(house, pod)
            for pod in old:
                await end(house, pod)
                await members(house, ack("g", 4), pod.name)
                await asyncio.sleep(2.0)
            assert {pod.node for pod in house.api_checker.pods().values()} == {""}
            await house.node("n2", cpu="1")
            await house.until(lambda: all(pod.node for pod in house.api_checker.pods().values()))

    in_virtual_time(story)


def test_finished_members_of_an_earlier_job_run_do_not_count() -> None:
    """Its uid is another one, and its finished pods are deleted while its new pods come."""

    def of_run(uid: str) -> dict[str, Any]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
        return {**ack("g", 4), "ownerReferences": [job]}

    async def before(house: House) -> None:
        await nodes(house, "n0", cpu="4")

    async def story() -> None:
        async with open_house(HEAD, before=before) as house:
            first, second = ([f"{run}-{at}" for at in range(4)] for run in ("first", "second"))
            await members(house, of_run("uid-first"), *first)
            await house.bound(*first)
            for name in first:
                await house.patch(f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
            await asyncio.sleep(5.0)
            await house.pod("other", cpu="2", scheduler=SCHEDULER)
            await house.bound("other")
            for old, new in zip(first, second, strict=True):
                await members(house, of_run("uid-second"), new)
                await house.delete(f"{PODS}/{old}")
            await asyncio.sleep(30.0)
            assert not {*second} & house.bound_at.keys(), "there is room for two"
            await house.delete(f"{PODS}/other")
            await house.bound(*second)
            await house.at_rest()

    in_virtual_time(story)


def test_slowly_ending_member_is_replaced_by_one() -> None:
    async def story() -> None:
        async with cluster(n0="4", n1="1") as house:
            await deployment(house, "g", ack("g", 4))
            await started(house, "g")
            (one, *_) = (pod for pod in pods_of(house, "g") if pod.node == "n0")
            await house.node("n2", cpu="1")
            await begin_deletion(house, one)
            await house.until(lambda: staying(house, "g").total() - staying(house, "g")[""] == 4)
            await end(house, one)

    in_virtual_time(story)


def test_pending_members_report_that_terminating_ones_do_not_count() -> None:
    async def story() -> None:
        async with cluster(n0="4") as house:
            await members(house, ack("g", 2), "m0", "m1")
            await house.bound("m0", "m1")
            for pod in list(house.api_checker.pods().values()):
                await begin_deletion(house, pod)
            await members(house, ack("g", 2), "m2")
            why = "gang default/g: waits until 2 members are there, not counting 2 that are being deleted"
            await house.until(lambda: waiting(house, "m2") == f"gated: {why}")

    in_virtual_time(story)
