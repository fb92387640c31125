"""Disruptions of objects other than pods and nodes: attachments, drivers, classes, services, and kinds that may not be listed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.kit.disruptions.run_context import Disruption, RunContext, RunKind
from tests.kit.world.labels import GUEST, ODD_VOLUMES

LOUD, HOST = "sim/loud", "sim/host"
"""Label of namespaces whose pods other pods exclude by anti-affinity; label of the pod that is placed first."""
FORBIDDEN = ("storageclasses", "poddisruptionbudgets", "namespaces", "services", "csinodes", "persistentvolumeclaims")


async def _attach(context: RunContext) -> bool:
    """Attaches volumes of other clients to nodes, and detaches some."""
    numbers = [context.rng.randrange(40) for _ in range(6)]
    for at, number in enumerate(numbers):
        await context.world.disks.attach(number, at)
    await context.pause(1.0, 6.0)
    for at, number in enumerate(numbers[::2]):
        await context.world.disks.detach(number, 2 * at)
    return True


async def _restart_drivers(context: RunContext) -> bool:
    """Changes drivers: they attach more or fewer volumes, take over in-tree plugins, or are missing for a moment."""
    for number in context.rng.sample(range(1, 40), 6):
        await context.world.disks.set_attachable(
            number, context.rng.choice((1, 4, 9)), is_migrated=context.rng.random() < 0.7
        )
    await context.world.disks.replace_csi_node(context.rng.choice((6, 11, 16)))
    return True


async def _change_storage(context: RunContext) -> bool:
    """Changes storage capacity, the zones of a class, and the zone label of a volume."""
    disks = context.world.disks
    for zone in ("z0", "z1"):
        await disks.set_capacity(zone, context.rng.choice(("0", "1Gi", "20Gi")))
    await context.pause(1.0, 4.0)
    await disks.set_capacity("z1", "20Gi")
    await disks.move_volume(context.rng.randrange(4), context.rng.choice(("z0", "z1__z2")))
    await disks.widen_class()
    await disks.publish_no_capacity()
    return True


async def _forbid(context: RunContext) -> bool:
    """Forbids to list a kind for a while: only pods that depend on it wait."""
    faults, kind = context.faults, context.rng.choice(FORBIDDEN)
    faults.forbidden.add(kind)
    context.server.expire_watches()
    await context.pause(3.0, 9.0)
    faults.forbidden.discard(kind)
    context.bind_checker.policies.kind_readable()
    return True


async def _expose(context: RunContext) -> bool:
    """Creates services and controllers that select existing pods, and deletes one: default spreading depends on them."""
    await context.world.services.expose(context.rng.sample(range(5), 3))
    await context.pause(2.0, 8.0)
    await context.world.services.hide(context.rng.randrange(5))
    return True


async def _lose_claims(context: RunContext) -> bool:
    """Deletes claims and volumes of pods whose binds are in flight."""
    for _ in range(8):
        await context.pause(0.2, 1.0)
        pod = context.any_pod(lambda pod: ODD_VOLUMES in pod.labels and not pod.node)
        claims = [volume.claim for volume in pod.spec.volumes if volume.claim] if pod is not None else []
        if pod is not None and claims and claims[0].startswith("odd-"):
            await context.world.disks.delete_claim(claims[0])
        if pod is not None and context.rng.random() < 0.3:
            await context.world.user.delete_pod(pod)
    await context.world.disks.delete_volume(f"zoned-{context.rng.randrange(4)}")
    return True


async def _break(context: RunContext) -> bool:
    """Creates objects that are too large to be decoded, and deletes them again."""
    await context.world.disks.create_oversized()
    await context.pause(2.0, 5.0)
    context.server.expire_watches()
    await context.pause(1.0, 3.0)
    await context.world.disks.delete_oversized()
    return True


async def _relabel_namespace(context: RunContext) -> bool:
    """Adds a label to a namespace that terms select, and removes it, while equal guest pods are created three times.

    Either their host excludes pods of such namespaces, or they exclude a host in such a namespace.
    """
    world, node = context.world, f"node-{context.rng.choice((10, 12, 13))}"
    named, plain = context.rng.choice(("team-a", "team-b")), "default"
    host_has_term = context.rng.random() < 0.5
    host_in, guests_in = (plain, named) if host_has_term else (named, plain)
    host_spec = _anti_affinity(GUEST) if host_has_term else {}
    guest_spec = {} if host_has_term else _anti_affinity(HOST)
    host = await _place(context, node, host_spec, host_in, HOST)
    for label in (None, "yes", None):
        await world.label_namespace(named, {LOUD: label})
        await context.until(partial(_is_observed, context, named, label))
        was_heard = _is_observed(context, named, label)
        guests = [await _place(context, node, guest_spec, guests_in, GUEST) for _ in range(2)]
        await context.pause(2.0, 4.0)
        placed = {pod.name for pod in world.pods() if pod.node == node}
        beside = sorted(placed.intersection(guests)) if host in placed else []
        if beside and label and was_heard:
            context.bind_checker.report_violation(
                f"I1: {beside[0]} was bound beside {host} against a rule about namespace {named}"
            )
        for guest in guests:
            await world.user.delete_named(guest, guests_in)
    await world.user.delete_named(host, host_in)
    return True


def _is_observed(context: RunContext, name: str, label: str | None) -> bool:
    """Reports whether every process has observed the namespace's label, or its removal."""
    known = [process.program.cache.objects.namespace(name) for process in context.replicas.running]
    return all(one is not None and one.labels.get(LOUD) == label for one in known)


def _anti_affinity(label: str) -> dict[str, Any]:
    """Returns an anti-affinity to pods with this label in all namespaces with the label LOUD."""
    loud = {"namespaceSelector": {"matchLabels": {LOUD: "yes"}}, "labelSelector": {"matchLabels": {label: "yes"}}}
    term = {**loud, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def _place(context: RunContext, node: str, spec: Mapping[str, Any], namespace: str, label: str) -> str:
    return await context.world.add_small_pod(
        node, spec, is_urgent=False, scheduler="forecast-scheduler", namespace=namespace, labels={label: "yes"}
    )


async def _edit_kept(context: RunContext) -> bool:
    """Edits or deletes the document that a program keeps of moves in progress."""
    found = False
    for _ in range(8):
        name = f"multisched-repair-{context.rng.choice(('forecast', 'job'))}"
        found |= await context.world.edit_kept(name, is_deleted=context.rng.random() < 0.3)
        await context.pause(0.3, 2.0)
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
    Disruption("kept document edited", _edit_kept, 3, RunKind.REMOTE),
)
