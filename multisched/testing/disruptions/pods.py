"""Pods that go, come again, are resized in every state, and want what others want."""

from __future__ import annotations

from multisched.model.objects import CPU, Pod
from multisched.testing.budgets import FREE, PROTECTED
from multisched.testing.disruptions.scene import Disruption, Scene
from multisched.testing.faults import FOREIGN
from multisched.testing.plugins import HELD
from multisched.testing.policies import OWNER
from multisched.testing.world import CROWDED, PAIRS

PAIR_FILL, PAIR_URGENT = ("900m",) * 8, ("1", "1", "1500m")
"""CPU of the pods that fill two nodes, half of them under a budget, and of the urgent ones that then want to go there."""
INFEASIBLE_MILLI = 100_000


async def _delete(scene: Scene) -> bool:
    pod = scene.any_pod()
    if pod is not None:
        await scene.world.delete_pod(pod)
    return pod is not None


async def _recreate(scene: Scene) -> bool:
    pod = scene.any_pod(lambda pod: pod.namespace == "default")
    if pod is not None:
        await scene.world.delete_pod(pod)
        await scene.world.add_pod(pod.name)
    return pod is not None


async def _delete_unseen(scene: Scene) -> bool:
    """While no watch is open, and gone from history before one is."""
    pod = scene.any_pod()
    if pod is not None:
        scene.run.server.drop_watches()
        await scene.world.delete_pod(pod)
        scene.run.server.compact()
    return pod is not None


async def _delete_while_decided(scene: Scene) -> bool:
    """Pods of a burst go while their cycles wait for an answer, or their binds are on the way."""
    names = [f"brief-{scene.rng.getrandbits(32):08x}" for _ in range(6)]
    for name in names:
        await scene.world.add_pod(name, scheduler="forecast-scheduler")
    for name in names:
        await scene.pause(0.0, 0.008)
        await scene.world.delete_named(name)
    return True


async def _recreate_while_decided(scene: Scene) -> bool:
    """Pods of a burst go, and others of their names come at once: an old decision must not bind a new pod."""
    names = [f"again-{scene.rng.getrandbits(32):08x}" for _ in range(5)]
    for name in names:
        await scene.world.add_pod(name, scheduler="forecast-scheduler")
    for name in names:
        await scene.pause(0.0, 0.02)
        await scene.world.delete_named(name)
        await scene.world.add_pod(name, scheduler=scene.rng.choice(("forecast-scheduler", "job-scheduler")))
    return True


async def _resize_down(scene: Scene) -> bool:
    """A bound pod takes less than before: its room must come free, and nothing more."""
    pod = scene.any_pod(lambda pod: bool(pod.node) and 100 < pod.requests.get(CPU, 0) <= 500)
    return pod is not None and await scene.world.resize(pod, f"{pod.requests[CPU] // 2}m")


async def _resize_up(scene: Scene) -> bool:
    """Bound pods take more than before; more pods want to go where they are."""
    standing = [p for p in scene.world.pods() if p.node and not p.is_deleting and 0 < p.requests.get(CPU, 0) <= 500]
    scene.rng.shuffle(standing)
    for pod in standing[:4]:
        await scene.world.resize(pod, f"{pod.requests[CPU] + 700}m")
    for node in sorted({pod.node for pod in standing[:4]}):
        await scene.world.crowd(node, 3)
    return bool(standing)


async def _resize_waiting(scene: Scene) -> bool:
    """Pods are resized while they are queued, held at Permit, assumed or on the wire; then others come after the room."""
    node = f"node-{scene.rng.choice(CROWDED)}"
    is_held = scene.rng.random() < 0.5
    names = await scene.world.crowd(node, 4, cpu="900m", prefix=HELD if is_held else "")
    await scene.pause(0.0, 0.08)
    for name in names:
        pod = scene.run.door.pods().get(f"default/{name}")
        if pod is not None:
            await scene.world.resize(pod, scene.rng.choice(("1400m", "1900m", "300m")))
    await scene.pause(0.05, 0.3)
    await scene.world.crowd(node, 6)
    return True


async def _shrink_infeasible(scene: Scene) -> bool:
    """The only event that helps this pod is its own update."""
    pod = scene.any_pod(lambda pod: not pod.node and pod.requests.get(CPU, 0) > INFEASIBLE_MILLI)
    return pod is not None and await scene.world.resize(pod, "100m")


async def _open_gate(scene: Scene) -> bool:
    pod = scene.any_pod(lambda pod: bool(pod.gates))
    return pod is not None and await scene.world.open_gates(pod)


async def _heed_policy(scene: Scene) -> bool:
    """One of those that the API server refuses, at whatever stage it is."""
    pod = scene.any_pod(lambda pod: scene.run.door.policies.policy_of(pod.name) == OWNER)
    return pod is not None and await scene.world.heed_policy(pod)


async def _bind_from_outside(scene: Scene) -> bool:
    for _ in range(3):
        await scene.world.bind_from_outside()
    return True


async def _place_giants(scene: Scene) -> bool:
    """Valid pods of absurd size, placed by somebody else: what they hold counts all the same."""
    node = f"node-{scene.rng.choice(CROWDED)}"
    giant = await scene.world.place_giant(node)
    await scene.until(lambda: scene.run.knows_placed(giant))
    await scene.world.crowd_beside_giant(node)
    return True


async def _crowd(scene: Scene) -> bool:
    """More pods than fit want one node, all at once: some have no other candidate."""
    await scene.world.crowd(f"node-{scene.rng.choice(CROWDED)}", 12)
    return True


async def _press_protected(scene: Scene) -> bool:
    """Urgent pods want two nodes that are full, in part of pods under budgets."""
    await press(scene, await fill_pair(scene))
    return True


async def fill_pair(scene: Scene) -> str:
    """Fills two nodes; the label that names them."""
    pair = scene.rng.choice(PAIRS)
    apps = [*PROTECTED * 2, *FREE * 2]
    scene.rng.shuffle(apps)
    names = [
        await scene.world.add_to_pair(pair, cpu, app, is_urgent=False) for cpu, app in zip(PAIR_FILL, apps, strict=True)
    ]
    await scene.until(lambda: all(pod.node for pod in scene.world.pods() if pod.name in names))
    return pair


async def press(scene: Scene, pair: str) -> None:
    for cpu in PAIR_URGENT:
        await scene.world.add_to_pair(pair, cpu, scene.rng.choice(FREE), is_urgent=True)


def is_ours_to_lose(pod: Pod) -> bool:
    """A pod whose deletion nobody need hear of but by the audit."""
    return bool(pod.node) and not pod.name.startswith(FOREIGN)


TABLE = (
    Disruption("pod deleted", _delete),
    Disruption("pod recreated", _recreate),
    Disruption("pod deleted unseen", _delete_unseen),
    Disruption("pod deleted while decided", _delete_while_decided),
    Disruption("pod recreated while decided", _recreate_while_decided, 3),
    Disruption("pod resized down", _resize_down, 3),
    Disruption("pods resized up", _resize_up),
    Disruption("waiting pods resized", _resize_waiting, 8),
    Disruption("infeasible pod shrunk", _shrink_infeasible),
    Disruption("gate opened", _open_gate),
    Disruption("refused pod mended", _heed_policy),
    Disruption("foreign binds", _bind_from_outside),
    Disruption("giants placed", _place_giants),
    Disruption("crowd for one node", _crowd),
    Disruption("protected pods pressed", _press_protected, 5),
)
