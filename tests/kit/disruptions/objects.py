"""Objects beside pods and nodes that come, change and go: volumes attached, drivers, classes, services, and kinds that are forbidden."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.kit.disruptions.scene import Disruption, Scene, Where
from tests.kit.world.labels import GUEST, ODD

LOUD, HOST = "sim/loud", "sim/host"
"""Labels of namespaces of which somebody does not bear any pods, and of who stands there first."""
FORBIDDEN = ("storageclasses", "poddisruptionbudgets", "namespaces", "services", "csinodes", "persistentvolumeclaims")


async def _attach(scene: Scene) -> bool:
    """Volumes of others come to nodes, and go."""
    numbers = [scene.rng.randrange(40) for _ in range(6)]
    for at, number in enumerate(numbers):
        await scene.world.disks.attach(number, at)
    await scene.pause(1.0, 6.0)
    for at, number in enumerate(numbers[::2]):
        await scene.world.disks.detach(number, 2 * at)
    return True


async def _restart_drivers(scene: Scene) -> bool:
    """Drivers are updated: they attach more or fewer, take plugins over, or are gone for a moment."""
    for number in scene.rng.sample(range(1, 40), 6):
        await scene.world.disks.set_attachable(
            number, scene.rng.choice((1, 4, 9)), is_migrated=scene.rng.random() < 0.7
        )
    await scene.world.disks.replace_csi_node(scene.rng.choice((6, 11, 16)))
    return True


async def _change_storage(scene: Scene) -> bool:
    """Capacity is used up elsewhere and comes free; a class reaches more zones; a volume's label is corrected."""
    disks = scene.world.disks
    for zone in ("z0", "z1"):
        await disks.set_capacity(zone, scene.rng.choice(("0", "1Gi", "20Gi")))
    await scene.pause(1.0, 4.0)
    await disks.set_capacity("z1", "20Gi")
    await disks.move_volume(scene.rng.randrange(4), scene.rng.choice(("z0", "z1__z2")))
    await disks.widen_class()
    await disks.publish_no_capacity()
    return True


async def _forbid(scene: Scene) -> bool:
    """A role loses a kind, and gets it back: only pods that depend on it wait."""
    faults, kind = scene.faults, scene.rng.choice(FORBIDDEN)
    faults.forbidden.add(kind)
    scene.server.expire_watches()
    await scene.pause(3.0, 9.0)
    faults.forbidden.discard(kind)
    scene.bind_checker.policies.kind_readable()
    return True


async def _expose(scene: Scene) -> bool:
    """Services and controllers come over pods that are there, and go: spreading by default goes by them."""
    await scene.world.services.expose(scene.rng.sample(range(5), 3))
    await scene.pause(2.0, 8.0)
    await scene.world.services.hide(scene.rng.randrange(5))
    return True


async def _lose_claims(scene: Scene) -> bool:
    """Somebody deletes claims, and volumes, of pods that are on their way to their nodes."""
    for _ in range(8):
        await scene.pause(0.2, 1.0)
        pod = scene.any_pod(lambda pod: ODD in pod.labels and not pod.node)
        claims = [volume.claim for volume in pod.spec.volumes if volume.claim] if pod is not None else []
        if pod is not None and claims and claims[0].startswith("odd-"):
            await scene.world.disks.delete_claim(claims[0])
        if pod is not None and scene.rng.random() < 0.3:
            await scene.world.user.delete_pod(pod)
    await scene.world.disks.delete_volume(f"zoned-{scene.rng.randrange(4)}")
    return True


async def _break(scene: Scene) -> bool:
    """Objects that nobody reads."""
    await scene.world.disks.break_objects()
    await scene.pause(2.0, 5.0)
    scene.server.expire_watches()
    await scene.pause(1.0, 3.0)
    await scene.world.disks.mend_objects()
    return True


async def _relabel_namespace(scene: Scene) -> bool:
    """A namespace gets the label that terms select by, and loses it: guests of equal spec come three times.

    Either their host does not bear who is of such a namespace, or they do not bear a host that is.
    """
    world, node = scene.world, f"node-{scene.rng.choice((10, 12, 13))}"
    named, plain = scene.rng.choice(("team-a", "team-b")), "default"
    host_has_term = scene.rng.random() < 0.5
    host_in, guests_in = (plain, named) if host_has_term else (named, plain)
    host_spec = _bearing_none(GUEST) if host_has_term else {}
    guest_spec = {} if host_has_term else _bearing_none(HOST)
    host = await _place(scene, node, host_spec, host_in, HOST)
    for label in (None, "yes", None):
        await world.label_namespace(named, {LOUD: label})
        await scene.until(partial(_is_heard, scene, named, label))
        was_heard = _is_heard(scene, named, label)
        guests = [await _place(scene, node, guest_spec, guests_in, GUEST) for _ in range(2)]
        await scene.pause(2.0, 4.0)
        placed = {pod.name for pod in world.pods() if pod.node == node}
        beside = sorted(placed.intersection(guests)) if host in placed else []
        if beside and label and was_heard:
            scene.bind_checker.complain(
                f"I1: {beside[0]} was bound beside {host} against a rule about namespace {named}"
            )
        for guest in guests:
            await world.user.delete_named(guest, guests_in)
    await world.user.delete_named(host, host_in)
    return True


def _is_heard(scene: Scene, name: str, label: str | None) -> bool:
    """Every process knows of the namespace's label, or of its end."""
    known = [process.program.cache.objects.namespace(name) for process in scene.replicas.running]
    return all(one is not None and one.labels.get(LOUD) == label for one in known)


def _bearing_none(label: str) -> dict[str, Any]:
    """Anti-affinity to pods of this label in loud namespaces, whichever these are."""
    loud = {"namespaceSelector": {"matchLabels": {LOUD: "yes"}}, "labelSelector": {"matchLabels": {label: "yes"}}}
    term = {**loud, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def _place(scene: Scene, node: str, spec: Mapping[str, Any], namespace: str, label: str) -> str:
    return await scene.world.place_lowly(
        node, spec, is_urgent=False, scheduler="forecast-scheduler", namespace=namespace, labels={label: "yes"}
    )


async def _edit_kept(scene: Scene) -> bool:
    """Somebody meddles with what a program keeps of the moves that are under way."""
    found = False
    for _ in range(8):
        name = f"multisched-repair-{scene.rng.choice(('forecast', 'job'))}"
        found |= await scene.world.edit_kept(name, is_deleted=scene.rng.random() < 0.3)
        await scene.pause(0.3, 2.0)
    return found


TABLE = (
    Disruption("claims lost", _lose_claims, 5),
    Disruption("objects of absurd size", _break, 3),
    Disruption("volumes attached", _attach),
    Disruption("drivers restarted", _restart_drivers),
    Disruption("storage changed", _change_storage),
    Disruption("kind forbidden", _forbid, 5),
    Disruption("services changed", _expose, 3),
    Disruption("namespace relabelled", _relabel_namespace, 3),
    Disruption("kept document edited", _edit_kept, 3, Where.ASKING),
)
