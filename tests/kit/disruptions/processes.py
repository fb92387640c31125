"""Processes that are killed, stopped, paused and cut off from their leases, while the others' watches lag behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set

import orjson

from multisched.framework.ledger import SummingLedger
from multisched.model.objects import Pod
from tests.kit.disruptions.pods import fill_pair, press
from tests.kit.disruptions.scene import HANDED_OVER_S, SENT_S, Disruption, Scene
from tests.kit.plugins.faulty import FAULTY
from tests.kit.processes.process import Process
from tests.kit.world.labels import GPU_DEVICES, GPU_MILLI, HOSTNAME
from tests.kit.world.nodes import FAVOURITE, GPU_NODES, NODES

STALL_S = 4.0
"""How late watches are when a leader stops."""
LATE_S = 24.0
"""How late a standby's watch of pods is when a leader is killed: for longer than the lease and the last binds last."""
SLOW_S = 2.0
"""How long a bind may take when a leader stops."""
HIDDEN = 8
"""Pods of 500m that fill the node that is added for them."""
PRESSED_S = 2.0
RESTART_MAX_S = 25.0
"""How long the container of a killed process may take to come back: long enough for another process to lead meanwhile."""


async def _disturb(scene: Scene, act: Callable[[Process], Awaitable[None]]) -> bool:
    """One disruption at a time has its hands on a process."""
    process = scene.replicas.leader()
    if process is None:
        return False
    scene.replicas.disturbed.add(process.identity)
    await act(process)
    scene.replicas.disturbed.discard(process.identity)
    return True


async def _kill(scene: Scene) -> bool:
    async def kill(process: Process) -> None:
        """With binds on the wire, and others that have not heard of the last ones."""
        name = await _fill_behind(scene, _others(scene, process), LATE_S)
        await scene.replicas.kill(process)
        await scene.world.nodes.patch(name, {"spec": {"unschedulable": None}})
        await scene.pause(0.0, RESTART_MAX_S)
        scene.replicas.start()

    return await _disturb(scene, kill)


async def _stop(scene: Scene) -> bool:
    async def stop(process: Process) -> None:
        """In a burst of slow binds, of which the others hear late: the successor of a lease given back does not wait."""
        name = await _fill_behind(scene, _others(scene, process), 2 * STALL_S)
        before, scene.faults.bind_max_s = scene.faults.bind_max_s, SLOW_S
        await _burst(scene, stalled=_others(scene, process))
        odd, scene.faults.lease_odd = scene.faults.lease_odd, scene.rng.choice((0.0, 0.6))
        await scene.replicas.stop(process)
        scene.faults.lease_odd = odd
        scene.faults.bind_max_s = before
        await scene.world.nodes.patch(name, {"spec": {"unschedulable": None}})
        await scene.pause(0.0, STALL_S)  # before its container is there again
        scene.replicas.start()

    return await _disturb(scene, stop)


async def _roll_out(scene: Scene) -> bool:
    """One more process, then two leaders stop one after the other.

    The list that it reads for the first of its leases is on its way while the holder of the second still binds. Only
    another list shows those binds.
    """
    replicas, bind_checker = scene.replicas, scene.bind_checker
    await scene.until_in_use(FAVOURITE)
    filled = bind_checker.leases.name_of("forecast")
    last = _holder_of(scene, {filled})
    first = (
        _holder_of(scene, bind_checker.leases.names() - set(bind_checker.leases.held_by(last.identity)))
        if last is not None
        else None
    )
    if last is None or first is None:
        return False
    replicas.disturbed |= {last.identity, first.identity}
    replicas.start()
    heir = replicas.running[-1]
    name = await _add_hidden(scene)
    await scene.until_in_use(FAVOURITE)
    heir.transport.pods_late_until_s = scene.now_s() + LATE_S
    for process in _others(scene, heir):
        process.transport.lost_leases = [
            f"/{one}" for one in bind_checker.leases.names() - set(bind_checker.leases.held_by(process.identity))
        ]
    heir.transport.holds_lists, scene.faults.is_on = (
        True,
        False,
    )  # both end at once, or there is no list on its way any more
    await replicas.stop(first)
    await scene.until(lambda: heir.transport.held_lists > 0)
    await _fill_hidden(scene, name)
    await replicas.stop(last)
    await scene.until(lambda: filled in bind_checker.leases.held_by(heir.identity))
    await scene.world.nodes.patch(name, {"spec": {"unschedulable": None}})
    await scene.pause(0.1, 0.5)
    heir.transport.holds_lists = False
    await scene.until(lambda: all(worker.is_leading for worker in heir.program.router.workers()))
    scene.faults.is_on = True
    for process in replicas.running:
        process.transport.lost_leases = ()
    await scene.pause(0.0, STALL_S)
    replicas.start()
    replicas.disturbed -= {last.identity, first.identity}
    return True


async def _delete_while_handed_over(scene: Scene) -> bool:
    """A node leaves a leader whose binds to it are under way, and whose lease somebody deletes: it does not reach that any more."""
    bind_checker, name = scene.bind_checker, f"node-{scene.rng.choice(GPU_NODES)}"
    async with scene.slow_binds(name):
        holder = _holder_of(scene, {bind_checker.leases.name_of("gpu")})
        if holder is None:
            return False
        await scene.world.crowds.add(name, 6, scheduler="gpu-scheduler", cpu="2")
        await scene.until(lambda: bind_checker.in_flight.is_bound_to(name), SENT_S)
        holder.transport.lost_leases = ("",)
        await scene.world.delete_lease(bind_checker.leases.name_of("gpu"))
        await scene.world.nodes.set_gpus(name, 0)
        await scene.world.crowds.add(name, 6, scheduler="forecast-scheduler", cpu="2")
        await scene.pause(*HANDED_OVER_S)
    holder.transport.lost_leases = ()
    await scene.world.nodes.set_gpus(name, 4)
    return True


def _holder_of(scene: Scene, leases: Set[str]) -> Process | None:
    """Of any of them; None if it has others' hands on it."""
    free = [process for process in scene.replicas.running if process.identity not in scene.replicas.disturbed]
    return next((one for one in free if not leases.isdisjoint(scene.bind_checker.leases.held_by(one.identity))), None)


async def _pause(scene: Scene) -> bool:
    async def pause(process: Process) -> None:
        pair = await fill_pair(scene)
        await _burst(scene)
        await press(scene, pair)
        await _at_work(scene, process)
        await scene.replicas.pause(process, scene.rng.uniform(3.0, 25.0))

    return await _disturb(scene, pause)


async def _lose_leases(scene: Scene) -> bool:
    """The elector alone is cut off, for longer than a lease lasts; watches, binds and preemptions go on."""

    async def cut_off(process: Process) -> None:
        pair = await fill_pair(scene)
        process.transport.lost_leases = ("",)
        await scene.pause(6.0, 9.8)
        await press(scene, pair)
        await scene.world.crowds.fill(2)
        await scene.pause(2.0, 8.0)
        process.transport.lost_leases = ()

    return await _disturb(scene, cut_off)


async def _delete_leases(scene: Scene) -> bool:
    """Somebody deletes the leases of a process, in half of the cases while it does not reach them and goes on binding."""

    async def delete(process: Process) -> None:
        if scene.rng.random() < 0.5:
            process.transport.lost_leases = ("",)
        await scene.pause(0.0, 2.0)
        for name in scene.bind_checker.leases.held_by(process.identity):
            await scene.world.delete_lease(name)
        for _ in range(4):
            await scene.world.crowds.fill(1)
            await scene.pause(1.0, 2.5)
        process.transport.lost_leases = ()

    return await _disturb(scene, delete)


async def _at_work(scene: Scene, process: Process) -> None:
    """Until victims are being asked to go, or PRESSED_S have passed."""
    until_s = scene.now_s() + PRESSED_S
    while scene.now_s() < until_s and not len(process.program.preemptor):  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.003)


async def _burst(scene: Scene, stalled: Sequence[Process] = ()) -> None:
    """A burst that everybody hears of; what becomes of it the stalled ones hear late."""
    for _ in range(24):
        await scene.world.add_pod(scheduler=scene.rng.choice(["forecast-scheduler", "job-scheduler"]))
    for process in stalled:
        process.transport.stalled_until_s = scene.now_s() + STALL_S
    await scene.pause(0.005, 0.03)


async def _fill_behind(scene: Scene, standbys: Sequence[Process], late_s: float) -> str:
    """A cordoned node is filled while the standbys' watches of pods fall behind; pods that they know wait for it.

    To them it is empty. Whoever leads next has to list before its first decision. Returns the node, still cordoned.
    """
    name = await _add_hidden(scene)
    for process in standbys:
        process.transport.pods_late_until_s = scene.now_s() + late_s
    await _fill_hidden(scene, name)
    return name


async def _add_hidden(scene: Scene) -> str:
    """A cordoned node, known to all, and pods that wait for it."""
    number = NODES + scene.nodes_added
    name = f"node-{number}"
    scene.nodes_added += 1
    await scene.world.nodes.add(number, is_cordoned=True)
    await scene.world.crowds.add(name, HIDDEN)
    await scene.until(lambda: all(_knows(scene, process, name) for process in scene.replicas.running))
    return name


async def _fill_hidden(scene: Scene, name: str) -> None:
    """By pods that do not mind that it is cordoned."""
    await scene.world.crowds.add(name, HIDDEN, respects_taints=False)
    await scene.until(lambda: sum(pod.node == name for pod in scene.world.pods()) >= HIDDEN - 1)


def _knows(scene: Scene, process: Process, node: str) -> bool:
    """The node, and the pods that wait for it."""
    pods = [pod for pod in scene.world.pods() if _wants(pod, node)]
    has_pods = all(pod.uid in process.program.pods.pending for pod in pods if not pod.node)
    return has_pods and process.program.cache.nodes.row_of(node) is not None


def _others(scene: Scene, process: Process) -> list[Process]:
    return [other for other in scene.replicas.running if other is not process]


def _wants(pod: Pod, node: str) -> bool:
    """The pod names this one node."""
    return any(rule.key == HOSTNAME and rule.matches_value(node) for rule in pod.spec.affinity.node_selector)


async def _remember_wrong(scene: Scene) -> bool:
    """Something makes a process remember that a pod which never was holds devices: the audit finds and mends that.

    Of a ledger that keeps sums the checker would find it before.
    """
    process = scene.replicas.leader()
    if process is None:
        return False
    cache = process.program.cache
    live = [row for row, node in cache.nodes.live_rows() if node.name in {f"node-{number}" for number in GPU_NODES}]
    if not live:
        return False
    row, ghost = scene.rng.choice(live), f"ghost-{scene.mark()}"
    annotations = {GPU_MILLI: "250", GPU_DEVICES: "0"}
    metadata = {"name": ghost, "namespace": "default", "uid": ghost, "resourceVersion": "1", "annotations": annotations}
    spec = {"nodeName": cache.nodes.node(row).name, "containers": [{"name": "main"}]}
    pod = process.program.decoder.pod(orjson.dumps({"metadata": metadata, "spec": spec}))
    for ledger in cache.ledgers:
        if ledger.name != FAULTY and not isinstance(ledger, SummingLedger) and ledger.is_used_by(pod):
            ledger.restore(pod, row)
    scene.replicas.was_corrupted = True
    return True


TABLE = (
    Disruption("leader killed", _kill),
    Disruption("leader stopped", _stop),
    Disruption("leader paused", _pause),
    Disruption("leases unreachable", _lose_leases),
    Disruption("memory corrupted", _remember_wrong, 2),
)
RARE = (Disruption("leases deleted", _delete_leases),)
EARLY = (
    Disruption("leaders replaced one after the other", _roll_out),
    Disruption("lease deleted under a handover", _delete_while_handed_over),
)
