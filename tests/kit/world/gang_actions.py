"""Actions on gangs owned by controllers: evictions, deletions, edits of their PodGroups, and late volumes.

Each action uses a pool of nodes of its own and leaves its pods there: they are checked at the end of the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tests.kit.world.gang_plans import Form
from tests.kit.world.gang_workloads import GangWorkload, GangWorkloads

GROUPED: Final = Form.PLUGINS
"""The form in which only the PodGroup has the minimum."""
HOSTILE: Final = 32
"""Number of members of a gang whose attempt is expensive."""
SLOW_S: Final = (1.0, 4.0)
"""Time until a volume is provisioned."""

Action = Callable[[GangWorkloads], Awaitable[None]]


# -- evictions -----------------------------------------------------------------------------------------------------------


async def _evict_a_gang(gangs: GangWorkloads) -> None:
    """Creates an urgent gang for the node of a gang whose members end slowly; another node has room for some replacements.

    The urgent gang may have more members than it needs, and more than fit.
    """
    pool, size = gangs.pool(), gangs.rng.randint(3, 5)
    node = await gangs.node(pool, size)
    await gangs.runs(await gangs.gang(pool, size, gangs.rng.randint(size - 1, size), node=""))
    await gangs.node(pool, gangs.rng.randint(1, size - 2))
    await gangs.gang(pool, size + gangs.rng.randint(0, 2), size, node=node, is_urgent=True)
    await gangs.pause(8.0)


async def _evict_and_delete(gangs: GangWorkloads) -> None:
    """Evicts one of two gangs while the other one is deleted and recreated: there is room for one of them."""
    pool, size = gangs.pool(), gangs.rng.randint(3, 4)
    node = await gangs.node(pool, size)
    await gangs.runs(await gangs.gang(pool, size, size))
    await gangs.node(pool, size)
    second = await gangs.gang(pool, size, size)
    await gangs.runs(second)
    await gangs.pod(pool, str(size), node=node, is_urgent=True)
    await gangs.pause(3.0)
    await gangs.create_again(second)
    await gangs.pause(8.0)


async def _preempt_at_once(gangs: GangWorkloads) -> None:
    """Creates several urgent pods at once, each of which fits after evicting the surplus of a gang; and again when the first are
    bound.
    """
    pool, extra = gangs.pool(), gangs.rng.randint(1, 2)
    size = 4 + extra
    await gangs.node(pool, size)
    await gangs.runs(await gangs.gang(pool, size, 4))
    for count in (gangs.rng.randint(2, 3), gangs.rng.randint(0, 1)):
        urgent = [await gangs.pod(pool, str(extra), is_urgent=True) for _ in range(count)]
        await gangs.all_bound(urgent)


async def _preempt_members_apart(gangs: GangWorkloads) -> None:
    """Creates urgent pods on both nodes of a running gang at once."""
    pool = gangs.pool()
    nodes = [await gangs.node(pool, 3) for _ in range(2)]
    await gangs.runs(await gangs.gang(pool, 6, gangs.rng.randint(4, 5)))
    for node in nodes:
        await gangs.pod(pool, str(gangs.rng.randint(1, 2)), node=node, is_urgent=True)
    await gangs.pause(8.0)


# -- deletions and later runs --------------------------------------------------------------------------------------------


async def _create_again(gangs: GangWorkloads) -> None:
    """Deletes a gang and recreates it under its name, on nodes that take fewer members than before."""
    pool, size = gangs.pool(), gangs.rng.randint(3, 5)
    node = await gangs.node(pool, size)
    gang = await gangs.gang(pool, size, size)
    await gangs.runs(gang)
    await gangs.node(pool, gangs.rng.randint(1, size - 1))
    await gangs.cordon(node)
    await gangs.create_again(gang)
    await gangs.pause(8.0)


async def _run_again(gangs: GangWorkloads) -> None:
    """Recreates a Job under its name: some members of its earlier run have succeeded, and there is room for some of the others."""
    pool, size = gangs.pool(), gangs.rng.randint(3, 5)
    node = await gangs.node(pool, size)
    gang = await gangs.gang(pool, size, size, is_job=True)
    await gangs.runs(gang)
    for pod in gangs.running(gang)[: gangs.rng.randint(2, size)]:
        await gangs.kubelets.end_pod(pod, "Succeeded")
    await gangs.node(pool, gangs.rng.randint(1, size - 1))
    await gangs.cordon(node)
    await gangs.pause(1.0)
    await gangs.create_again(gang)
    await gangs.pause(8.0)


async def _roll_out(gangs: GangWorkloads) -> None:
    """Deletes members of a running gang one after the other. Those beyond the minimum may fit on no node at first."""
    pool, size = gangs.pool(), gangs.rng.randint(3, 5)
    await gangs.node(pool, size + gangs.rng.randint(0, 1))
    least = gangs.rng.randint(2, size)
    misfits = gangs.rng.choice((0, size - least))
    gang = await gangs.gang(pool, size, least, misfits=misfits)
    await gangs.runs(gang, size - misfits)
    for _ in range(gangs.rng.randint(1, 3)):
        await gangs.delete_members(gang, 1)
        await gangs.runs(gang, size - misfits)
    await gangs.pause(2.0)


# -- PodGroups -----------------------------------------------------------------------------------------------------------


async def _edit_after_nomination(gangs: GangWorkloads) -> None:
    """Makes a gang unable to start before or right after its victim has ended; a pod that it excluded waits for that.

    In one case of five the gang is unchanged, and starts.
    """
    pool, is_early = gangs.pool(), gangs.rng.random() < 0.5
    node = await gangs.node(pool, 4)
    victim = await gangs.pod(pool, "4", has_finalizer=True)
    await gangs.until(lambda: bool((pod := gangs.named(victim)) and pod.node))
    kept_out = "" if is_early else await gangs.pod(pool, "3")
    gang = await gangs.gang(pool, 2, 2, cpu="2", node=node, is_urgent=True, form=GROUPED)
    await gangs.until(lambda: bool((pod := gangs.named(victim)) and pod.is_deleting))
    if is_early:
        await gangs.pause(3.0)
    else:
        await _end(gangs, victim)
        await gangs.until(lambda: gangs.named(victim) is None, 2.0)
    await _make_unstartable(gangs, gang)
    await gangs.pause(2.0)
    kept_out = kept_out or await gangs.pod(pool, "3")
    await _end(gangs, victim)
    await gangs.until(lambda: bool((pod := gangs.named(kept_out)) and pod.node), 8.0)


async def _end(gangs: GangWorkloads, name: str) -> None:
    """Removes the pod's finalizer, if the pod exists."""
    if (pod := gangs.named(name)) is not None:
        await gangs.end(pod)


async def _make_unstartable(gangs: GangWorkloads, gang: GangWorkload) -> None:
    """Makes a gang of two unable to start; in one case of five it still can."""
    kind = gangs.rng.randrange(5)
    if kind == 0:
        gang.is_active = False
        await gangs.delete_members(gang, 1)
    elif kind == 1:
        await gangs.delete_group(gang)
    elif kind == 2:
        await gangs.edit_group(gang, minimum=3)
    elif kind == 3:
        await gangs.edit_group(gang, topology="sim/nowhere:required")


async def _edit_a_waiting_gang(gangs: GangWorkloads) -> None:
    """Edits the PodGroup of a pending gang until it fits."""
    pool, size = gangs.pool(), gangs.rng.randint(4, 6)
    await gangs.node(pool, size - 1)
    gang = await gangs.gang(pool, size, size, form=GROUPED, topology=gangs.rng.choice(("", "sim/nowhere:required")))
    await gangs.pause(4.0)
    for _ in range(gangs.rng.randint(1, 2)):
        await _edit(gangs, gang)
        await gangs.pause(4.0)
    await gangs.edit_group(gang, minimum=size - 1, topology="")
    await gangs.pause(4.0)


async def _edit_a_running_gang(gangs: GangWorkloads) -> None:
    """Edits the PodGroup of a running gang, then creates urgent pods for its room."""
    pool, size = gangs.pool(), gangs.rng.randint(4, 6)
    await gangs.node(pool, size)
    gang = await gangs.gang(pool, size, gangs.rng.randint(2, size), form=GROUPED)
    await gangs.runs(gang)
    for _ in range(gangs.rng.randint(1, 3)):
        await _edit(gangs, gang)
        await gangs.pause(3.0)
    for _ in range(gangs.rng.randint(0, 2)):
        await gangs.pod(pool, "1", is_urgent=True)
    await gangs.pause(4.0)


async def _edit(gangs: GangWorkloads, gang: GangWorkload) -> None:
    """Edits a PodGroup; it is valid afterwards."""
    kind = gangs.rng.randrange(4)
    if kind == 0:
        await gangs.delete_group(gang)
        await gangs.pause(3.0)
        await gangs.create_group(gang)
    elif kind == 1:
        await gangs.edit_group(gang, topology=gangs.rng.choice(("", "zone:required", "zone")))
    else:
        await gangs.edit_group(gang, minimum=max(gang.plan.minimum + gangs.rng.choice((-1, -1, 1)), 1))


# -- volumes -------------------------------------------------------------------------------------------------------------


async def _wait_for_a_volume(gangs: GangWorkloads) -> None:
    """Delays the volume of one member. Its node may be cordoned meanwhile; then neither this member nor another one may be
    bound.
    """
    pool, size = gangs.pool(), gangs.rng.randint(3, 4)
    node, claim = await gangs.node(pool, size), await gangs.claim()
    await gangs.gang(pool, size, size, claims=[claim])
    await gangs.until(lambda: gangs.storage.has_node(claim), 8.0)
    if gangs.rng.random() < 0.75:
        await gangs.pause(1.0)
        await gangs.cordon(node)
    await gangs.pause(SLOW_S[1])
    await gangs.provision(claim)
    await gangs.pause(8.0)


# -- cost ----------------------------------------------------------------------------------------------------------------


async def _search_expensively(gangs: GangWorkloads) -> None:
    """Creates a gang whose members have different preferences, and one of which fits nowhere: every topology domain is searched
    without success.
    """
    pool = gangs.pool()
    for _ in range(4):
        await gangs.node(pool, HOSTILE // 2)
    gang = await gangs.gang(pool, HOSTILE, HOSTILE, cpu="10m", topology="zone:required,kubernetes.io/hostname")
    gang.has_preferences = True
    await gangs.until(lambda: len(gangs.members(gang)) == HOSTILE)
    await gangs.pause(4.0)
    gang.replicas = 0
    await gangs.delete_members(gang)


ACTIONS: Final[Mapping[str, Action]] = {
    "gang evicted": _evict_a_gang,
    "gang evicted, another one deleted": _evict_and_delete,
    "gang beside several urgent pods": _preempt_at_once,
    "gang on two nodes beside urgent pods": _preempt_members_apart,
    "gang created again": _create_again,
    "job of a gang run again": _run_again,
    "gang rolled out": _roll_out,
    "gang changed after its nomination": _edit_after_nomination,
    "podgroup of a waiting gang changed": _edit_a_waiting_gang,
    "podgroup of a running gang changed": _edit_a_running_gang,
    "gang with a late volume": _wait_for_a_volume,
    "gang that costs too much": _search_expensively,
}
