"""Scenarios of pods that wait for a single event, or that other pods exclude."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.steps import (
    PLAIN_MILLI,
    SCHEDULER,
    Scenarios,
    bound_pods,
    cpu_by_node,
    create_pod,
    is_nominated,
    least_used_node,
    parked,
)
from tests.kit.world.labels import HOSTNAME, ZONE
from tests.kit.world.nodes import CROWDED, GPU_NODES

LEFT_MILLI: Final = 1_500
"""CPU that is free on a node in addition to the victims."""
LARGE_MILLI, SHRUNK_MILLI, REPORTED_MAX_S = 900, 100, 7.0
"""CPU of pods that fill a node, their CPU after a resize, and the time until their kubelet has reported it."""
UNPLACEABLE: Final = 20
"""Number of pods that fit nowhere: more than may be tried before pods of other namespaces."""
BACKED_OFF_S: Final = 1.2
"""Time after the first refusal until the backoff is over."""
TOGETHER_S: Final = 0.1
"""Delay of watches, so that several changes reach every process together."""
DELAYED_S: Final = 0.5, 1.5
"""Time for which most writes get a 429."""


async def _resize_down_in_place(context: RunContext) -> bool:
    """Resizes pods of a full node down. Room becomes free when the kubelet reports it, not when the resize is requested."""
    node = least_used_node(context)
    count = max((PLAIN_MILLI - cpu_by_node(context)[node]) // LARGE_MILLI, 0) + 1
    names = [await create_pod(context, node, LARGE_MILLI) for _ in range(count)]
    await context.until(lambda: len(parked(context, names)) + len(bound_pods(context, names)) == count)
    for pod in bound_pods(context, names)[:2]:
        await context.world.kubelets.resize(pod, f"{SHRUNK_MILLI}m", takes_time=True)
    await context.until(lambda: len(bound_pods(context, names)) == count, REPORTED_MAX_S)
    return True


async def _delete_excluding_pods(context: RunContext) -> bool:
    """Creates pods that differ only in their labels, each excluded by another pod. Deletes first the pod that excludes the pod
    parked last: an event that does not help the first parked pod must not be lost for the others.
    """
    node, sounds = least_used_node(context), ("shrill", "low")
    excluding = {sound: await context.world.external_actors.place_averse(node, {"sound": sound}) for sound in sounds}
    await context.until(lambda: all(map(context.replicas.knows_placed, excluding.values())))
    names = [await create_pod(context, node, 10, labels={"sound": sound}) for sound in sounds]
    await context.until(lambda: len(parked(context, names)) == len(names))
    await context.pause(0.5, 1.0)  # the updates of their conditions park them again
    kept = sorted((pod for pod in context.world.pods() if pod.name in names), key=lambda pod: pod.version, reverse=True)
    for pod in kept:
        await context.world.delete_uid(excluding[pod.labels["sound"]])
        await context.pause(0.3, 0.8)
    return True


async def _delete_nominated(context: RunContext) -> bool:
    """Deletes a nominated pod while its victims end. Another pod of the same priority fits together with the victims, and not with
    the nominated pod.
    """
    node = least_used_node(context)
    filler = await create_pod(context, node, max(PLAIN_MILLI - LEFT_MILLI - cpu_by_node(context)[node], 100))
    await context.until(lambda: bool(bound_pods(context, [filler])))
    pressing = await create_pod(context, node, PLAIN_MILLI - LEFT_MILLI + 200, is_urgent=True)
    await context.until(lambda: is_nominated(context, pressing))
    waiting = await create_pod(context, node, LEFT_MILLI - 100, is_urgent=True)
    await context.until(lambda: bool(parked(context, [waiting])), 1.0)
    await context.world.user.delete_named(pressing)
    await context.pause(0.3, 0.8)
    return True


async def _exclude_before_bind(context: RunContext) -> bool:
    """Places a pod with zone anti-affinity on another node of the zone while bindings wait after a 429."""
    number = context.rng.choice(CROWDED)
    node, neighbour = f"node-{number}", f"node-{number + 3 if number + 3 in CROWDED else number - 3}"
    labels = {"voice": "soft"}
    faults = context.faults
    faults.is_on = True
    try:
        async with context.throttled():
            names = [await create_pod(context, node, 10, labels=labels) for _ in range(2)]
            await context.until(lambda: bool(context.replicas.assumed_pods(names)))
            stranger = await context.world.external_actors.place_averse(neighbour, labels, ZONE)
            await context.pause(*DELAYED_S)
    finally:
        faults.is_on = False
    await context.until(lambda: not context.replicas.assumed_pods(names))
    await context.world.delete_uid(stranger)
    return True


async def _add_unplaceable_urgent_pods(context: RunContext) -> bool:
    """Creates urgent pods of one namespace with affinity to a pod that is then placed where they cannot run, together with pods of
    another namespace.

    No other event requeues the waiting pods: their backoffs are over, and all are tried again at once.
    """
    company = {"company": context.mark()}
    node, spec = least_used_node(context), _pod_affinity(company)
    names = [
        await create_pod(context, node, 10, spec=spec, is_urgent=True, namespace="team-a", name=f"hopeless-{number}")
        for number in range(UNPLACEABLE)
    ]
    await context.until(lambda: len(parked(context, names)) == len(names))
    await context.pause(BACKED_OFF_S, 2 * BACKED_OFF_S)
    for process in context.replicas.running:
        process.transport.pods_late_until_s = context.now_s() + TOGETHER_S
    for _ in range(2):
        await context.world.add_pod(scheduler=SCHEDULER)
    await context.world.external_actors.place(f"node-{GPU_NODES[0]}", annotations={}, labels=company)
    for _ in range(2):
        await context.world.add_pod(scheduler=SCHEDULER)
    await context.pause(3 * TOGETHER_S, 1.0)
    for name in names:
        await context.world.user.delete_named(name, "team-a")
    return True


def _pod_affinity(labels: Mapping[str, str]) -> dict[str, Any]:
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": dict(labels)}, "namespaces": ["default"]}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


SCENARIOS: Final[Scenarios] = (
    ("room freed in place", _resize_down_in_place),
    ("enemies gone one by one", _delete_excluding_pods),
    ("promise given up", _delete_nominated),
    ("stranger in the zone", _exclude_before_bind),
    (
        "stranger in the zone",
        _exclude_before_bind,
    ),  # the pod may be placed before all binds that it forbids are sent, or after
    ("hopeless pods pressed", _add_unplaceable_urgent_pods),
)
