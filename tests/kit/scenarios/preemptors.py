"""Scenarios of preemptors: their nominations, and preemptions that must or must not happen.

Victims are checked when a preemption starts (`PreemptionChecker`), nominations when a pod is assumed (`AssumptionChecker`). Here
few pods take part, so that the result is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.dedicated_nodes import DedicatedNodes
from tests.kit.scenarios.steps import (
    PLAIN_MILLI,
    Scenarios,
    are_bound,
    bound_pods,
    cpu_by_node,
    create_pod,
    is_led_by,
    is_nominated,
    least_used_node,
    pods_named,
    several,
    steady_leader,
)
from tests.kit.world.labels import HOSTNAME

PORT: Final = 9_972
FILLED_MILLI: Final = 900
LARGE_MILLI, SMALL_MILLI = 2_500, 1_400
"""A node takes one pod of each size. With the small pod gone there is no room for a second large one."""
SPARE_MILLI: Final = 50
"""CPU that remains free with the urgent pod."""
HELPED_S: Final = 8.0
"""Time within which an unhindered pod preempts; `checkers/process/preemptions.py` checks that it may."""


def _wants_port(milli: int) -> dict[str, Any]:
    ports = [{"containerPort": 80, "hostPort": PORT}]
    resources = {"requests": {"cpu": f"{milli}m", "memory": "64Mi"}}
    return {"containers": [{"name": "main", "image": "app-0:v1", "resources": resources, "ports": ports}]}


async def _nominate_for_port(context: RunContext) -> bool:
    """Creates an urgent pod that waits for victims. Its host port is free, and smaller pods request the same port."""
    node = least_used_node(context)
    free = PLAIN_MILLI - cpu_by_node(context)[node]
    fillers = [await create_pod(context, node, FILLED_MILLI) for _ in range(max(free // FILLED_MILLI, 1))]
    await context.until(lambda: are_bound(context, fillers))
    left = PLAIN_MILLI - cpu_by_node(context)[node]
    urgent_pod = await create_pod(
        context, node, 10, spec=_wants_port(left + FILLED_MILLI - SPARE_MILLI), is_urgent=True
    )
    await context.until(lambda: is_nominated(context, urgent_pod))
    small_pods = [await create_pod(context, node, 10, spec=_wants_port(5)) for _ in range(2)]
    await context.until(lambda: bool(bound_pods(context, [urgent_pod])), HELPED_S)
    for name in (*small_pods, urgent_pod, *fillers):
        await context.world.user.delete_named(name)
    return True


async def _preempt_averse_pod(context: RunContext) -> bool:
    """Places a pod with anti-affinity to a label, and creates an urgent pod with that label for its host: the placed pod must be
    evicted.
    """
    node, labels = least_used_node(context), {"tone": "softest"}
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": labels}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    excluding = await create_pod(context, node, 10, spec=spec)
    await context.until(lambda: bool(bound_pods(context, [excluding])))
    urgent_pod = await create_pod(context, node, 10, is_urgent=True, labels=labels)
    await context.until(lambda: is_nominated(context, urgent_pod), HELPED_S)
    for name in (urgent_pod, excluding):
        await context.world.user.delete_named(name)
    return True


async def _fill_exactly(context: RunContext) -> bool:
    """Creates an urgent pod that is as large as its node."""
    dedicated, before = DedicatedNodes(context), steady_leader(context)
    node = await dedicated.add_node("exact")
    less_urgent = await dedicated.add_pod("exact", milli=LARGE_MILLI)
    await context.until(lambda: bool(bound_pods(context, [less_urgent])))
    urgent_pod = await dedicated.add_pod("exact", milli=PLAIN_MILLI, is_urgent=True)
    await context.until(lambda: is_nominated(context, urgent_pod), HELPED_S)
    if is_led_by(context, before) and bound_pods(context, [less_urgent]) and not is_nominated(context, urgent_pod):
        context.bind_checker.report_violation(f"I3: {urgent_pod} preempts nobody, and would fill {node}")
    await _clear(context, [node], [urgent_pod, less_urgent])
    return True


async def _nominate_twice(context: RunContext) -> bool:
    """Creates two urgent pods of equal priority that each evict one pod of a large node. Neither ends the nomination of the
    other.
    """
    dedicated, before = DedicatedNodes(context), steady_leader(context)
    node = await dedicated.add_node("twice", cpu="8")
    less_urgent = [await dedicated.add_pod("twice", milli=LARGE_MILLI) for _ in range(3)]
    await context.until(partial(are_bound, context, less_urgent))
    first = await dedicated.add_pod("twice", milli=LARGE_MILLI, is_urgent=True)
    await context.until(lambda: is_nominated(context, first), HELPED_S)
    was_nominated = is_nominated(context, first)
    second = await dedicated.add_pod("twice", milli=LARGE_MILLI, is_urgent=True)
    await context.until(lambda: is_nominated(context, second), HELPED_S)
    if (
        is_led_by(context, before)
        and was_nominated
        and is_nominated(context, second)
        and not is_nominated(context, first)
    ):
        context.bind_checker.report_violation(f"I7: {first} has lost its promise to {second}, which is as urgent")
    await context.until(partial(are_bound, context, [first, second]), HELPED_S)
    await _clear(context, [node], [first, second, *less_urgent])
    return True


async def _start_meanwhile(context: RunContext) -> bool:
    """Creates two equal urgent pods, one after the other.

    Each node has a large and a small pod of equal priority. Before the second urgent pod is created, some of these get a start
    time, which makes them more important.
    """
    dedicated = DedicatedNodes(context)
    for is_large in (False, True):
        group = f"start-{is_large}"
        nodes = [await dedicated.add_node(group) for _ in range(2)]
        large = [await dedicated.add_pod(group, _on(node), milli=LARGE_MILLI) for node in nodes]
        small = [await dedicated.add_pod(group, _on(node), milli=SMALL_MILLI) for node in nodes]
        await context.until(partial(are_bound, context, [*large, *small]))
        urgent_pod: list[str] = []
        for started in ([], large if is_large else small):
            for pod in pods_named(context, started):
                await context.world.kubelets.start_pod(pod)
            await context.pause(0.2, 0.4)
            urgent_pod.append(await dedicated.add_pod(group, milli=LARGE_MILLI, is_urgent=True))
            await context.until(partial(are_bound, context, urgent_pod), HELPED_S)
        await _clear(context, nodes, [*urgent_pod, *large, *small])
    return True


def _on(node: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


async def _clear(context: RunContext, nodes: Sequence[str], pods: Sequence[str]) -> None:
    """Cordons the nodes and deletes the pods."""
    for node in nodes:
        await context.world.nodes.patch(node, {"spec": {"unschedulable": True}})
    for name in pods:
        await context.world.user.delete_named(name)


NOMINATIONS: Final[Scenarios] = (
    ("port promised", _nominate_for_port),
    ("urgent pod kept off by another's rule", _preempt_averse_pod),
    ("urgent pod as large as a node", _fill_exactly),
    ("two urgent pods on a large node", _nominate_twice),
    ("pods started between two urgent ones", _start_meanwhile),
)
SCENARIOS: Final[Scenarios] = (("promises and rules of preemptors", several(NOMINATIONS, len(NOMINATIONS))),)
