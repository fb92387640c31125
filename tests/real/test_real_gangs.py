"""Gangs on the real control plane, with the rights of `deploy/base` and the definitions of `deploy/crds`.

Each API by which pods say that they start together, Kubernetes' own among them, and a leader that is killed while gangs are bound.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tests.perf import gangs
from tests.real.admin import PODS, Admin, until
from tests.real.control_plane import GANG_API, ControlPlane
from tests.real.deployed import MULTISCHED, Deployed, Scheduler
from tests.real.witness import Witness

pytestmark = pytest.mark.timeout(300)

CRDS: Final = Path(__file__).parents[2] / "deploy" / "crds"
SIZE: Final = 3
LIMIT_S: Final = 60
STOP_GRACE_S: Final = 30.0
ACK: Final = "pod-group.scheduling.sigs.k8s.io"
KOORDINATOR: Final = "gang.scheduling.koordinator.sh"
SCHEDULER_PLUGINS: Final = "scheduling.x-k8s.io/pod-group"

MADE_BY: Final[Mapping[str, Mapping[str, Any]]] = {
    # gang: what its members have; the last three have a PodGroup besides
    "ack": {"labels": {f"{ACK}/name": "ack", f"{ACK}/min-available": str(SIZE)}},
    "koordinator": {"annotations": {f"{KOORDINATOR}/name": "koordinator", f"{KOORDINATOR}/min-available": str(SIZE)}},
    "plugins": {"labels": {SCHEDULER_PLUGINS: "plugins"}},
    "sigs": {"labels": {ACK: "sigs"}},
    "kubernetes": {"spec": {"schedulingGroup": {"podGroupName": "kubernetes"}}},
}
GROUPS: Final = {
    "plugins": "scheduling.x-k8s.io/v1alpha1",
    "sigs": "scheduling.sigs.k8s.io/v1alpha1",
}
GANG_SIZE: Final = 60
GANGS: Final = 10
KILL_AT: Final = 150


def node(name: str, cpu: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpu), "memory": "400Gi", "pods": "250"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def member(gang: str, number: int, cpu: str = "1", **said: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{gang}-{number}",
            "labels": said.get("labels", {}),
            "annotations": said.get("annotations", {}),
        },
        "spec": {"schedulerName": "forecast-scheduler", "containers": [container], **said.get("spec", {})},
    }


def pod_group(api: str, name: str, least: int) -> dict[str, Any]:
    return {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": name}, "spec": {"minMember": least}}


async def pod_of(admin: Admin, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await admin.request("GET", f"{PODS}/{name}")
    return found


async def scheduled_condition(admin: Admin, name: str) -> tuple[str, str]:
    """Reason and message of its PodScheduled condition; empty while it has none."""
    conditions = (await pod_of(admin, name))["status"].get("conditions") or ()
    return next(((one["reason"], one["message"]) for one in conditions if one["type"] == "PodScheduled"), ("", ""))


async def bound_of(admin: Admin) -> Counter[str]:
    """Gang -> its members that have a node."""
    bound = [pod["metadata"]["name"] for pod in await admin.items(PODS) if pod["spec"].get("nodeName")]
    return Counter(name.rpartition("-")[0] for name in bound)


async def ended(scheduler: Scheduler) -> None:
    """It ends well, and has lacked no right."""
    assert await scheduler.program.stop(STOP_GRACE_S) == 0
    assert scheduler.denials() == scheduler.failures() == []


async def test_gangs_of_every_api_start_completely_and_their_status_is_written(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, gangs=True) as plane, Admin.open(plane) as admin:
        await plane.apply_definitions(CRDS)
        await admin.create(node("a", 8))
        await admin.create(node("b", 8))
        objects = [pod_group(api, name, SIZE) for name, api in GROUPS.items()]
        objects += [gangs.workload_of("kubernetes", SIZE), gangs.pod_group_of("kubernetes", SIZE)]
        for document in [*objects, pod_group(GROUPS["plugins"], "broken", 0)]:
            await plane.kubectl("apply", "-f", "-", document=json.dumps(document))
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        scheduler = await deployed.start("only")
        await scheduler.wait_ready()
        await admin.create_all(member(gang, at, **said) for gang, said in MADE_BY.items() for at in range(SIZE - 1))
        await admin.create(member("broken", 0, labels={SCHEDULER_PLUGINS: "broken"}))
        for gang in MADE_BY:
            waits = ("SchedulingGated", f"gang default/{gang}: waits until {SIZE} members are there")

            async def hears(gang: str = gang, waits: tuple[str, str] = waits) -> bool:
                return await scheduled_condition(admin, f"{gang}-0") == waits

            await until(hears, LIMIT_S)

        async def is_told() -> bool:
            return "spec.minMember is 0" in (await scheduled_condition(admin, "broken-0"))[1]

        await until(is_told, LIMIT_S)
        assert await bound_of(admin) == Counter()
        await admin.create_all(member(gang, SIZE - 1, **said) for gang, said in MADE_BY.items())
        whole = dict.fromkeys(MADE_BY, SIZE)

        async def are_whole() -> bool:
            return await bound_of(admin) == whole

        await until(are_whole, LIMIT_S)
        # One CPU is left, and the gang needs three.
        await admin.create_all(member("roomless", at, labels=ack_labels("roomless", SIZE)) for at in range(SIZE))

        async def has_no_room() -> bool:
            reason, message = await scheduled_condition(admin, "roomless-0")
            return reason == "Unschedulable" and "members that must start together fit" in message

        await until(has_no_room, LIMIT_S)
        for name, api in GROUPS.items():
            kind = f"podgroups.{api.partition('/')[0]}"
            await plane.kubectl("wait", "--for=jsonpath={.status.phase}=Running", f"{kind}/{name}", "--timeout=50s")
            status = json.loads(await plane.kubectl("get", f"{kind}/{name}", "-o", "json"))["status"]
            assert (status["scheduled"], status["running"]) == (SIZE, SIZE)
        condition = f"--for=condition={gangs.SCHEDULED[1]}=True"
        own = f"podgroups.{GANG_API.partition('/')[0]}/kubernetes"
        await plane.kubectl("wait", condition, own, "--timeout=50s")
        broken = await plane.kubectl("describe", "podgroups.scheduling.x-k8s.io/broken")
        assert "spec.minMember is 0" in broken
        assert await bound_of(admin) == whole
        await ended(scheduler)


def ack_labels(gang: str, least: int) -> dict[str, str]:
    return {f"{ACK}/name": gang, f"{ACK}/min-available": str(least)}


def large_gangs() -> Iterator[dict[str, Any]]:
    for number in range(GANGS):
        gang = f"gang{number}"
        for at in range(GANG_SIZE):
            yield member(gang, at, "500m", labels=ack_labels(gang, GANG_SIZE))
    for at in range(GANG_SIZE):
        yield member("too-large", at, "20" if at else "500m", labels=ack_labels("too-large", GANG_SIZE))


async def test_gangs_partially_bound_by_a_killed_leader_are_completed(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False) as plane, Admin.open(plane) as admin:
        await admin.create_all(node(f"node-{number}", 16) for number in range(20))
        deployed = await Deployed.install(plane)
        first = await deployed.start("first")
        await first.wait_leading(admin)
        second = await deployed.start("second")
        await second.wait_ready()
        async with Witness.watching(admin) as witness, anyio.create_task_group() as tasks:
            tasks.start_soon(admin.create_all, large_gangs())
            await witness.wait(lambda: witness.bound >= KILL_AT, LIMIT_S)
            assert await first.program.kill() == -9
            assert witness.bound < GANGS * GANG_SIZE, "all were bound before the leader was killed"
            await witness.wait(lambda: witness.bound == GANGS * GANG_SIZE, 2 * LIMIT_S)
        assert await bound_of(admin) == {f"gang{number}": GANG_SIZE for number in range(GANGS)}
        assert (witness.moved, witness.overcommitted) == ([], [])
        await ended(second)
