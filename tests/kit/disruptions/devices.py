"""Disruptions of GPUs: counts that change, fractions on nearly full devices, and edited annotations of running pods."""

from __future__ import annotations

from contextlib import nullcontext

from tests.kit.disruptions.run_context import HANDED_OVER_S, SENT_S, SLOW, Disruption, RunContext
from tests.kit.world.labels import GPU, GPU_COUNT, GPU_INDICES, GPU_MILLI, HONOURED
from tests.kit.world.nodes import GPU_NODES, NODES

STUFFING = 1_100
"""Number of annotations that a user adds to a running pod."""
MISTAKEN = (
    {GPU_MILLI: "half"},
    {GPU_MILLI: "0"},
    {GPU_MILLI: "2500"},
    {GPU_MILLI: "9" * 90},
    {GPU_COUNT: "2"},
    {GPU_MILLI: "500", GPU_COUNT: "none"},
    {GPU_MILLI: "500", GPU_COUNT: "99"},
    {GPU_MILLI: "500"},
)
"""Invalid requests; the last one is used for a pod that also requests whole devices."""
PAIRED = 0.6
"""Share of lost GPUs in which pods hold two each."""
FRACTIONS = ("250", "300", "400", "500", "600", "1000")


async def _flap(context: RunContext) -> bool:
    """Changes the GPU count to 0 and back to 4, as by a restart of the device plugin, while pods that fill the node's CPU are bound
    there in either domain.

    Some binds take longer than the next leader needs to learn that the previous one has seen the node leave.
    """
    name = f"node-{context.rng.choice(GPU_NODES)}"
    is_slow = context.rng.random() < SLOW
    async with context.slow_binds(name) if is_slow else nullcontext():
        await context.world.crowds.add(name, 6, scheduler="gpu-scheduler", cpu="2")
        await context.pause(0.0, 0.1)
        if is_slow:
            await context.until(lambda: context.bind_checker.in_flight.is_bound_to(name), SENT_S)
        if not await context.world.nodes.set_gpus(name, 0):
            return False
        await context.world.crowds.add(name, 6, scheduler="forecast-scheduler", cpu="2")
        await context.pause(*(HANDED_OVER_S if is_slow else (0.1, 3.0)))
        await context.world.nodes.set_gpus(name, 4)
        await context.world.crowds.add(name, 6, scheduler="gpu-scheduler", cpu="2")
    return True


async def _lose_some(context: RunContext) -> bool:
    """Removes two of four GPUs for a while. Some pods may hold one that is removed and one that remains, which other pods nearly
    fill.
    """
    name = f"node-{context.rng.choice(GPU_NODES)}"
    if context.rng.random() < PAIRED:
        await context.world.add_fractions(name, ["900"])
        await context.world.add_fractions(name, ["500", "500"], count=2)
        await context.pause(0.2, 0.6)
    else:
        await context.world.add_fractions(name, FRACTIONS)
        await context.pause(0.0, 0.05)
    await context.world.nodes.set_gpus(name, 2)
    await context.pause(1.0, 5.0)
    await context.world.add_fractions(name, ["1000", "1000"])
    await context.pause(0.4, 0.9)
    await context.world.nodes.set_gpus(name, 4)
    return True


async def _fill(context: RunContext) -> bool:
    """Creates more fractions than a node's devices can hold at once, then whole ones, and deletes some of the first."""
    name = f"node-{context.rng.choice(GPU_NODES)}"
    await context.world.add_fractions(name, [context.rng.choice(FRACTIONS) for _ in range(14)])
    await context.pause(0.0, 2.0)
    await context.world.add_fractions(name, ["1000", "250"])
    await context.pause(0.5, 1.5)
    for pod in [pod for pod in context.world.pods() if pod.node == name and GPU_MILLI in pod.annotations][:3]:
        await context.world.user.delete_pod(pod)
        await context.pause(0.2, 0.6)
    return True


async def _edit(context: RunContext, changes: dict[str, str | None]) -> bool:
    """Edits running pods that share devices, then creates more pods that need their room."""
    placed = [pod for pod in context.world.pods() if pod.node and GPU_MILLI in pod.annotations]
    if not placed:
        node = f"node-{context.rng.choice(GPU_NODES)}"
        await context.world.add_fractions(node, ["500"] * 8)
        await context.until(lambda: any(p.node == node and GPU_MILLI in p.annotations for p in context.world.pods()))
        placed = [pod for pod in context.world.pods() if pod.node and GPU_MILLI in pod.annotations]
    if not placed:
        return False
    node = context.rng.choice(placed).node
    for pod in [pod for pod in placed if pod.node == node][:4]:
        await context.world.patch_pod(pod, {"metadata": {"annotations": changes}})
    await context.pause(0.2, 1.5)
    await context.world.add_fractions(node, ["500", "500", "600", "1000"])
    return True


async def _remove_milli(context: RunContext) -> bool:
    return await _edit(context, {GPU_MILLI: None})


async def _lower_milli(context: RunContext) -> bool:
    return await _edit(context, {GPU_MILLI: "10"})


async def _stuff_annotations(context: RunContext) -> bool:
    """Adds annotations that sort before and after ours."""
    return await _edit(context, {f"{'a' if at % 2 else 'z'}{at}.sim/x": "" for at in range(STUFFING)})


async def _annotate_foreigners(context: RunContext) -> bool:
    """Places pods of another scheduler that have no GPU but annotations that claim one: they must not block other pods."""
    for number in GPU_NODES[:4]:
        await context.world.external_actors.place(f"node-{number}", annotations={GPU_MILLI: "1000"})
    await context.world.add_fractions(f"node-{GPU_NODES[0]}", ["500", "500"])
    return True


async def _add_invalid_amounts(context: RunContext) -> bool:
    """Creates pods with invalid amounts of devices: conditions report them until their owners delete or correct them."""
    before = {pod.name for pod in context.world.pods()}
    for amounts in MISTAKEN:
        await context.world.add_annotated("gpu-scheduler", amounts, whole="1" if amounts == MISTAKEN[-1] else "")
    await context.world.add_annotated("gpu-scheduler", {GPU_MILLI: "300", GPU_COUNT: "2"})
    await context.pause(1.0, 4.0)
    pods = [pod for pod in context.world.pods() if pod.name.startswith("annotated-") and pod.name not in before]
    for pod in pods:
        if not pod.node and context.rng.random() < 0.5:
            await context.world.patch_pod(pod, {"metadata": {"annotations": {GPU_MILLI: "200", GPU_COUNT: None}}})
    await context.pause(0.5, 2.0)
    for pod in pods:
        await context.world.user.delete_pod(pod)
    return True


async def _replace(context: RunContext) -> bool:
    """Deletes a node with shared devices and its pods, adds another node, and recreates the first one as a new node."""
    number = context.rng.choice(GPU_NODES)
    name = f"node-{number}"
    await context.world.add_fractions(name, FRACTIONS)
    await context.until(lambda: sum(pod.node == name for pod in context.world.pods()) >= 3)
    await context.world.nodes.delete(number)
    await context.pause(0.0, 0.3)
    context.nodes_added += 1
    other = NODES + 1_000 + 10 * context.nodes_added + 7  # it has devices too, and gets the free row
    await context.world.nodes.add(other)
    await context.world.add_fractions(f"node-{other}", FRACTIONS)
    await context.pause(0.0, 1.0)
    await context.world.nodes.add(number)
    await context.pause(0.1, 0.5)
    await context.world.add_fractions(name, FRACTIONS)
    await context.pause(1.0, 4.0)
    await context.world.nodes.delete(other)
    return True


async def _whole_and_shared(context: RunContext) -> bool:
    """Creates pods for whole and for shared devices of one node at once: only one kind may use it."""
    name = f"node-{context.rng.choice(GPU_NODES)}"
    await context.world.crowds.add(name, 3, scheduler="gpu-scheduler", cpu="100m", limits={GPU: "1"})
    await context.world.add_fractions(name, ["250", "500", "500"])
    return True


async def _honour_indices(context: RunContext) -> bool:
    """Gives a node a device plugin that assigns the devices in annotations: whole devices and fractions may share the node."""
    name = f"node-{context.rng.choice(GPU_NODES)}"
    if not await context.world.nodes.patch(name, {"metadata": {"labels": {GPU_INDICES: HONOURED}}}):
        return False
    for _ in range(2):
        await context.world.add_fractions(name, [context.rng.choice(FRACTIONS) for _ in range(3)])
        await context.world.crowds.add(name, 2, scheduler="gpu-scheduler", cpu="100m", limits={GPU: "1"})
        await context.pause(0.5, 2.0)
    return True


RARE = (Disruption("GPU indices honoured", _honour_indices),)
TABLE = (
    Disruption("GPUs flapped", _flap, 8),
    Disruption("GPUs lost", _lose_some),
    Disruption("GPU node replaced", _replace, 6),
    Disruption("fractions crowded", _fill, 6),
    Disruption("gpu-milli removed", _remove_milli),
    Disruption("gpu-milli lowered", _lower_milli),
    Disruption("annotations stuffed", _stuff_annotations, 2),
    Disruption("foreigners annotated", _annotate_foreigners, 2),
    Disruption("whole and shared", _whole_and_shared),
    Disruption("amounts mistaken", _add_invalid_amounts, 3),
)
