"""Scenarios of processes that follow each other, of objects that go and come back under their names, and of the conditions of pods."""

from __future__ import annotations

from functools import partial
from typing import Final

from multisched.queueing.transitions import QueueState
from tests.kit.disruptions.scene import Scene
from tests.kit.processes.process import Process
from tests.kit.scenarios.steps import (
    Scenarios,
    are_bound,
    bound_pods,
    emptiest,
    is_led_by,
    leading,
    must_come,
    named,
    parked,
    place,
    steady_leader,
)
from tests.kit.world.disks import NOBODYS
from tests.kit.world.labels import GPU_MILLI
from tests.kit.world.nodes import GPU_NODES, NODES

FIRST_NUMBER: Final = NODES + 3_000
"""Of nodes that are added here: plain ones of the forecast domain."""
LED_AGAIN_S: Final = 8.0
"""Until a lease that was given back is held by somebody, and its nodes are used."""
GIVEN_BACK_S: Final = 4.0
"""Until a pod whose node is gone is on its way no more: PreBind looks once a second."""
WRITTEN_S: Final = 8.0
"""Until a condition stands at its pod, after a write whose answer was lost."""
UNSEEN_S: Final = 1.0
"""How long no watch tells anything."""
OUTAGE_S: Final = 2.0
ON_THE_WIRE_S: Final = 2.0
TAKEN: Final = ("600", "600", "600", "600")
"""Milli of pods that leave of each device too little for one more of them."""
WANTED: Final = ("600", "900", "500")


async def _edit_and_succeed(scene: Scene) -> bool:
    """Owners of pods that share devices edit what these want. Then somebody else leads, who knows nothing but what is written."""
    number = scene.rng.choice(GPU_NODES)
    node = f"node-{number}"
    await scene.world.add_fractions(node, TAKEN)
    await scene.pause(1.0, 2.0)
    sharing = [pod for pod in scene.world.pods() if pod.node == node and GPU_MILLI in pod.annotations]
    for pod, milli in zip(sharing, ("100", None, "1000", "100"), strict=False):
        await scene.world.patch_pod(pod, {"metadata": {"annotations": {GPU_MILLI: milli}}})
    await scene.pause(0.3, 0.6)
    if not sharing or not await _replace_all(scene):
        return False
    await scene.world.add_fractions(node, WANTED)
    await scene.pause(1.0, 2.0)
    return True


async def _replace_all(scene: Scene) -> bool:
    """Whoever leads from now on was started now. False if others have their hands on some process."""
    replicas, before = scene.replicas, list(scene.replicas.running)
    if replicas.disturbed or not scene.setting.configuration.lease.enabled:
        return False
    replicas.disturbed |= {process.identity for process in before}
    replicas.start()
    for process in before:
        await replicas.stop(process)
    replicas.disturbed -= {process.identity for process in before}
    replicas.start()
    await scene.until(lambda: len(leading(scene)) == 1, LED_AGAIN_S)
    await scene.until(lambda: not any(one.program.handover.waiting() for one in replicas.running), LED_AGAIN_S)
    return True


async def _recreate_unseen(scene: Scene) -> bool:
    """A node and two pods of it are deleted and made anew under their names, which no watch tells of, and which history forgets."""
    number, server = FIRST_NUMBER, scene.server
    node = f"node-{number}"
    await scene.world.nodes.add(number)
    names = [f"stateful-{scene.mark()}-{at}" for at in range(3)]
    for name in names:
        await place(scene, node, 1_200, name=name)
    await scene.until(lambda: are_bound(scene, names))
    for process in scene.replicas.running:
        process.transport.stalled_until_s = scene.now_s() + UNSEEN_S
    for name in names:
        await scene.world.user.delete_named(name)
    await scene.world.nodes.delete(number)
    await scene.world.nodes.add(number)
    for at, name in enumerate(names):
        await place(scene, node, 1_900 if at else 100, name=name)
    server.compact()
    server.drop_watches()
    await must_come(scene, node, names[0], "its node was made anew, and is empty")
    await scene.pause(1.0, 2.0)
    for name in names:
        await scene.world.user.delete_named(name)
    await scene.world.nodes.delete(number)
    return True


async def _lose_node(scene: Scene) -> bool:
    """A node goes while a pod waits at PreBind for the volume that was to be made there. It comes back, and so does the pod."""
    number, disks = FIRST_NUMBER + 3, scene.world.disks
    node, claim = f"node-{number}", f"{NOBODYS}-{scene.mark()}"
    await scene.world.nodes.add(number)
    await disks.add_claim(claim, NOBODYS)
    await scene.pause(0.3, 0.6)
    spec = {"volumes": [{"name": "v0", "persistentVolumeClaim": {"claimName": claim}}]}
    name, has_node = await place(scene, node, 100, spec=spec), partial(scene.world.storage.has_node, claim)
    await scene.until(has_node)
    before = steady_leader(scene) if has_node() else None
    await scene.world.nodes.delete(number)
    await scene.until(lambda: not _is_in_flight(scene, name), GIVEN_BACK_S)
    if is_led_by(scene, before) and _is_in_flight(scene, name):
        scene.bind_checker.complain(f"I5: {name} is on its way to {node}, which is gone")
    await disks.unselect_node(claim)
    await scene.world.nodes.add(number)
    second = await place(scene, node, 10)
    await scene.until(lambda: has_node() and bool(bound_pods(scene, [second])), WRITTEN_S)
    if is_led_by(scene, before) and bound_pods(scene, [second]) and parked(scene, [name]):
        scene.bind_checker.complain(f"I3: {name} is not decided anew, and {node} is there again")
    await scene.world.user.delete_named(second)
    await scene.world.user.delete_named(name)
    await scene.pause(0.2, 0.5)
    await scene.world.nodes.delete(number)
    return True


async def _write_condition_again(scene: Scene) -> bool:
    """A pod is refused for one reason, for another, and for the first again. Nobody answers the write of the second, and for a
    while no Event can be written."""
    node, site, faults = emptiest(scene), scene.mark(), scene.faults
    faults.unreachable.add("/events")
    name = await place(scene, "", 10, spec={"nodeSelector": {"site": site}})
    await scene.until(lambda: bool(_condition(scene, name)))
    first, before = _condition(scene, name), steady_leader(scene)
    faults.unanswered.add(f"/pods/{name}/status")
    await scene.world.nodes.patch(node, {"metadata": {"labels": {"site": site}}, "spec": {"unschedulable": True}})
    await scene.until(lambda: _condition(scene, name) != first)
    await scene.world.nodes.patch(node, {"metadata": {"labels": {"site": None}}, "spec": {"unschedulable": None}})
    await scene.pause(OUTAGE_S / 2, OUTAGE_S)
    faults.unreachable.clear()
    await scene.until(lambda: bool(_message(scene, name) == first and parked(scene, [name])))
    faults.unanswered.clear()
    await scene.until(lambda: _condition(scene, name) == _message(scene, name), WRITTEN_S)
    said = _message(scene, name)
    if is_led_by(scene, before) and parked(scene, [name]) and _condition(scene, name) != said:
        scene.bind_checker.complain(f"I3: the owner of {name} reads {_condition(scene, name)!r}, and not {said!r}")
    await scene.world.user.delete_named(name)
    return True


async def _take_over_one(scene: Scene) -> bool:
    """Somebody takes one lease from a process that holds another one, whose binds are under way.

    It ends, and gives nothing back that is not settled.
    """
    bind_checker, node = scene.bind_checker, emptiest(scene)
    holder = _holder(scene, bind_checker.leases.name_of("forecast"))
    others = (
        [one for one in bind_checker.leases.held_by(holder.identity) if one != bind_checker.leases.name_of("forecast")]
        if holder
        else []
    )
    if holder is None or not others:
        return False
    async with scene.slow_binds(node):
        names = [await place(scene, node, 300) for _ in range(4)]
        await scene.until(lambda: bind_checker.in_flight.is_bound_to(node), ON_THE_WIRE_S)
        await scene.world.take_lease(scene.rng.choice(others))
        names += [await place(scene, node, 300) for _ in range(6)]
        await scene.until(lambda: holder not in scene.replicas.running, LED_AGAIN_S)
        await scene.until(lambda: len(bound_pods(scene, names)) + len(parked(scene, names)) == len(names))
    return True


def _holder(scene: Scene, lease: str) -> Process | None:
    free = [process for process in scene.replicas.running if process.identity not in scene.replicas.disturbed]
    return next((one for one in free if lease in scene.bind_checker.leases.held_by(one.identity)), None)


def _condition(scene: Scene, name: str) -> str:
    """What stands at the pod."""
    return scene.bind_checker.policies.condition_of(name)


def _is_in_flight(scene: Scene, name: str) -> bool:
    entries = [entry for queue in leading(scene) for entry in queue.entries(QueueState.IN_FLIGHT)]
    return any(entry.pod.name == name for entry in entries)


def _message(scene: Scene, name: str) -> str:
    """What the leader has to say of the pod; empty while it says nothing."""
    uids = [pod.uid for pod in named(scene, [name])]
    found = [entry for queue in leading(scene) for uid in uids if (entry := queue.entry(uid)) is not None]
    return str(found[0].message) if found else ""


SCENARIOS: Final[Scenarios] = (
    ("successor of edited pods", _edit_and_succeed),
    ("made anew unseen", _recreate_unseen),
    ("node lost at PreBind", _lose_node),
    ("condition written again", _write_condition_again),
    ("lease taken", _take_over_one),
)
