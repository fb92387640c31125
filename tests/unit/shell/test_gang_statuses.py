"""Statuses of PodGroups, as a whole program writes them to the embedded API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from multisched.model.wire import MERGE_PATCH
from multisched.testing.builders import Document
from multisched.testing.sim_loop import SimLoop, simulate
from tests.kit import definitions
from tests.unit.shell.program_kit import PODS, Cluster

GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
- name: gpu
lease: {enabled: false}
"""


class Gangs(Cluster):
    """A cluster with room for four members, and PodGroups of scheduler-plugins."""

    async def define(self) -> None:
        await self.send("POST", definitions.PATH, definitions.definition("podgroups-scheduler-plugins"))
        await self.add_node("a", cpu="4")

    async def add_group(self, least: int, name: str = "gang") -> None:
        await self.send("POST", GROUPS, {"metadata": {"name": name}, "spec": {"minMember": least}})

    async def add_members(self, *names: str, gang: str = "gang", cpu: str = "1", **fields: Any) -> None:
        for name in names:
            await self.add_pod(name, cpu=cpu, labels={"scheduling.x-k8s.io/pod-group": gang}, **fields)

    async def set_phase(self, name: str, phase: str) -> None:
        await self.send("PATCH", f"{PODS}/{name}/status", {"status": {"phase": phase}}, content_type=MERGE_PATCH)

    async def status(self, name: str = "gang") -> dict[str, Any]:
        found: dict[str, Any] = (await self.send("GET", f"{GROUPS}/{name}")).get("status", {})
        return found

    async def condition(self, name: str = "gang") -> tuple[str, str, str]:
        (found,) = (await self.status(name)).get("conditions", [{}])
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def play(scene: Callable[[Gangs], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        cluster = Gangs(loop, CONFIGURATION)
        await cluster.define()
        running = loop.create_task(cluster.program.run())
        await cluster.settle()
        try:
            await scene(cluster)
        finally:
            cluster.program.stop()
            await running

    simulate(main(), loop)


SIGS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
WORKLOADS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


def workload_definition() -> Document:
    """Of the kind that Kubernetes serves itself, with its feature gate."""
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": schema}
    spec = {"group": "scheduling.k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    annotations = {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/4671"}
    return {"metadata": {"name": "podgroups.scheduling.k8s.io", "annotations": annotations}, "spec": spec}


@pytest.mark.parametrize(
    ("groups", "spec", "pod", "condition"),
    [
        (SIGS, {"minMember": 2}, {"labels": {"pod-group.scheduling.sigs.k8s.io": "gang"}}, "Scheduled"),
        (
            WORKLOADS,
            {"schedulingPolicy": {"gang": {"minCount": 2}}},
            {"schedulingGroup": {"podGroupName": "gang"}},
            "PodGroupInitiallyScheduled",
        ),
    ],
    ids=["sigs", "kubernetes"],
)
def test_groups_of_other_apis_have_a_status_too(groups: str, spec: Document, pod: Document, condition: str) -> None:
    async def scene(cluster: Gangs) -> None:
        definition = definitions.definition("podgroups-koordinator")
        await cluster.send("POST", definitions.PATH, definition if groups == SIGS else workload_definition())
        await cluster.send("POST", groups, {"metadata": {"name": "gang"}, "spec": spec})
        await cluster.settle(600.0)
        for name in ("m0", "m1"):
            await cluster.add_pod(name, **pod)
        await cluster.settle(30.0)
        (found,) = (await cluster.send("GET", f"{groups}/gang"))["status"]["conditions"]
        told = (found["type"], found["status"], found["message"])
        assert told == (condition, "True", "2 of 2 members that start together have nodes")

    play(scene)


def test_phase_changes_from_pending_to_scheduled_running_and_finished() -> None:
    async def scene(cluster: Gangs) -> None:
        await cluster.add_group(3)
        await cluster.add_members("m0")
        await asyncio.sleep(10.0)
        found = await cluster.status()
        assert (found["phase"], found["scheduled"]) == ("Pending", 0)
        assert "scheduleStartTime" not in found
        status, reason, message = await cluster.condition()
        assert (status, reason) == ("False", "MembersMissing")
        assert "3 members" in message

        await cluster.add_members("m1", "m2")
        await asyncio.sleep(10.0)
        found = await cluster.status()
        assert (found["phase"], found["scheduled"], found["running"]) == ("Scheduled", 3, 0)
        since = found["scheduleStartTime"]
        assert (await cluster.condition())[:2] == ("True", "Scheduled")

        for name in ("m0", "m1", "m2"):
            await cluster.set_phase(name, "Running")
        await asyncio.sleep(10.0)
        found = await cluster.status()
        assert (found["phase"], found["running"], found["scheduleStartTime"]) == ("Running", 3, since)

        for name in ("m0", "m1", "m2"):
            await cluster.set_phase(name, "Succeeded")
        await asyncio.sleep(20.0)
        found = await cluster.status()
        assert (found["phase"], found["running"], found["succeeded"]) == ("Finished", 0, 3)

    play(scene)


def test_gang_without_room_names_pending_members_and_the_reason() -> None:
    async def scene(cluster: Gangs) -> None:
        await cluster.add_group(2)
        await cluster.add_members("m0", "m1", cpu="3")
        await asyncio.sleep(20.0)
        assert (await cluster.status())["phase"] == "PreScheduling"
        status, reason, message = await cluster.condition()
        assert (status, reason) == ("False", "Unschedulable")
        assert message.startswith(
            "0 of 2 members that start together have nodes; m0 and m1 wait: gang default/gang: 1 of "
        )
        assert "; m1: 0/1 nodes are available: 1 Insufficient cpu." in message

    play(scene)


def test_group_without_a_minimum_reports_it() -> None:
    async def scene(cluster: Gangs) -> None:
        await cluster.add_group(0)
        await cluster.add_members("m0")
        await asyncio.sleep(20.0)
        status, reason, message = await cluster.condition()
        assert (status, reason) == ("False", "Broken")
        assert message.startswith("spec.minMember is 0")

    play(scene)


def test_group_names_the_workload_of_its_members() -> None:
    async def scene(cluster: Gangs) -> None:
        await cluster.add_group(1)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
        await cluster.add_members("m0")
        await cluster.change_metadata("m0", ownerReferences=[owner])
        await asyncio.sleep(20.0)
        assert (await cluster.status())["occupiedBy"] == "default/train"

    play(scene)


def test_groups_of_another_scheduler_get_no_status() -> None:
    async def scene(cluster: Gangs) -> None:
        await cluster.add_group(1)
        await cluster.add_members("m0", scheduler="default-scheduler")
        await asyncio.sleep(20.0)
        assert await cluster.status() == {}

    play(scene)


@pytest.mark.parametrize("count", [1, 4])
def test_gang_start_needs_few_status_writes_and_none_afterwards(count: int) -> None:
    async def scene(cluster: Gangs) -> None:
        await cluster.add_group(count)
        await cluster.add_members(*(f"m{number}" for number in range(count)))
        await asyncio.sleep(20.0)

        def writes() -> int:
            return sum(method == "PATCH" and "/podgroups/" in path for method, path in cluster.transport.requests)

        before = writes()
        assert 1 <= before <= 2
        await asyncio.sleep(900.0)
        assert writes() == before

    play(scene)
