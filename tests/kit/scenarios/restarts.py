"""Scenarios of new leaders, of objects that are recreated under their names, and of the conditions of pods."""

from __future__ import annotations

from functools import partial
from typing import Final

from multisched.queueing.transitions import QueueState
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.process import Process
from tests.kit.scenarios.steps import (
    Scenarios,
    are_bound,
    bound_pods,
    create_pod,
    expect_bound,
    is_led_by,
    leading_queues,
    least_used_node,
    parked,
    pods_named,
    steady_leader,
)
from tests.kit.world.disks import UNPROVISIONED
from tests.kit.world.labels import GPU_MILLI
from tests.kit.world.nodes import GPU_NODES, NODES

FIRST_NUMBER: Final = NODES + 3_000
"""First number of nodes that are added here: plain ones of the forecast domain."""
LED_AGAIN_S: Final = 8.0
"""Time until a released lease is held again, and its nodes are used."""
GIVEN_BACK_S: Final = 4.0
"""Time until a pod whose node was deleted is no longer being bound: PreBind checks once a second."""
WRITTEN_S: Final = 8.0
"""Time until a condition is written to its pod, after a write whose response was lost."""
UNSEEN_S: Final = 1.0
"""Time for which no watch delivers events."""
OUTAGE_S: Final = 2.0
ON_THE_WIRE_S: Final = 2.0
TAKEN_MILLI: Final = ("600", "600", "600", "600")
"""gpu-milli of pods that leave too little of each device for another such pod."""
WANTED_MILLI: Final = ("600", "900", "500")


async def _edit_then_replace_leader(context: RunContext) -> bool:
    """Edits the requests of placed pods that share devices, then replaces the leader: the new one knows only what is written."""
    number = context.rng.choice(GPU_NODES)
    node = f"node-{number}"
    await context.world.add_fractions(node, TAKEN_MILLI)
    await context.pause(1.0, 2.0)
    sharing = [pod for pod in context.world.pods() if pod.node == node and GPU_MILLI in pod.annotations]
    for pod, milli in zip(sharing, ("100", None, "1000", "100"), strict=False):
        await context.world.patch_pod(pod, {"metadata": {"annotations": {GPU_MILLI: milli}}})
    await context.pause(0.3, 0.6)
    if not sharing or not await _replace_all(context):
        return False
    await context.world.add_fractions(node, WANTED_MILLI)
    await context.pause(1.0, 2.0)
    return True


async def _replace_all(context: RunContext) -> bool:
    """Replaces all processes. Returns False if a disruption uses some of them."""
    replicas, before = context.replicas, list(context.replicas.running)
    if replicas.disturbed or not context.setting.configuration.lease.enabled:
        return False
    replicas.disturbed |= {process.identity for process in before}
    replicas.start()
    for process in before:
        await replicas.stop(process)
    replicas.disturbed -= {process.identity for process in before}
    replicas.start()
    await context.until(lambda: len(leading_queues(context)) == 1, LED_AGAIN_S)
    await context.until(lambda: not any(one.program.handover.waiting() for one in replicas.running), LED_AGAIN_S)
    return True


async def _recreate_unseen(context: RunContext) -> bool:
    """Deletes and recreates a node and pods of it under their names, without watch events, and compacts history."""
    number, server = FIRST_NUMBER, context.server
    node = f"node-{number}"
    await context.world.nodes.add(number)
    names = [f"stateful-{context.mark()}-{at}" for at in range(3)]
    for name in names:
        await create_pod(context, node, 1_200, name=name)
    await context.until(lambda: are_bound(context, names))
    for process in context.replicas.running:
        process.transport.stalled_until_s = context.now_s() + UNSEEN_S
    for name in names:
        await context.world.user.delete_named(name)
    await context.world.nodes.delete(number)
    await context.world.nodes.add(number)
    for at, name in enumerate(names):
        await create_pod(context, node, 1_900 if at else 100, name=name)
    server.compact()
    server.drop_watches()
    await expect_bound(context, node, names[0], "its node was made anew, and is empty")
    await context.pause(1.0, 2.0)
    for name in names:
        await context.world.user.delete_named(name)
    await context.world.nodes.delete(number)
    return True


async def _lose_node(context: RunContext) -> bool:
    """Deletes a node while a pod waits at PreBind for a volume that is provisioned there. The node and the pod are then tried
    again.
    """
    number, disks = FIRST_NUMBER + 3, context.world.disks
    node, claim = f"node-{number}", f"{UNPROVISIONED}-{context.mark()}"
    await context.world.nodes.add(number)
    await disks.add_claim(claim, UNPROVISIONED)
    await context.pause(0.3, 0.6)
    spec = {"volumes": [{"name": "v0", "persistentVolumeClaim": {"claimName": claim}}]}
    name, has_node = await create_pod(context, node, 100, spec=spec), partial(context.world.storage.has_node, claim)
    await context.until(has_node)
    before = steady_leader(context) if has_node() else None
    await context.world.nodes.delete(number)
    await context.until(lambda: not _is_in_flight(context, name), GIVEN_BACK_S)
    if is_led_by(context, before) and _is_in_flight(context, name):
        context.bind_checker.report_violation(f"I5: {name} is on its way to {node}, which is gone")
    await disks.unselect_node(claim)
    await context.world.nodes.add(number)
    second = await create_pod(context, node, 10)
    await context.until(lambda: has_node() and bool(bound_pods(context, [second])), WRITTEN_S)
    if is_led_by(context, before) and bound_pods(context, [second]) and parked(context, [name]):
        context.bind_checker.report_violation(f"I3: {name} is not decided anew, and {node} is there again")
    await context.world.user.delete_named(second)
    await context.world.user.delete_named(name)
    await context.pause(0.2, 0.5)
    await context.world.nodes.delete(number)
    return True


async def _write_condition_again(context: RunContext) -> bool:
    """Makes a pod refused for one reason, for another, and for the first again. The response to the second write is lost, and no
    Event can be written for a while.
    """
    node, site, faults = least_used_node(context), context.mark(), context.faults
    faults.unreachable.add("/events")
    name = await create_pod(context, "", 10, spec={"nodeSelector": {"site": site}})
    await context.until(lambda: bool(_condition(context, name)))
    first, before = _condition(context, name), steady_leader(context)
    faults.unanswered.add(f"/pods/{name}/status")
    await context.world.nodes.patch(node, {"metadata": {"labels": {"site": site}}, "spec": {"unschedulable": True}})
    await context.until(lambda: _condition(context, name) != first)
    await context.world.nodes.patch(node, {"metadata": {"labels": {"site": None}}, "spec": {"unschedulable": None}})
    await context.pause(OUTAGE_S / 2, OUTAGE_S)
    faults.unreachable.clear()
    await context.until(lambda: bool(_message(context, name) == first and parked(context, [name])))
    faults.unanswered.clear()
    await context.until(lambda: _condition(context, name) == _message(context, name), WRITTEN_S)
    said = _message(context, name)
    if is_led_by(context, before) and parked(context, [name]) and _condition(context, name) != said:
        context.bind_checker.report_violation(
            f"I3: the owner of {name} reads {_condition(context, name)!r}, and not {said!r}"
        )
    await context.world.user.delete_named(name)
    return True


async def _take_over_one(context: RunContext) -> bool:
    """Takes one lease from a process that holds another one and has binds in flight.

    The process ends, and must not release a lease with unsettled binds.
    """
    bind_checker, node = context.bind_checker, least_used_node(context)
    add_placed_pod = _holder(context, bind_checker.leases.name_of("forecast"))
    others = (
        [
            one
            for one in bind_checker.leases.held_by(add_placed_pod.identity)
            if one != bind_checker.leases.name_of("forecast")
        ]
        if add_placed_pod
        else []
    )
    if add_placed_pod is None or not others:
        return False
    async with context.slow_binds(node):
        names = [await create_pod(context, node, 300) for _ in range(4)]
        await context.until(lambda: bind_checker.in_flight.is_bound_to(node), ON_THE_WIRE_S)
        await context.world.take_lease(context.rng.choice(others))
        names += [await create_pod(context, node, 300) for _ in range(6)]
        await context.until(lambda: add_placed_pod not in context.replicas.running, LED_AGAIN_S)
        await context.until(lambda: len(bound_pods(context, names)) + len(parked(context, names)) == len(names))
    return True


def _holder(context: RunContext, lease: str) -> Process | None:
    free = [process for process in context.replicas.running if process.identity not in context.replicas.disturbed]
    return next((one for one in free if lease in context.bind_checker.leases.held_by(one.identity)), None)


def _condition(context: RunContext, name: str) -> str:
    """Returns the message of the pod's condition."""
    return context.bind_checker.policies.condition_of(name)


def _is_in_flight(context: RunContext, name: str) -> bool:
    entries = [entry for queue in leading_queues(context) for entry in queue.entries(QueueState.IN_FLIGHT)]
    return any(entry.pod.name == name for entry in entries)


def _message(context: RunContext, name: str) -> str:
    """Returns the message of the leader's latest refusal of the pod; empty for none."""
    uids = [pod.uid for pod in pods_named(context, [name])]
    found = [entry for queue in leading_queues(context) for uid in uids if (entry := queue.entry(uid)) is not None]
    return str(found[0].message) if found else ""


SCENARIOS: Final[Scenarios] = (
    ("successor of edited pods", _edit_then_replace_leader),
    ("made anew unseen", _recreate_unseen),
    ("node lost at PreBind", _lose_node),
    ("condition written again", _write_condition_again),
    ("lease taken", _take_over_one),
)
