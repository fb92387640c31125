"""Disruptions of volumes: limits of drivers, zones, missing controllers, and loss while pods wait at PreBind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from multisched.model.objects import Pod
from tests.kit.disruptions.run_context import Disruption, RunContext
from tests.kit.world.disks import GCE_DRIVER, IN_TREE, TIGHT, UNPROVISIONED
from tests.kit.world.storage import DYNAMIC, LOCAL

LIMITED: Final = (31, 33, 34)
"""Numbers of nodes that crowds use and whose kubelets report limits of drivers."""
FEW, MANY = 2, 9
"""Limits of a driver."""
ZONED_NODE: Final = "node-32"
"""A node that crowds use, in zone z2."""
SPARE_NODE: Final = "node-32"
SPARE: Final = 6
"""Number of temporary disks, and of pods that use them."""
ABSENT_MIN_S, ABSENT_MAX_S = 1.0, 3.0


async def _fill_limits(context: RunContext) -> bool:
    """Creates pods with more volumes for a node than its drivers attach, then detaches some and changes the limits."""
    number, disks = context.rng.choice(LIMITED), context.world.disks
    node = f"node-{number}"
    await disks.set_attachable(number, FEW, is_migrated=True)
    for at in range(2):
        await disks.attach(number, 100 + at, attacher=GCE_DRIVER)
    claimed = [f"limited-{context.mark()}" for _ in range(4)]
    for claim in claimed:
        await disks.add_claim(claim, DYNAMIC)
    volumes = [_of_claim(claim) for claim in claimed]
    volumes += [{"gcePersistentDisk": {"pdName": f"limited-{at}"}} for at in range(3)]
    volumes.append({"azureDisk": {"diskName": "d", "diskURI": "/d", "kind": "Dedicated"}})
    names = [await _place(context, node, volume) for volume in volumes]
    await context.pause(0.5, 1.5)
    await disks.attach(number, 110)
    for most in (FEW - 1, FEW + 1):
        await disks.set_attachable(number, most, is_migrated=True)
        await context.pause(0.2, 1.0)
    await disks.detach(number, 110)
    await disks.detach(number, 100)
    await context.pause(0.2, 1.0)
    await _lose_one(context, lambda pod: not pod.spec.volumes)
    await disks.detach(number, 101)
    await disks.set_attachable(number, MANY, is_migrated=True)
    await context.pause(0.5, 2.0)
    await _clear(context, names, claimed)
    return True


async def _lose_one(context: RunContext, wanted: Callable[[Pod], bool]) -> None:
    pod = context.any_pod(lambda pod: bool(pod.node) and wanted(pod))
    if pod is not None:
        await context.world.user.delete_pod(pod)


async def _exclude_by_volumes(context: RunContext) -> bool:
    """Creates pods with volumes in another zone, or with claims of another pod; the following changes do not help all of them."""
    disks = context.world.disks
    claim = "zoned-0"
    names = [await _place(context, ZONED_NODE, _of_claim(claim)) for _ in range(2)]
    foreign = f"contested-{context.mark()}"
    await disks.add_claim(f"{foreign}-v0", DYNAMIC)
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    names.append(await _place(context, ZONED_NODE, {"ephemeral": {"volumeClaimTemplate": template}}, name=foreign))
    vast = f"vast-{context.mark()}"
    await disks.add_claim(vast, TIGHT, size="9Gi")
    names.append(await _place(context, "", _of_claim(vast)))
    await context.pause(0.5, 1.5)
    await disks.add_claim(claim, DYNAMIC, namespace="team-a")
    await disks.note(31)
    for size in ("1Gi", "20Gi"):
        await disks.set_capacity("z0", size)
    for is_late in (False, True):
        await disks.add_class(f"unasked-{is_late}".lower(), is_late=is_late)
        await context.pause(0.2, 1.0)
    await disks.move_volume(0, "z0__")
    await context.pause(0.2, 1.0)
    await disks.move_volume(0, "z2")
    await context.pause(0.5, 1.5)
    await _clear(context, names, (f"{foreign}-v0", vast))
    return True


async def _stop_controllers(context: RunContext) -> bool:
    """Stops the storage controllers while pods wait at PreBind, and deletes or changes some of the objects that they wait for."""
    disks, key = context.world.disks, context.mark()
    spare = [f"spare-{key}-{at}" for at in range(SPARE)]
    for at, disk in enumerate(spare):
        await disks.add_disk(
            disk, SPARE_NODE, f"{at + 3}Gi", is_narrow=bool(at % 2), put_aside=f"aside-{key}" if not at else ""
        )
    await context.pause(0.5, 1.0)
    context.world.storage.stop()
    claims = [f"spared-{key}-{at}" for at in range(SPARE)]
    for claim in claims:
        await disks.add_claim(claim, LOCAL, size="3221225471500m")
    await disks.add_claim(f"aside-{key}", LOCAL)
    late = [f"{UNPROVISIONED}-{key}-{at}" for at in range(4)]
    for claim in late:
        await disks.add_claim(claim, IN_TREE if claim == late[-1] else UNPROVISIONED)
    claims += [f"aside-{key}", *late]
    names = [await _place(context, SPARE_NODE, _of_claim(claim)) for claim in claims]
    await context.until(lambda: len(_selected_nodes(context, claims)) > 2)
    await _disturb_storage(context, claims, late)
    await context.pause(ABSENT_MIN_S, ABSENT_MAX_S)
    context.world.storage.start()
    await context.pause(0.5, 2.0)
    await _clear(context, names, claims)
    for disk in spare:
        await disks.delete_volume(disk)
    return True


def _selected_nodes(context: RunContext, claims: Sequence[str]) -> dict[str, str]:
    """Returns claim -> volume that names it."""
    volumes = context.world.storage.volumes()
    return {one.claim.name: one.name for one in volumes if one.claim is not None and one.claim.name in claims}


async def _disturb_storage(context: RunContext, claims: Sequence[str], late: Sequence[str]) -> None:
    """Changes each waiting claim or its volume in another way."""
    disks = context.world.disks
    selected = _selected_nodes(context, claims)
    wanted = [claim for claim in claims if claim in selected and not claim.startswith("aside")]
    for claim, action in zip(wanted, (disks.delete_volume, disks.reset_volume), strict=False):
        await action(selected[claim])
    for claim in wanted[2:3]:
        await disks.delete_claim(claim)
    for claim in wanted[3:4]:
        await disks.take_claim(claim, "disk-0-0")
    await disks.delete_claim(late[0])
    await disks.unselect_node(late[1])
    await disks.take_claim(late[2], "disk-0-1")


async def _replace_disks(context: RunContext) -> bool:
    """Deletes disks of a node while pods need them, and adds larger ones."""
    disks, key = context.world.disks, context.mark()
    claims = [f"swapped-{key}-{at}" for at in range(4)]
    for claim in claims:
        await disks.add_claim(claim, LOCAL)
    names = []
    added = [f"swap-{key}-{at}" for at in range(4)]
    for at, disk in enumerate(added):
        await disks.add_disk(disk, SPARE_NODE, f"{at + 1}Gi", is_narrow=at > 1)
    await context.pause(0.2, 0.8)
    for claim in claims:
        names.append(await _place(context, "", _of_claim(claim)))
        await disks.delete_volume(added[len(names) - 1])
        await disks.add_disk(added[len(names) - 1], SPARE_NODE, f"{len(names) + 3}Gi", is_narrow=True)
        await context.pause(0.0, 0.3)
    await context.pause(0.5, 2.0)
    await _clear(context, names, claims)
    for disk in added:
        await disks.delete_volume(disk)
    return True


async def _place(context: RunContext, node: str, volume: dict[str, Any], *, name: str = "") -> str:
    """Creates a small pod with one volume for this node. Returns its name."""
    spec = {"volumes": [{"name": "v0", **volume}]}
    return await context.world.add_small_pod(node, spec, is_urgent=False, scheduler="forecast-scheduler", name=name)


def _of_claim(claim: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim}}


async def _clear(context: RunContext, names: Sequence[str], claims: Sequence[str]) -> None:
    for name in names:
        await context.world.user.delete_named(name)
    for claim in claims:
        await context.world.disks.delete_claim(claim)


TABLE = (
    Disruption("volumes beyond the limit", _fill_limits, 4),
    Disruption("volumes out of reach", _exclude_by_volumes, 3),
    Disruption("storage controllers away", _stop_controllers, 5),
    Disruption("disks replaced", _replace_disks, 3),
)
