"""Scenarios of volumes: the reason that excludes a pod from a node ends, and no other event occurs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import PODS
from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.steps import (
    PLAIN_MILLI,
    Scenarios,
    bound_pods,
    cpu_by_node,
    create_pod,
    expect_bound,
    expect_pending,
    is_led_by,
    steady_leader,
)
from tests.kit.world.disks import UNPROVISIONED
from tests.kit.world.storage import DYNAMIC, LOCAL

WITH_DRIVERS: Final = (31, 32, 33, 34)
"""Numbers of nodes that crowds use and whose kubelets report limits of drivers."""
SPARE_PODS, SPARE_MILLI = 10, 500
"""Free pods and CPU that a node must have: a pod waiting there waits only for its volume."""
HUGE: Final = "50Gi"
"""Larger than all other disks."""
AT_ONCE_S: Final = 6.0
"""Time within which a claim that lost its node gets another one: PreBind checks once a second, and the failure backs off for
one.
"""


async def _count_volumes(context: RunContext) -> bool:
    """Uses a driver that attaches two volumes to a node: pods with volumes are deleted, others are placed, and the first ones are
    created again.
    """
    number = _node_with_room(context)
    if number is None:
        return False
    node, key, disks = f"node-{number}", context.mark(), context.world.disks
    driver = f"{key}.sim"
    volumes = [f"counted-{key}-{at}" for at in range(5)]
    for volume in volumes:
        await disks.add_attachable(volume, driver)
    await disks.add_driver(number, driver, 2)
    await disks.attach_volume(number, volumes[4], driver)
    await context.pause(0.5, 1.0)
    await context.until(lambda: _all_know(context, f"attached-{volumes[4]}"))
    first = await _add_pod_with_claim(context, node, volumes[0])
    await context.until(lambda: bool(bound_pods(context, [first])))
    if not _all_know(context, f"attached-{volumes[4]}"):
        return False  # a process has no open watch
    second = await _add_pod_with_claim(context, node, volumes[1])
    await expect_pending(
        context, node, second, "its driver attaches two volumes, and another's is attached", beside=[first]
    )
    await disks.detach_volume(volumes[4])
    await expect_bound(context, node, second, "another's volume was detached")
    third = await _add_pod_with_claim(context, node, volumes[2])
    await expect_pending(context, node, third, "its driver attaches two volumes, and has them", beside=[first, second])
    await context.world.user.delete_named(first)
    await expect_bound(context, node, third, "a pod with a volume has gone")
    again = await _add_pod_with_claim(context, node, volumes[0])
    await expect_pending(context, node, again, "others have taken the place of its volume", beside=[second, third])
    await context.world.user.delete_named(again)  # like upstream, deleting a claim requeues no pod
    await disks.delete_in_use(volumes[2])
    fourth = await _add_pod_with_claim(context, node, volumes[3])
    await expect_bound(context, node, fourth, "a claim is deleted, and its volume with it")
    return True


def _all_know(context: RunContext, attachment: str) -> bool:
    objects = [process.program.cache.objects for process in context.replicas.running]
    return all(known.get(ObjectKind.VOLUME_ATTACHMENT, "", attachment) is not None for known in objects)


async def _await_volumes(context: RunContext) -> bool:
    """Creates pods that wait for a claim of another pod, a disk, a class, a zone and a provisioner; each is provided separately."""
    number = _node_with_room(context)
    if number is None:
        return False
    node, key = f"node-{number}", context.mark()
    await context.world.disks.raise_limits(number)
    parts = (_share_claim, _add_first_disk, _replace_class, _move_volume, _take_node_back)
    await asyncio.gather(*(part(context, number, node, f"{key}-{at}") for at, part in enumerate(parts)))
    return True


async def _share_claim(context: RunContext, number: int, node: str, key: str) -> None:
    """Creates two pods of one spec with one ReadWriteOncePod claim."""
    claim = f"alone-{key}"
    await context.world.disks.add_claim(claim, DYNAMIC, mode="ReadWriteOncePod")
    await context.pause(0.2, 0.5)
    first = await _add_pod_with_claim(context, node, claim)
    await context.until(lambda: bool(bound_pods(context, [first])))
    second = await _add_pod_with_claim(context, node, claim)
    await expect_pending(context, node, second, "its claim is for one pod, and another has it", beside=[first])
    await context.world.user.delete_named(first)
    await expect_bound(context, node, second, "its claim is nobody's any more")


async def _add_first_disk(context: RunContext, number: int, node: str, key: str) -> None:
    """Creates disks with a new node affinity: one that the node does not meet, and one that it does."""
    claim, disks = f"first-{key}", context.world.disks
    await disks.add_claim(claim, LOCAL, size=HUGE)
    await context.pause(0.2, 0.5)
    name = await _add_pod_with_claim(context, node, claim)
    await disks.add_disk(f"far-{key}", "node-0", HUGE, is_narrow=False, beside=f"nowhere-{key}")
    await expect_pending(context, node, name, "the only disk of its size is out of reach")
    await disks.add_disk(f"near-{key}", node, HUGE, is_narrow=False, beside=f"nowhere-{key}")
    await expect_bound(context, node, name, "a disk has come")


async def _replace_class(context: RunContext, number: int, node: str, key: str) -> None:
    """Creates the class after the pod, for other zones, then recreates it for the node's zone too."""
    claim, disks, zone = f"classed-{key}", context.world.disks, number % 3
    elsewhere = [f"z{(zone + 1) % 3}", f"z{(zone + 2) % 3}"]
    await disks.add_claim(claim, f"class-{key}")
    await context.pause(0.2, 0.5)
    name = await _add_pod_with_claim(context, node, claim)
    await expect_pending(context, node, name, "there is no such class")
    await disks.add_reaching_class(f"class-{key}", elsewhere)
    await expect_pending(context, node, name, "its class is for other zones")
    await disks.delete_class(f"class-{key}")
    await disks.add_reaching_class(f"class-{key}", [*elsewhere, f"z{zone}"])
    await expect_bound(context, node, name, "its class is for this zone, too")


async def _move_volume(context: RunContext, number: int, node: str, key: str) -> None:
    """Changes the zone of a volume twice: of two pods with the same claim, one is created while the zone is the node's."""
    volume, disks, zone = f"moved-{key}", context.world.disks, number % 3
    label = "topology.kubernetes.io/zone"
    await disks.add_attachable(volume, f"zones-{key}.sim", {label: f"z{(zone + 1) % 3}"})
    await context.pause(0.5, 1.0)
    name = await _add_pod_with_claim(context, node, volume)
    await expect_pending(context, node, name, "its volume is in another zone")
    await disks.label_volume(volume, {label: f"z{zone}"})
    await expect_bound(context, node, name, "its volume is in this zone now")
    await disks.label_volume(volume, {label: f"z{(zone + 2) % 3}"})
    await context.pause(0.3, 0.8)
    await expect_pending(
        context, node, await _add_pod_with_claim(context, node, volume), "its volume is in another zone now"
    )


async def _take_node_back(context: RunContext, number: int, node: str, key: str) -> None:
    """Removes the selected node of a claim, as a provisioner does on failure: the pod is scheduled again and selects a node
    again.
    """
    claim, disks = f"{UNPROVISIONED}-{key}", context.world.disks
    await disks.add_claim(claim, UNPROVISIONED)
    await context.pause(0.2, 0.5)
    name = await _add_pod_with_claim(context, node, claim)
    is_selected = partial(context.world.storage.has_node, claim)
    await context.until(is_selected)
    before = steady_leader(context) if is_selected() else None
    await disks.unselect_node(claim)
    await context.until(is_selected, AT_ONCE_S)
    if is_led_by(context, before) and not is_selected():
        context.bind_checker.report_violation(
            f"I3: {name} lost the node that was chosen for its volume, and is not decided anew"
        )
    await context.world.user.delete_named(name)


def _node_with_room(context: RunContext) -> int | None:
    """Returns the number of a node with reported drivers and room for the pods of a scenario; None if there is none."""
    nodes, amounts = context.bind_checker.nodes(), cpu_by_node(context)
    found = []
    for number in WITH_DRIVERS:
        node = nodes.get(f"node-{number}")
        pods = sum(pod.node == f"node-{number}" for pod in context.world.pods())
        if node is not None and pods + SPARE_PODS <= node.allocatable.get(PODS, 0):
            found += [number] * (amounts[node.name] + SPARE_MILLI <= PLAIN_MILLI)
    return context.rng.choice(found) if found else None


async def _add_pod_with_claim(context: RunContext, node: str, claim: str) -> str:
    spec = {"volumes": [{"name": "v0", "persistentVolumeClaim": {"claimName": claim}}]}
    return await create_pod(context, node, 10, spec=spec)


SCENARIOS: Final[Scenarios] = (
    ("volumes counted", _count_volumes),
    ("volumes awaited", _await_volumes),
)
