"""Scenarios of state that is cached between attempts: something changes, and then the first pod of a new class is created.

Meanwhile each class is also evaluated without the cache, so that a stale result is detected at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.dedicated_nodes import DedicatedNodes
from tests.kit.scenarios.steps import (
    Scenarios,
    are_bound,
    checking_every_class,
    create_pod,
    expect_bound,
    expect_pending,
    least_used_node,
    several,
)
from tests.kit.world.labels import HOSTNAME, ZONE
from tests.kit.world.nodes import CROWDED

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEIGHTS: Final = (1, 40, 100)
FILLING_MILLI: Final = 3_000
"""A dedicated node takes one pod of this size."""
LARGE_IMAGE_BYTES: Final = 6_000_000_000
"""If a tenth of the nodes have it, it exceeds the minimum size that ImageLocality scores."""
KIND_LABEL: Final = "kin"
"""The key of the label that selects pods of these scenarios."""


async def _change_in_place(context: RunContext) -> bool:
    """Taints, cordons and labels a node, and reverts each change. After each step pods are created that differ from all earlier
    ones only in their requests.
    """
    node, site = least_used_node(context), {"nodeSelector": {"site": context.mark()}}
    before = context.bind_checker.nodes()[node].taints
    own = [{"key": one.key, "value": one.value, "effect": one.effect} for one in before]
    shut = {"key": "sim/shut", "value": "yes", "effect": "NoSchedule"}
    rather_not = {**shut, "effect": "PreferNoSchedule"}
    changes: Sequence[Mapping[str, Any]] = (
        {"spec": {"taints": [*own, shut]}},
        {"spec": {"taints": [*own, rather_not]}},
        {"spec": {"taints": own or None}},
        {"spec": {"unschedulable": True}},
        {"spec": {"unschedulable": None}},
        {"metadata": {"labels": {"site": site["nodeSelector"]["site"]}}},
    )
    with checking_every_class(context):
        sited = await _create(context, spec=site)
        for at, change in enumerate(changes):
            await context.world.nodes.patch(node, change)
            await context.pause(0.1, 0.3)
            await _create(context, milli=20 + at)
            await _create(context, milli=30 + at, spec=site)
        await expect_bound(context, node, sited, "it has the label that the pod wants")
        await context.world.nodes.patch(node, {"metadata": {"labels": {"site": None}}})
        await context.pause(0.1, 0.3)
        late = await _create(context, milli=40, spec=site)
        await expect_pending(context, node, late, "it has lost the label that the pod wants")
    return True


async def _first_of_kind(context: RunContext) -> bool:
    """Creates two workloads with pod affinity to one label. The pods of one workload have the label, so that its first pod needs no
    other.
    """
    kind_labels, node = {KIND_LABEL: context.mark()}, least_used_node(context)
    spec = {"affinity": {"podAffinity": {_REQUIRED: [_term(kind_labels, ZONE)]}}}
    with checking_every_class(context):
        stranger = await create_pod(context, node, 10, spec=spec)
        await expect_pending(
            context, node, stranger, "nobody of the kind that it wants is there, nor is it of that kind"
        )
        first = await create_pod(context, node, 10, spec=spec, labels=kind_labels)
        await expect_bound(context, node, first, "it is the first of its kind")
        await expect_bound(context, node, stranger, "somebody of the kind that it wants is there")
        others = [await create_pod(context, "", 15 + at, spec=spec, labels=kind_labels) for at in range(2)]
        await context.until(lambda: are_bound(context, others))
        await context.world.user.delete_named(first)
        for name in others:
            await context.world.user.delete_named(name)
        await context.pause(0.2, 0.5)
        late = await create_pod(context, node, 10, spec=spec)
        await expect_pending(context, node, late, "all of the kind that it wants are gone")
        await expect_bound(
            context, node, await create_pod(context, node, 10, spec=spec, labels=kind_labels), "it is the first again"
        )
    return True


async def _fill_zones(context: RunContext) -> bool:
    """Creates pods with zone anti-affinity to each other: one more than there are zones, then deletes one."""
    kind_labels = {KIND_LABEL: context.mark()}
    spec = {"affinity": {"podAntiAffinity": {_REQUIRED: [_term(kind_labels, ZONE)]}}}
    nodes = {number % 3: f"node-{number}" for number in CROWDED if f"node-{number}" in context.bind_checker.nodes()}
    with checking_every_class(context):
        there = {
            zone: await create_pod(context, node, 10, spec=spec, labels=kind_labels) for zone, node in nodes.items()
        }
        await context.until(lambda: are_bound(context, [*there.values()]))
        if not are_bound(context, [*there.values()]):
            return False
        zone = context.rng.choice(sorted(nodes))
        late = await create_pod(context, nodes[zone], 10, spec=spec, labels=kind_labels)
        await expect_pending(context, nodes[zone], late, "its zone has one that it does not bear", beside=[there[zone]])
        excluding = await create_pod(context, nodes[zone], 11, spec=_anti_affinity(kind_labels))
        await expect_pending(
            context, nodes[zone], excluding, "its zone has one that it does not bear", beside=[there[zone]]
        )
        await context.world.user.delete_named(excluding)
        await context.world.user.delete_named(there[zone])
        await expect_bound(context, nodes[zone], late, "its zone has none that it does not bear any more")
    return True


async def _weigh_preferences(context: RunContext) -> bool:
    """Places pods that are preferred or avoided with several weights on several nodes.

    Then some of them are deleted, and a service is created and deleted whose pods are spread by default.
    """
    key = context.mark()
    nodes = [f"node-{number}" for number in CROWDED if f"node-{number}" in context.bind_checker.nodes()]
    kinds = [{KIND_LABEL: f"{key}-{at}"} for at in range(len(WEIGHTS))]
    company = [await create_pod(context, node, 10, labels=kind) for node, kind in zip(nodes, kinds * 2, strict=False)]
    await context.until(lambda: are_bound(context, company))
    weighed = [
        {"weight": weight, "podAffinityTerm": _term(kind, HOSTNAME if at % 2 else ZONE)}
        for at, (weight, kind) in enumerate(zip(WEIGHTS, kinds, strict=True))
    ]
    specs = [
        {"affinity": {"podAffinity": {_PREFERRED: weighed}}},
        {"affinity": {"podAntiAffinity": {_PREFERRED: weighed}}},
        {"affinity": {"podAffinity": {_PREFERRED: weighed[:1]}, "podAntiAffinity": {_PREFERRED: weighed[1:]}}},
    ]
    with checking_every_class(context):
        for name in [None, *company[:2]]:
            if name is not None:
                await context.world.user.delete_named(name)
                await context.pause(0.1, 0.3)
            names = [await _create(context, milli=25, spec=spec, labels=kinds[0]) for spec in specs]
            await context.until(partial(are_bound, context, names), 2.0)
        await _spread_service(context, f"app-{key}")
    return True


async def _spread_service(context: RunContext, app: str) -> None:
    """Creates pods of a service, replica set and so on, before these exist, while they exist and after their deletion."""
    labels = {"app": app}
    for change in (None, context.world.services.expose_app, context.world.services.hide_app):
        if change is not None:
            await change(app)
            await context.pause(0.2, 0.4)
        names = [await _create(context, milli=26, labels=labels) for _ in range(2)]
        await context.until(partial(are_bound, context, names), 2.0)


async def _fill_preferred(context: RunContext) -> bool:
    """Creates pods that prefer one node to a second, and this one to a third. Each pod fills a node."""
    dedicated = DedicatedNodes(context)
    nodes = [await dedicated.add_node("preferred") for _ in range(3)]
    terms = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}}
        for weight, node in zip(reversed(WEIGHTS), nodes[:2], strict=False)
    ]
    spec = {"affinity": {"nodeAffinity": {_PREFERRED: terms}}}
    names: list[str] = []
    with checking_every_class(context):
        for _ in nodes:
            names.append(await dedicated.add_pod("preferred", spec, milli=FILLING_MILLI))
            await context.until(partial(are_bound, context, names), 2.0)
    for name in names:
        await context.world.user.delete_named(name)
    return True


async def _pull_image(context: RunContext) -> bool:
    """Adds a large image to one node after the other. Its score depends on how many nodes have it."""
    dedicated, image = DedicatedNodes(context), f"{context.mark()}:v1"
    nodes = [await dedicated.add_node("pull") for _ in range(3)]
    main = {"name": "main", "image": image, "resources": {"requests": {"cpu": "10m"}}}
    pulled = {"status": {"images": [{"names": [image], "sizeBytes": LARGE_IMAGE_BYTES}]}}
    with checking_every_class(context):
        for node in nodes:
            name = await dedicated.add_pod("pull", {"containers": [main]})
            await context.until(partial(are_bound, context, [name]), 2.0)
            await context.world.nodes.patch(node, pulled)
            await context.pause(0.2, 0.4)
        name = await dedicated.add_pod("pull", {"containers": [main]})
        await context.until(partial(are_bound, context, [name]), 2.0)
    return True


async def _create(
    context: RunContext,
    *,
    milli: int = 10,
    spec: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Creates a pod for any node."""
    return await create_pod(context, "", milli, spec=spec, labels=labels)


def _term(labels: Mapping[str, str], key: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}}


def _anti_affinity(labels: Mapping[str, str]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {_REQUIRED: [_term(labels, ZONE)]}}}


SCENARIOS: Final[Scenarios] = (
    ("node changed in place", _change_in_place),
    ("first of its kind", _first_of_kind),
    ("zones filled", _fill_zones),
    ("company weighed", _weigh_preferences),
)
LATER: Final[Scenarios] = (
    ("preferred node filled, image pulled", several((("filled", _fill_preferred), ("pulled", _pull_image)), 2)),
)
