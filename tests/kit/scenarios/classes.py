"""Scenarios of what is kept between attempts: something changes in place, and then the first pod of a class that nobody has seen comes.

Meanwhile each class is asked anew, so that an answer that should have been forgotten shows at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from tests.kit.disruptions.scene import Scene
from tests.kit.scenarios.rooms import Rooms
from tests.kit.scenarios.steps import (
    Scenarios,
    are_bound,
    checking_every_class,
    emptiest,
    must_come,
    must_wait,
    place,
    several,
)
from tests.kit.world.labels import HOSTNAME, ZONE
from tests.kit.world.nodes import CROWDED

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEIGHTS: Final = (1, 40, 100)
FILLING_MILLI: Final = 3_000
"""A room takes one pod of this size."""
LARGE_IMAGE_BYTES: Final = 6_000_000_000
"""Where a tenth of the nodes have it, it counts for more than the least size that ImageLocality scores."""
KIN: Final = "kin"
"""The key of the label by which pods of these scenarios are meant."""


async def _change_in_place(scene: Scene) -> bool:
    """A node is tainted, cordoned and labelled, and all of it is taken back. After each of that pods come that differ in what they
    request from all before, and in nothing else."""
    node, site = emptiest(scene), {"nodeSelector": {"site": scene.mark()}}
    before = scene.bind_checker.nodes()[node].taints
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
    with checking_every_class(scene):
        sited = await _new(scene, spec=site)
        for at, change in enumerate(changes):
            await scene.world.nodes.patch(node, change)
            await scene.pause(0.1, 0.3)
            await _new(scene, milli=20 + at)
            await _new(scene, milli=30 + at, spec=site)
        await must_come(scene, node, sited, "it has the label that the pod wants")
        await scene.world.nodes.patch(node, {"metadata": {"labels": {"site": None}}})
        await scene.pause(0.1, 0.3)
        late = await _new(scene, milli=40, spec=site)
        await must_wait(scene, node, late, "it has lost the label that the pod wants")
    return True


async def _find_company(scene: Scene) -> bool:
    """Two workloads want company of one kind. The pods of one are of that kind themselves, and the first of them needs nobody."""
    kin, node = {KIN: scene.mark()}, emptiest(scene)
    spec = {"affinity": {"podAffinity": {_REQUIRED: [_term(kin, ZONE)]}}}
    with checking_every_class(scene):
        stranger = await place(scene, node, 10, spec=spec)
        await must_wait(scene, node, stranger, "nobody of the kind that it wants is there, nor is it of that kind")
        first = await place(scene, node, 10, spec=spec, labels=kin)
        await must_come(scene, node, first, "it is the first of its kind")
        await must_come(scene, node, stranger, "somebody of the kind that it wants is there")
        others = [await place(scene, "", 15 + at, spec=spec, labels=kin) for at in range(2)]
        await scene.until(lambda: are_bound(scene, others))
        await scene.world.user.delete_named(first)
        for name in others:
            await scene.world.user.delete_named(name)
        await scene.pause(0.2, 0.5)
        late = await place(scene, node, 10, spec=spec)
        await must_wait(scene, node, late, "all of the kind that it wants are gone")
        await must_come(scene, node, await place(scene, node, 10, spec=spec, labels=kin), "it is the first again")
    return True


async def _fill_zones(scene: Scene) -> bool:
    """Pods that bear no second one of theirs in a zone: one zone more than there are, and then one opens."""
    kin = {KIN: scene.mark()}
    spec = {"affinity": {"podAntiAffinity": {_REQUIRED: [_term(kin, ZONE)]}}}
    nodes = {number % 3: f"node-{number}" for number in CROWDED if f"node-{number}" in scene.bind_checker.nodes()}
    with checking_every_class(scene):
        there = {zone: await place(scene, node, 10, spec=spec, labels=kin) for zone, node in nodes.items()}
        await scene.until(lambda: are_bound(scene, [*there.values()]))
        if not are_bound(scene, [*there.values()]):
            return False
        zone = scene.rng.choice(sorted(nodes))
        late = await place(scene, nodes[zone], 10, spec=spec, labels=kin)
        await must_wait(scene, nodes[zone], late, "its zone has one that it does not bear", beside=[there[zone]])
        foe = await place(scene, nodes[zone], 11, spec=_bears_not(kin))
        await must_wait(scene, nodes[zone], foe, "its zone has one that it does not bear", beside=[there[zone]])
        await scene.world.user.delete_named(foe)
        await scene.world.user.delete_named(there[zone])
        await must_come(scene, nodes[zone], late, "its zone has none that it does not bear any more")
    return True


async def _prefer(scene: Scene) -> bool:
    """Company of several weights, for and against, stands on several nodes and in their zones.

    Then some of it goes, and a service comes and goes whose pods are to be spread.
    """
    key = scene.mark()
    nodes = [f"node-{number}" for number in CROWDED if f"node-{number}" in scene.bind_checker.nodes()]
    kinds = [{KIN: f"{key}-{at}"} for at in range(len(WEIGHTS))]
    company = [await place(scene, node, 10, labels=kind) for node, kind in zip(nodes, kinds * 2, strict=False)]
    await scene.until(lambda: are_bound(scene, company))
    weighed = [
        {"weight": weight, "podAffinityTerm": _term(kind, HOSTNAME if at % 2 else ZONE)}
        for at, (weight, kind) in enumerate(zip(WEIGHTS, kinds, strict=True))
    ]
    specs = [
        {"affinity": {"podAffinity": {_PREFERRED: weighed}}},
        {"affinity": {"podAntiAffinity": {_PREFERRED: weighed}}},
        {"affinity": {"podAffinity": {_PREFERRED: weighed[:1]}, "podAntiAffinity": {_PREFERRED: weighed[1:]}}},
    ]
    with checking_every_class(scene):
        for name in [None, *company[:2]]:
            if name is not None:
                await scene.world.user.delete_named(name)
                await scene.pause(0.1, 0.3)
            names = [await _new(scene, milli=25, spec=spec, labels=kinds[0]) for spec in specs]
            await scene.until(partial(are_bound, scene, names), 2.0)
        await _spread_service(scene, f"app-{key}")
    return True


async def _spread_service(scene: Scene, app: str) -> None:
    """Pods of a service, a replica set and so on come, before it and after it, and after it has gone."""
    labels = {"app": app}
    for change in (None, scene.world.services.expose_app, scene.world.services.hide_app):
        if change is not None:
            await change(app)
            await scene.pause(0.2, 0.4)
        names = [await _new(scene, milli=26, labels=labels) for _ in range(2)]
        await scene.until(partial(are_bound, scene, names), 2.0)


async def _fill_preferred(scene: Scene) -> bool:
    """Pods of one kind would rather be on one node than on a second, and least of all on a third. Each of them fills one."""
    rooms = Rooms(scene)
    nodes = [await rooms.room("preferred") for _ in range(3)]
    terms = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}}
        for weight, node in zip(reversed(WEIGHTS), nodes[:2], strict=False)
    ]
    spec = {"affinity": {"nodeAffinity": {_PREFERRED: terms}}}
    names: list[str] = []
    with checking_every_class(scene):
        for _ in nodes:
            names.append(await rooms.pod("preferred", spec, milli=FILLING_MILLI))
            await scene.until(partial(are_bound, scene, names), 2.0)
    for name in names:
        await scene.world.user.delete_named(name)
    return True


async def _pull(scene: Scene) -> bool:
    """One node after the other pulls a large image. What it is worth to a pod depends on how many nodes have it."""
    rooms, image = Rooms(scene), f"{scene.mark()}:v1"
    nodes = [await rooms.room("pull") for _ in range(3)]
    main = {"name": "main", "image": image, "resources": {"requests": {"cpu": "10m"}}}
    pulled = {"status": {"images": [{"names": [image], "sizeBytes": LARGE_IMAGE_BYTES}]}}
    with checking_every_class(scene):
        for node in nodes:
            name = await rooms.pod("pull", {"containers": [main]})
            await scene.until(partial(are_bound, scene, [name]), 2.0)
            await scene.world.nodes.patch(node, pulled)
            await scene.pause(0.2, 0.4)
        name = await rooms.pod("pull", {"containers": [main]})
        await scene.until(partial(are_bound, scene, [name]), 2.0)
    return True


async def _new(
    scene: Scene, *, milli: int = 10, spec: Mapping[str, Any] | None = None, labels: Mapping[str, str] | None = None
) -> str:
    """A pod for any node."""
    return await place(scene, "", milli, spec=spec, labels=labels)


def _term(labels: Mapping[str, str], key: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}}


def _bears_not(labels: Mapping[str, str]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {_REQUIRED: [_term(labels, ZONE)]}}}


SCENARIOS: Final[Scenarios] = (
    ("node changed in place", _change_in_place),
    ("first of its kind", _find_company),
    ("zones filled", _fill_zones),
    ("company weighed", _prefer),
)
LATER: Final[Scenarios] = (
    ("preferred node filled, image pulled", several((("filled", _fill_preferred), ("pulled", _pull)), 2)),
)
