"""Scenarios of changes between a decision and its POST: another client breaks a rule while a bind waits after a 429.

After the change is observed, the bind must not be sent (`stale_decisions`, `DeliveredState.fault_of_bind`). Also scenarios of binds
whose responses are lost: the pod is never forgotten, nor tried on another node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import product, repeat
from typing import Any, Final

from multisched.model.objects import CPU
from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.steps import SCHEDULER, Scenarios, least_used_node, several
from tests.kit.wire.faults import APPLIED, LATE, LATE_408, LATE_500, LOST, REFUSED, THROTTLED
from tests.kit.world.labels import HOSTNAME, ZONE
from tests.kit.world.nodes import GPU_NODES

NAME: Final = "between"
OBSERVED_S: Final = 0.1, 0.4
"""Time until every process has observed the change. The bind is tried again a second after its 429."""
SETTLED_S: Final = 6.0
TOGETHER: Final = 5
"""Number of short scenarios in one run."""
TAINT: Final = "sim/late"
UNDELIVERED_S: Final = 9.5
"""Time for which watches deliver no pods while the outcome of a bind is unknown."""

NodeAction = Callable[[str], Awaitable[object]]
"""Called with the chosen node."""


async def _change_before_bind(context: RunContext, node: str, change: NodeAction, **ours: Any) -> bool:
    """Causes a change after a pod was decided on and its bind got a 429; afterwards the bind may be sent at any moment."""
    answers = context.faults.bind_answers
    answers[NAME] = repeat(THROTTLED)
    try:
        asked = {"spec": {}, "scheduler": SCHEDULER, "cpu": "10m", "is_urgent": False, **ours}
        await context.world.add_small_pod(node, name=NAME, **asked)
        await context.until(lambda: bool(_assumed_node(context)))
        chosen = _assumed_node(context)
        if chosen:
            await change(chosen)
            await context.pause(*OBSERVED_S)
    finally:
        del answers[NAME]
    await context.until(lambda: not context.replicas.assumed_pods([NAME]), SETTLED_S)
    await context.world.user.delete_named(NAME)
    return bool(chosen)


def _assumed_node(context: RunContext) -> str:
    """Returns the node on which a process has assumed the pod; empty for none."""
    uids = [pod.uid for pod in context.replicas.assumed_pods([NAME])]
    held = [process.checker.delivered.held for process in context.replicas.running]
    return next((nodes[uid] for uid in uids for nodes in held if uid in nodes), "")


async def _place_external_pod(context: RunContext, node: str, *, theirs: Mapping[str, Any], **ours: Any) -> bool:
    """Places a pod of another scheduler on the node, and deletes it again."""
    placed: list[str] = []

    async def place(chosen: str) -> None:
        placed.append(await context.world.external_actors.place(chosen, **theirs))

    has_run = await _change_before_bind(context, node, place, **ours)
    for uid in placed:
        await context.world.delete_uid(uid)
    return has_run


async def _take_room(context: RunContext) -> bool:
    node = least_used_node(context)
    return await _place_external_pod(context, node, theirs={"cpu": "4"})


async def _take_port(context: RunContext) -> bool:
    port = {"containerPort": 80, "hostPort": 9_971, "hostIP": context.rng.choice(("", "10.0.0.1"))}
    main = {"name": "main", "image": "app-0:v1", "resources": {"requests": {"cpu": "10m"}}}
    ours, theirs = ({"containers": [{**main, "ports": [one]}]} for one in (port, {**port, "hostIP": ""}))
    return await _place_external_pod(context, least_used_node(context), theirs={"spec": theirs}, spec=ours)


async def _take_disk(context: RunContext) -> bool:
    spec = {"volumes": [{"name": "v0", "gcePersistentDisk": {"pdName": "between"}}]}
    return await _place_external_pod(context, least_used_node(context), theirs={"spec": spec}, spec=spec)


async def _take_device(context: RunContext) -> bool:
    """Takes one whole device: a pod that requests a part of another device must not be on the node."""
    whole = {"name": "main", "image": "app-0:v1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    is_part = context.rng.random() < 0.5
    ours = {"milli": "300"} if is_part else {"spec": {"containers": [whole]}}
    many = {**whole, "resources": {"limits": {"nvidia.com/gpu": "1" if is_part else "4"}}}
    crowds = Counter(pod.node for pod in context.world.pods())
    node = min((f"node-{number}" for number in GPU_NODES), key=crowds.__getitem__)
    return await _place_external_pod(
        context, node, theirs={"spec": {"containers": [many]}}, scheduler="gpu-scheduler", **ours
    )


async def _crowd_zone(context: RunContext) -> bool:
    """Places a pod in the chosen zone of a pod that is spread over zones."""
    labels = {"level": context.mark()}
    spread = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    spec = {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": labels}}]}
    return await _place_external_pod(context, "", theirs={"labels": labels}, spec=spec, labels=labels)


async def _place_excluding_pod(context: RunContext) -> bool:
    labels = {"tone": "soft"}
    term = {"topologyKey": context.rng.choice((HOSTNAME, ZONE)), "labelSelector": {"matchLabels": labels}}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    return await _place_external_pod(context, least_used_node(context), theirs={"spec": spec}, labels=labels)


async def _delete_affinity_target(context: RunContext) -> bool:
    """Deletes the pod to which another pod has affinity."""
    labels, node = {"company": context.mark()}, least_used_node(context)
    term = {"topologyKey": context.rng.choice((HOSTNAME, ZONE)), "labelSelector": {"matchLabels": labels}}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    target = await context.world.external_actors.place(node, labels=labels)
    await context.until(lambda: context.replicas.knows_placed(target))
    has_run = await _change_before_bind(context, node, lambda _: context.world.delete_uid(target), spec=spec)
    await context.world.delete_uid(target)
    return has_run


async def _patch_node(context: RunContext, patch: Mapping[str, Any], back: Mapping[str, Any], **ours: Any) -> bool:
    """Patches the node, and reverts the patch shortly afterwards."""
    node = least_used_node(context)
    has_run = await _change_before_bind(context, node, lambda _: context.world.nodes.patch(node, patch), **ours)
    await context.world.nodes.patch(node, back)
    return has_run


async def _cordon(context: RunContext) -> bool:
    return await _patch_node(context, {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}})


async def _taint(context: RunContext, effect: str) -> bool:
    node = context.bind_checker.nodes()[least_used_node(context)]
    before = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in node.taints]
    taints = [*before, {"key": TAINT, "effect": effect}]
    return await _patch_node(context, {"spec": {"taints": taints}}, {"spec": {"taints": before}})


async def _shrink(context: RunContext) -> bool:
    """Reduces the node's CPU or pod count."""
    node = context.bind_checker.nodes()[least_used_node(context)]
    small, had = context.rng.choice(
        (
            ({"cpu": "5m"}, {"cpu": f"{node.allocatable[CPU]}m"}),
            ({"pods": "0"}, {"pods": f"{node.allocatable['pods']}"}),
        )
    )
    return await _patch_node(context, {"status": {"allocatable": small}}, {"status": {"allocatable": had}})


async def _lose_label(context: RunContext) -> bool:
    """Removes a label that the pod selects, or its topology key of spreading."""
    node = context.bind_checker.nodes()[least_used_node(context)]
    spread = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    over = {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"tone": "soft"}}}]}
    key, spec = context.rng.choice((("rank", {"affinity": _ranked(node.labels["rank"])}), (ZONE, over)))
    had = {"metadata": {"labels": {key: node.labels[key]}}}
    return await _patch_node(context, {"metadata": {"labels": {key: None}}}, had, spec=spec)


def _ranked(rank: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "rank", "operator": "In", "values": [rank]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


async def _delete(context: RunContext) -> bool:
    """Deletes the node, and recreates it at once in half of the cases."""
    node = least_used_node(context)
    number, is_back = int(node.removeprefix("node-")), context.rng.random() < 0.5

    async def go(_: str) -> None:
        await context.world.nodes.delete(number)
        if is_back:
            await context.world.nodes.add(number)

    has_run = await _change_before_bind(context, node, go)
    await context.world.nodes.add(number)
    return has_run


# -- binds whose answers are lost --------------------------------------------------------------------------------------


async def _lose_answers(context: RunContext) -> bool:
    """Loses responses to binds that may be applied, while no watch delivers pods. The following responses say nothing about the
    earlier binds.
    """
    pairs = product((APPLIED, LATE, LOST, LATE_500, LATE_408), (REFUSED, THROTTLED))
    scripts = {f"{NAME}-{at}": (THROTTLED, first, *[then] * 4) for at, (first, then) in enumerate(pairs)}
    answers = context.faults.bind_answers
    try:
        for name, script in scripts.items():
            answers[name] = iter(script)
            await context.world.add_small_pod("", {}, name=name, is_urgent=False, scheduler=SCHEDULER, cpu="10m")
        await context.until(lambda: len(context.replicas.assumed_pods(scripts)) == len(scripts))
        for process in context.replicas.running:
            process.transport.pods_late_until_s = context.now_s() + UNDELIVERED_S
        await context.pause(UNDELIVERED_S, UNDELIVERED_S + 0.5)
    finally:
        for name in scripts:
            del answers[name]
    await context.until(lambda: not context.replicas.assumed_pods(scripts), SETTLED_S)
    for name in scripts:
        await context.world.user.delete_named(name)
    return True


BEFORE: Final[Scenarios] = (
    ("room taken before the bind", _take_room),
    ("port taken before the bind", _take_port),
    ("disk taken before the bind", _take_disk),
    ("device taken before the bind", _take_device),
    ("zone crowded before the bind", _crowd_zone),
    ("enemy come before the bind", _place_excluding_pod),
    ("company gone before the bind", _delete_affinity_target),
    ("node cordoned before the bind", _cordon),
    ("node tainted before the bind", partial(_taint, effect="NoSchedule")),
    ("node tainted before the bind", partial(_taint, effect="NoExecute")),
    ("node shrunk before the bind", _shrink),
    ("label lost before the bind", _lose_label),
    ("node deleted before the bind", _delete),
)
SCENARIOS: Final[Scenarios] = (
    ("strangers before the bind", several(BEFORE, TOGETHER)),
    ("strangers before the bind", several(BEFORE, TOGETHER)),
    ("answers of binds lost", _lose_answers),
)
