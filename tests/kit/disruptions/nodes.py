"""Disruptions of nodes: deleted, recreated, resized, cordoned, tainted, relabelled, lent, or moved to another domain."""

from __future__ import annotations

import asyncio
from typing import Any

from multisched.config.nodes import DOMAIN_LABEL
from tests.kit.disruptions.run_context import HANDED_OVER_S, SENT_S, SLOW, Disruption, RunContext, RunKind
from tests.kit.wire.faults import FOREIGN
from tests.kit.world.labels import ZONE
from tests.kit.world.nodes import CROWDED, FAVOURITE, NODES, PAIRS

DELETABLE_NODES = NODES // 4
ADDED = 32
"""Number of nodes that are added at once."""
OWN_TAINT = "sim/upkeep"
PLAIN, VIRTUAL = (4, 5, 6, 10, 11, 12, 13, 14, 15, 16), (9, 19, 29, 39)
"""Numbers of nodes that these disruptions change: plain nodes of the forecast domain, and virtual nodes."""


async def _delete(context: RunContext) -> bool:
    await context.world.nodes.delete(context.rng.randrange(DELETABLE_NODES))
    return True


async def _replace(context: RunContext) -> bool:
    """Deletes a node and recreates it under its name."""
    number = context.rng.randrange(DELETABLE_NODES)
    await context.world.nodes.delete(number)
    await context.pause(0.0, 1.0)
    await context.world.nodes.add(number)
    return True


async def _replace_wanted(context: RunContext) -> bool:
    """Does the same while binds to the node are waiting."""
    number = context.rng.choice(PLAIN)
    async with context.throttled():
        await context.world.crowds.add(f"node-{number}", 6, is_mixed=True)
        await context.pause(0.0, 0.05)
        await context.world.nodes.delete(number)
        await context.pause(0.0, 0.5)
        await context.world.nodes.add(number)
        await context.pause(0.2, 1.0)
    await context.world.crowds.add(f"node-{number}", 10, is_mixed=True)
    return True


async def _take_room(context: RunContext) -> bool:
    """Places pods of another scheduler in the room of pods whose binds are waiting, and deletes them again."""
    name = f"node-{context.rng.choice(CROWDED)}"
    async with context.throttled():
        await context.world.crowds.add(name, 6, cpu="600m", is_mixed=True)
        await context.pause(0.0, 0.1)
        for _ in range(2):
            await context.world.external_actors.place(name, annotations={}, cpu=context.rng.choice(("900m", "1800m")))
        await context.world.crowds.add(name, 4)
        await context.pause(0.5, 1.5)
    for pod in [pod for pod in context.world.pods() if pod.node == name and pod.name.startswith(FOREIGN)]:
        await context.world.user.delete_pod(pod)
    return True


async def _change(context: RunContext, name: str, patch: dict[str, Any], back: dict[str, Any]) -> bool:
    """Patches a node while a crowd for it is being scheduled and bound, and reverts the patch seconds later."""
    scheduler = "job-scheduler" if int(name.removeprefix("node-")) in VIRTUAL else "forecast-scheduler"
    async with context.throttled():
        await context.world.crowds.add(name, 8, scheduler=scheduler, is_mixed=True)
        await context.pause(0.0, 0.06)
        if not await context.world.nodes.patch(name, patch):
            return False
        await context.world.crowds.add(name, 4, scheduler=scheduler)
        await context.pause(0.5, 1.5)
    await context.pause(1.5, 6.0)
    await _make_room(context, name, scheduler)
    await context.world.nodes.patch(name, back)
    return True


async def _make_room(context: RunContext, name: str, scheduler: str) -> None:
    """Deletes some pods of the node and creates others that must wait for it: only the following reverted patch helps these."""
    for pod in [pod for pod in context.world.pods() if pod.node == name][:3]:
        await context.world.user.delete_pod(pod)
    await context.world.crowds.add(name, 3, scheduler=scheduler)
    await context.pause(0.4, 0.9)


async def _shrink(context: RunContext) -> bool:
    """Reduces the allocatable CPU of a node: its pods stay, and none may be added."""
    name = f"node-{context.rng.choice(PLAIN)}"
    small = context.rng.choice(("1", "2", "2500m"))
    return await _change(context, name, _allocatable(cpu=small), _allocatable(cpu="4"))


async def _grow(context: RunContext) -> bool:
    """Increases the allocatable CPU of a node: pods that wait for room are requeued."""
    name = f"node-{context.rng.choice(PLAIN)}"
    return await _change(context, name, _allocatable(cpu="6", pods="30"), _allocatable(cpu="4", pods="20"))


async def _cordon_wanted(context: RunContext) -> bool:
    name = f"node-{context.rng.choice(PLAIN)}"
    return await _change(context, name, {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}})


async def _cordon_favourite(context: RunContext) -> bool:
    """Cordons the preferred node while a burst of pods is being scheduled."""
    for _ in range(8):
        await context.world.add_pod(scheduler="forecast-scheduler")
    await context.pause(0.0, 0.008)
    if not await context.world.nodes.patch(FAVOURITE, {"spec": {"unschedulable": True}}):
        return False
    await context.pause(1.0, 8.0)
    await context.world.nodes.patch(FAVOURITE, {"spec": {"unschedulable": None}})
    return True


async def _taint(context: RunContext, effect: str) -> bool:
    number = context.rng.choice((*PLAIN, *VIRTUAL))
    node = context.bind_checker.nodes().get(f"node-{number}")
    if node is None:
        return False
    before = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node.taints]
    taints = [*before, {"key": OWN_TAINT, "effect": effect}]
    return await _change(context, node.name, {"spec": {"taints": taints}}, {"spec": {"taints": before}})


async def _close_half_of_pair(context: RunContext) -> bool:
    """Creates pods for two nodes: one is full, the other is closed for another reason, and then opened.

    Each of these pods is refused by two plugins, one of which never allows the node that it refuses.
    """
    world, pair = context.world, context.rng.choice(PAIRS)
    half = f"node-{pair.removeprefix('pair-')}"
    shut, opened = context.rng.choice(
        (
            ({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}),
            ({"spec": {"taints": [{"key": OWN_TAINT, "effect": "NoSchedule"}]}}, {"spec": {"taints": None}}),
            ({"metadata": {"labels": {"open": None}}}, {"metadata": {"labels": {"open": "yes"}}}),
        )
    )
    for number in range(2):
        await world.nodes.patch(
            f"node-{int(half.removeprefix('node-')) + number}", {"metadata": {"labels": {"open": "yes"}}}
        )
    if not await world.nodes.patch(half, shut):
        return False
    spec = {"nodeSelector": {"pair": pair, "open": "yes"}}
    names = [
        await world.add_small_pod("", spec, is_urgent=False, scheduler="forecast-scheduler", cpu="900m")
        for _ in range(7)
    ]
    await context.pause(1.5, 4.0)
    await world.nodes.patch(half, opened)
    await context.pause(1.0, 3.0)
    for name in names:
        await world.user.delete_named(name)
    return True


async def _taint_no_schedule(context: RunContext) -> bool:
    return await _taint(context, "NoSchedule")


async def _taint_no_execute(context: RunContext) -> bool:
    """Adds a NoExecute taint: the taint manager deletes pods that do not tolerate it (`world.kubelets`)."""
    return await _taint(context, "NoExecute")


async def _relabel_zone(context: RunContext) -> bool:
    """Changes the zone of a node while pods are being spread."""
    number = context.rng.choice(PLAIN)
    zone = {"metadata": {"labels": {ZONE: f"z{(number + 1) % 3}"}}}
    return await _change(context, f"node-{number}", zone, {"metadata": {"labels": {ZONE: f"z{number % 3}"}}})


async def _move_domain(context: RunContext) -> bool:
    """Moves a node to another domain and back, while pods of the first domain are being bound to it and pods of the other one wait
    for it.
    """
    number = context.rng.choice((*PLAIN, *VIRTUAL))
    ours, theirs = ("job", "forecast") if number in VIRTUAL else ("forecast", "job")
    name = f"node-{number}"
    there, back = {DOMAIN_LABEL: theirs}, {DOMAIN_LABEL: None}
    is_slow = context.rng.random() < SLOW
    async with context.slow_binds(name) if is_slow else context.throttled():
        await context.world.crowds.add(name, 8, scheduler=f"{ours}-scheduler", respects_taints=False)
        await context.pause(0.0, 0.06)
        if is_slow:
            await context.until(lambda: context.bind_checker.in_flight.is_bound_to(name), SENT_S)
        if not await context.world.nodes.patch(name, {"metadata": {"labels": there}}):
            return False
        await context.world.crowds.add(name, 8, scheduler=f"{theirs}-scheduler", respects_taints=False)
        await context.pause(*(HANDED_OVER_S if is_slow else (0.5, 1.5)))
    await context.pause(0.0, 6.5)
    await context.world.crowds.add(name, 4, scheduler=f"{theirs}-scheduler", respects_taints=False)
    await context.pause(0.0, 0.06)
    await context.world.nodes.patch(name, {"metadata": {"labels": back}})
    await context.world.crowds.add(name, 4, scheduler=f"{ours}-scheduler", respects_taints=False)
    return True


async def _withdraw_loan(context: RunContext) -> bool:
    """Ends the loan of all lent nodes while a burst of borrowing pods is being scheduled."""
    for _ in range(8):
        await context.world.add_pod(scheduler="job-scheduler")
    await context.pause(0.0, 0.008)
    lent = [node.name for node in context.bind_checker.nodes().values() if node.labels.get("lend") == "yes"]
    for name in lent:
        await context.world.nodes.patch(name, {"metadata": {"labels": {"lend": "no"}}})
    await context.pause(1.0, 8.0)
    for name in lent:
        await context.world.nodes.patch(name, {"metadata": {"labels": {"lend": "yes"}}})
    return bool(lent)


async def _heartbeats(context: RunContext) -> bool:
    """Patches every node with a heartbeat, which changes nothing relevant."""
    for node in list(context.bind_checker.nodes().values()):
        beat = {"metadata": {"annotations": {"sim/beat": f"{context.now_s():.3f}"}}}
        await context.world.nodes.patch(node.name, beat)
        await asyncio.sleep(0.001)
    return True


async def _scale_out(context: RunContext) -> bool:
    """Doubles the cluster and shrinks it again: many pods find room, and are evicted again."""
    first = 100 + 40 * context.nodes_added
    context.nodes_added += 1
    for number in range(first, first + ADDED):
        await context.world.nodes.add(number)
        await asyncio.sleep(0.001)
    await context.world.crowds.fill(3)
    await context.pause(3.0, 9.0)
    for number in range(first, first + ADDED):
        await context.world.nodes.delete(number)
    return True


async def _report_nonsense(context: RunContext) -> bool:
    """Reports an absurd amount of CPU: no pod may be placed there until the kubelet reports a valid one."""
    name = f"node-{context.rng.choice(PLAIN)}"
    return await _change(context, name, _allocatable(cpu="9000000000000"), _allocatable(cpu="4"))


async def _pull_images(context: RunContext) -> bool:
    """Changes the images that some kubelets report."""
    for number in context.rng.sample(PLAIN, 5):
        names = [f"app-{at}:v1" for at in range(4) if context.rng.random() < 0.6]
        images = [{"names": [name], "sizeBytes": 300_000_000} for name in names]
        await context.world.nodes.patch(f"node-{number}", {"status": {"images": images}})
    return True


async def _upgrade_kubelets(context: RunContext) -> bool:
    """Adds a declared feature to kubelets, or removes it, one after the other."""
    for number in context.rng.sample(PLAIN, 5):
        features = context.rng.choice((["UserNamespacesHostNetworkSupport"], []))
        await context.world.nodes.patch(f"node-{number}", {"status": {"declaredFeatures": features}})
        await context.pause(0.0, 1.0)
    return True


def _allocatable(**amounts: str) -> dict[str, Any]:
    return {"status": {"allocatable": amounts, "capacity": amounts}}


TABLE = (
    Disruption("node deleted", _delete),
    Disruption("node replaced", _replace),
    Disruption("node replaced under binds", _replace_wanted),
    Disruption("strangers in the way", _take_room, 10),
    Disruption("node shrunk", _shrink, 6),
    Disruption("node grown", _grow),
    Disruption("node cordoned", _cordon_favourite),
    Disruption("wanted node cordoned", _cordon_wanted, 6),
    Disruption("node tainted NoSchedule", _taint_no_schedule),
    Disruption("half of a pair shut", _close_half_of_pair),
    Disruption("node tainted NoExecute", _taint_no_execute, 6),
    Disruption("zone changed", _relabel_zone),
    Disruption("node moved to another domain", _move_domain, 6),
    Disruption("loan withdrawn", _withdraw_loan, 6, RunKind.REMOTE),
    Disruption("heartbeats", _heartbeats, 1),
    Disruption("cluster scaled out", _scale_out, 2),
    Disruption("nonsense reported", _report_nonsense, 3),
    Disruption("images pulled", _pull_images, 2),
    Disruption("kubelets upgraded", _upgrade_kubelets, 3),
)
