"""Disruptions of processes: killed, stopped, paused, or cut off from their leases, while the watches of others lag behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set

import orjson

from multisched.framework.ledger import SummingLedger
from multisched.model.objects import Pod
from tests.kit.disruptions.pods import add_urgent_pods, fill_node_pair
from tests.kit.disruptions.run_context import HANDED_OVER_S, SENT_S, Disruption, RunContext
from tests.kit.plugins.faulty import FAULTY
from tests.kit.processes.process import Process
from tests.kit.world.labels import GPU_DEVICES, GPU_MILLI, HOSTNAME
from tests.kit.world.nodes import FAVOURITE, GPU_NODES, NODES

STALL_S = 4.0
"""Delay of watches when a leader stops."""
LATE_S = 24.0
"""Delay of a standby's watch of pods when a leader is killed: longer than the lease and the last binds last."""
SLOW_S = 2.0
"""Maximum duration of a bind when a leader stops."""
HIDDEN = 8
"""Number of pods of 500m CPU that fill the node added for them."""
PRESSED_S = 2.0
RENEWED_S = (2.5, 4.0)
"""Time within which each leader has renewed its lease."""
RESTART_MAX_S = 25.0
"""Maximum delay of the restart of a killed process: another process may lead meanwhile."""


async def _disturb(context: RunContext, action: Callable[[Process], Awaitable[None]]) -> bool:
    """Applies the action to a process that no other disruption uses. Returns False if there is none."""
    process = context.replicas.leader()
    if process is None:
        return False
    context.replicas.disturbed.add(process.identity)
    await action(process)
    context.replicas.disturbed.discard(process.identity)
    return True


async def _kill(context: RunContext) -> bool:
    async def kill(process: Process) -> None:
        """Kills the process while binds are in flight and the other processes have not observed the last ones."""
        name = await _fill_unobserved(context, _others(context, process), LATE_S)
        await context.replicas.kill(process)
        await context.world.nodes.patch(name, {"spec": {"unschedulable": None}})
        await context.pause(0.0, RESTART_MAX_S)
        context.replicas.start()

    return await _disturb(context, kill)


async def _stop(context: RunContext) -> bool:
    async def stop(process: Process) -> None:
        """Stops the process during a burst of slow binds that the others observe late: the next holder of a released lease does not
        wait.
        """
        name = await _fill_unobserved(context, _others(context, process), 2 * STALL_S)
        before, context.faults.bind_max_s = context.faults.bind_max_s, SLOW_S
        await _burst(context, stalled=_others(context, process))
        odd, context.faults.lease_failed = context.faults.lease_failed, context.rng.choice((0.0, 0.6))
        await context.replicas.stop(process)
        context.faults.lease_failed = odd
        context.faults.bind_max_s = before
        await context.world.nodes.patch(name, {"spec": {"unschedulable": None}})
        await context.pause(0.0, STALL_S)  # until its container is restarted
        context.replicas.start()

    return await _disturb(context, stop)


async def _roll_out(context: RunContext) -> bool:
    """Starts one more process, then stops two leaders one after the other.

    The list that the new process reads for its first lease is in flight while the holder of the second lease still binds. Only
    another list shows these binds.
    """
    replicas, bind_checker = context.replicas, context.bind_checker
    await context.until_in_use(FAVOURITE)
    filled = bind_checker.leases.name_of("forecast")
    last = _holder_of(context, {filled})
    first = (
        _holder_of(context, bind_checker.leases.names() - set(bind_checker.leases.held_by(last.identity)))
        if last is not None
        else None
    )
    if last is None or first is None:
        return False
    replicas.disturbed |= {last.identity, first.identity}
    replicas.start()
    successor = replicas.running[-1]
    name = await _add_cordoned(context)
    await context.until_in_use(FAVOURITE)
    successor.transport.pods_late_until_s = context.now_s() + LATE_S
    for process in _others(context, successor):
        process.transport.lost_leases = [
            f"/{one}" for one in bind_checker.leases.names() - set(bind_checker.leases.held_by(process.identity))
        ]
    await _fall_behind(context, successor, name)
    successor.transport.holds_lists, context.faults.is_on = (
        True,
        False,
    )  # both end at once, or no list is in flight any more
    await replicas.stop(first)
    await context.until(lambda: successor.transport.held_lists > 0)
    await _fill_cordoned(context, name)
    await replicas.stop(last)
    await context.until(lambda: filled in bind_checker.leases.held_by(successor.identity))
    await context.world.nodes.patch(name, {"spec": {"unschedulable": None}})
    await context.pause(0.1, 0.5)
    successor.transport.holds_lists = False
    await context.until(lambda: all(worker.is_leading for worker in successor.program.router.workers()))
    successor.transport.nodes_version, context.faults.is_on = 0, True
    for process in replicas.running:
        process.transport.lost_leases = ()
    await context.pause(0.0, STALL_S)
    replicas.start()
    replicas.disturbed -= {last.identity, first.identity}
    return True


async def _fall_behind(context: RunContext, successor: Process, name: str) -> None:
    """Changes a node so that all processes but the successor observe it and write that to their leases: the successor's server is
    behind.
    """
    successor.transport.nodes_version = context.server.store.version
    successor.transport.stalled_until_s = context.now_s() + LATE_S
    await context.world.nodes.patch(name, {"metadata": {"labels": {"turn": "next"}}})
    await context.pause(*RENEWED_S)


async def _delete_while_handed_over(context: RunContext) -> bool:
    """Moves a node away from a leader that is binding to it and whose lease is deleted: the leader can no longer reach the
    lease.
    """
    bind_checker, name = context.bind_checker, f"node-{context.rng.choice(GPU_NODES)}"
    async with context.slow_binds(name):
        holder = _holder_of(context, {bind_checker.leases.name_of("gpu")})
        if holder is None:
            return False
        await context.world.crowds.add(name, 6, scheduler="gpu-scheduler", cpu="2")
        await context.until(lambda: bind_checker.in_flight.is_bound_to(name), SENT_S)
        holder.transport.lost_leases = ("",)
        await context.world.delete_lease(bind_checker.leases.name_of("gpu"))
        await context.world.nodes.set_gpus(name, 0)
        await context.world.crowds.add(name, 6, scheduler="forecast-scheduler", cpu="2")
        await context.pause(*HANDED_OVER_S)
    holder.transport.lost_leases = ()
    await context.world.nodes.set_gpus(name, 4)
    return True


def _holder_of(context: RunContext, leases: Set[str]) -> Process | None:
    """Returns the holder of any of the leases; None if another disruption uses it."""
    free = [process for process in context.replicas.running if process.identity not in context.replicas.disturbed]
    return next((one for one in free if not leases.isdisjoint(context.bind_checker.leases.held_by(one.identity))), None)


async def _pause(context: RunContext) -> bool:
    async def pause(process: Process) -> None:
        pair = await fill_node_pair(context)
        await _burst(context)
        await add_urgent_pods(context, pair)
        await _until_evicting(context, process)
        await context.replicas.pause(process, context.rng.uniform(3.0, 25.0))

    return await _disturb(context, pause)


async def _lose_leases(context: RunContext) -> bool:
    """Cuts a process off from its leases for longer than a lease lasts; watches, binds and preemptions continue."""

    async def cut_off(process: Process) -> None:
        pair = await fill_node_pair(context)
        process.transport.lost_leases = ("",)
        await context.pause(6.0, 9.8)
        await add_urgent_pods(context, pair)
        await context.world.crowds.fill(2)
        await context.pause(2.0, 8.0)
        process.transport.lost_leases = ()

    return await _disturb(context, cut_off)


async def _delete_leases(context: RunContext) -> bool:
    """Deletes the leases of a process, in half of the cases while it cannot reach them and continues to bind."""

    async def delete(process: Process) -> None:
        if context.rng.random() < 0.5:
            process.transport.lost_leases = ("",)
        await context.pause(0.0, 2.0)
        for name in context.bind_checker.leases.held_by(process.identity):
            await context.world.delete_lease(name)
        for _ in range(4):
            await context.world.crowds.fill(1)
            await context.pause(1.0, 2.5)
        process.transport.lost_leases = ()

    return await _disturb(context, delete)


async def _until_evicting(context: RunContext, process: Process) -> None:
    """Waits until the process evicts victims, for PRESSED_S at most."""
    until_s = context.now_s() + PRESSED_S
    while context.now_s() < until_s and not len(process.program.preemptor):  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.003)


async def _burst(context: RunContext, stalled: Sequence[Process] = ()) -> None:
    """Creates a burst of pods that all processes observe. The stalled processes observe its binds late."""
    for _ in range(24):
        await context.world.add_pod(scheduler=context.rng.choice(["forecast-scheduler", "job-scheduler"]))
    for process in stalled:
        process.transport.stalled_until_s = context.now_s() + STALL_S
    await context.pause(0.005, 0.03)


async def _fill_unobserved(context: RunContext, standbys: Sequence[Process], late_s: float) -> str:
    """Fills a cordoned node while the standbys' watches of pods are late, with pods waiting that they know.

    To the standbys the node is empty. The next leader must list before its first decision. Returns the node, still cordoned.
    """
    name = await _add_cordoned(context)
    for process in standbys:
        process.transport.pods_late_until_s = context.now_s() + late_s
    await _fill_cordoned(context, name)
    return name


async def _add_cordoned(context: RunContext) -> str:
    """Adds a cordoned node and pods that wait for it. Returns when all processes have observed them."""
    number = NODES + context.nodes_added
    name = f"node-{number}"
    context.nodes_added += 1
    await context.world.nodes.add(number, is_cordoned=True)
    await context.world.crowds.add(name, HIDDEN)
    await context.until(lambda: all(_has_observed(context, process, name) for process in context.replicas.running))
    return name


async def _fill_cordoned(context: RunContext, name: str) -> None:
    """Fills the node with pods that tolerate the cordon."""
    await context.world.crowds.add(name, HIDDEN, respects_taints=False)
    await context.until(lambda: sum(pod.node == name for pod in context.world.pods()) >= HIDDEN - 1)


def _has_observed(context: RunContext, process: Process, node: str) -> bool:
    """Reports whether the process has observed the node and the pods that wait for it."""
    pods = [pod for pod in context.world.pods() if _wants(pod, node)]
    has_pods = all(pod.uid in process.program.pods.pending for pod in pods if not pod.node)
    return has_pods and process.program.cache.nodes.row_of(node) is not None


def _others(context: RunContext, process: Process) -> list[Process]:
    return [other for other in context.replicas.running if other is not process]


def _wants(pod: Pod, node: str) -> bool:
    """Reports whether the pod selects this node."""
    return any(rule.key == HOSTNAME and rule.matches_value(node) for rule in pod.spec.affinity.node_selector)


async def _corrupt_ledger(context: RunContext) -> bool:
    """Adds a pod that does not exist to a ledger of devices: the audit repairs it.

    In a ledger with sums a checker would find it before the audit.
    """
    process = context.replicas.leader()
    if process is None:
        return False
    cache = process.program.cache
    live = [row for row, node in cache.nodes.live_rows() if node.name in {f"node-{number}" for number in GPU_NODES}]
    if not live:
        return False
    row, ghost = context.rng.choice(live), f"ghost-{context.mark()}"
    annotations = {GPU_MILLI: "250", GPU_DEVICES: "0"}
    metadata = {"name": ghost, "namespace": "default", "uid": ghost, "resourceVersion": "1", "annotations": annotations}
    spec = {"nodeName": cache.nodes.node(row).name, "containers": [{"name": "main"}]}
    pod = process.program.decoder.pod(orjson.dumps({"metadata": metadata, "spec": spec}))
    for ledger in cache.ledgers:
        if ledger.name != FAULTY and not isinstance(ledger, SummingLedger) and ledger.is_used_by(pod):
            ledger.restore(pod, row)
    context.replicas.was_corrupted = True
    return True


TABLE = (
    Disruption("leader killed", _kill),
    Disruption("leader stopped", _stop),
    Disruption("leader paused", _pause),
    Disruption("leases unreachable", _lose_leases),
    Disruption("memory corrupted", _corrupt_ledger, 2),
)
RARE = (Disruption("leases deleted", _delete_leases),)
EARLY = (
    Disruption("leaders replaced one after the other", _roll_out),
    Disruption("lease deleted under a handover", _delete_while_handed_over),
)
