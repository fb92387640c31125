"""Scenarios of parked pods: each is refused by one plugin, then the event occurs for which this plugin is registered, and no other.

In the order of a scenario, no event helps a pod that still waits for its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER
from multisched.model.object_kinds import ObjectKind
from multisched.shell.program import Program
from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.dedicated_nodes import (
    DEDICATED_TAINT,
    GROUP_LABEL,
    TOLERATED,
    Case,
    DedicatedNodes,
    ParkedPod,
    requeue_all,
    requeue_each,
)
from tests.kit.scenarios.steps import Scenarios, pods_named
from tests.kit.world.labels import GUEST, HOSTNAME, ZONE
from tests.kit.world.storage import CLASSES_PATH, LOCAL

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
WHOLE_MILLI, HALF_MILLI, GIANT_MILLI = 4_000, 2_500, 20_000
"""CPU of a whole dedicated node, of more than half of one, and of more than any node but one has."""
SHUT: Final = {"key": "sim/shut", "effect": "NoSchedule"}
CORDON: Final = "node.kubernetes.io/unschedulable"
RACK: Final = "sim/berth"
"""The topology key of dedicated nodes."""
PORT: Final = 9_960
DISK_SIZE: Final = "3Gi"
"""Larger than the disks of other nodes."""


# -- nodes change ------------------------------------------------------------------------------------------------------


async def _label(dedicated: DedicatedNodes) -> ParkedPod:
    node = await dedicated.add_node("label")
    pod = await dedicated.add_pod("", {"nodeSelector": {"sim/wanted": dedicated.mark}})
    return ParkedPod(
        pod, "a node's label", partial(dedicated.patch, node, metadata={"labels": {"sim/wanted": dedicated.mark}})
    )


async def _untaint(dedicated: DedicatedNodes) -> ParkedPod:
    node = await dedicated.add_node("untaint", taints=[DEDICATED_TAINT, SHUT])
    event = partial(dedicated.patch, node, spec={"taints": [DEDICATED_TAINT]})
    return ParkedPod(await dedicated.add_pod("untaint"), "a taint that went", event)


async def _retaint(dedicated: DedicatedNodes) -> ParkedPod:
    """Changes the value of a taint to one that is tolerated."""
    node = await dedicated.add_node("retaint", taints=[DEDICATED_TAINT, SHUT | {"value": "today"}])
    pod = await dedicated.add_pod("retaint", {"tolerations": [TOLERATED, {"key": SHUT["key"], "value": "tomorrow"}]})
    taints = [DEDICATED_TAINT, SHUT | {"value": "tomorrow"}]
    return ParkedPod(pod, "a taint's value", partial(dedicated.patch, node, spec={"taints": taints}))


async def _uncordon(dedicated: DedicatedNodes) -> ParkedPod:
    node = await dedicated.add_node("uncordon", unschedulable=True)
    pod = await dedicated.add_pod("uncordon")
    return ParkedPod(pod, "an end of a cordon", partial(dedicated.patch, node, spec={"unschedulable": None}))


async def _grow(dedicated: DedicatedNodes) -> ParkedPod:
    node = await dedicated.add_node("grow", cpu="1")
    pod = await dedicated.add_pod("grow", milli=HALF_MILLI)
    return ParkedPod(pod, "more allocatable CPU", partial(dedicated.patch, node, status={"allocatable": {"cpu": "4"}}))


async def _more_pods(dedicated: DedicatedNodes) -> ParkedPod:
    node = await dedicated.add_node("more")
    await dedicated.patch(node, status={"allocatable": {"pods": "1"}})
    await dedicated.add_placed_pod(node)
    pod = await dedicated.add_pod("more")
    return ParkedPod(pod, "room for more pods", partial(dedicated.patch, node, status={"allocatable": {"pods": "9"}}))


async def _upgrade(dedicated: DedicatedNodes) -> ParkedPod:
    node = await dedicated.add_node("upgrade")
    pod = await dedicated.add_pod("upgrade", {"hostNetwork": True, "hostUsers": False})
    features = {"declaredFeatures": ["UserNamespacesHostNetworkSupport"]}
    return ParkedPod(pod, "a declared feature", partial(dedicated.patch, node, status=features))


async def _node_joins_affinity_domain(dedicated: DedicatedNodes) -> ParkedPod:
    """Moves the node into the topology domain of the pod to which the parked pod has affinity."""
    target_node, key = await dedicated.add_node("elsewhere", {RACK: "joined"}), {RACK: "joined"}
    await dedicated.add_placed_pod(target_node, labels={"company": dedicated.mark})
    node = await dedicated.add_node("join")
    pod = await dedicated.add_pod("join", _pod_affinity({"company": dedicated.mark}, RACK))
    return ParkedPod(pod, "a node that came to its company", partial(dedicated.patch, node, metadata={"labels": key}))


async def _node_leaves_anti_affinity_domain(dedicated: DedicatedNodes) -> ParkedPod:
    """Moves the node out of the topology domain of a pod that excludes the parked pod."""
    excluded = await dedicated.add_node("elsewhere", {RACK: "hostile"})
    await dedicated.add_placed_pod(excluded, labels={"enemy": dedicated.mark})
    node = await dedicated.add_node("leave", {RACK: "hostile"})
    pod = await dedicated.add_pod("leave", _pod_anti_affinity({"enemy": dedicated.mark}, RACK))
    change = {"labels": {RACK: "calm"}}
    return ParkedPod(pod, "a node that left its enemy", partial(dedicated.patch, node, metadata=change))


# -- nodes of a spread -------------------------------------------------------------------------------------------------


async def _unequal_domains(
    dedicated: DedicatedNodes, name: str, emptier: int = 0, **more: Any
) -> tuple[str, list[str], ParkedPod]:
    """Creates two topology domains: a cordoned one with `emptier` pods, and one with one pod more. Returns the node of the emptier
    domain, the uids in the fuller one, and a pod that waits until both are equal.
    """
    low = await dedicated.add_node(name, {f"sim/{name}": "low"}, unschedulable=True)
    high = await dedicated.add_node(name, {f"sim/{name}": "high"})
    labels = {"spread": name}
    for _ in range(emptier):
        await dedicated.add_placed_pod(low, labels=labels)
    uids = [await dedicated.add_placed_pod(high, labels=labels) for _ in range(emptier + 1)]
    rule = {
        "maxSkew": 1,
        "topologyKey": f"sim/{name}",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
        **more,
    }
    pod = await dedicated.add_pod(name, {"topologySpreadConstraints": [rule]}, labels=labels)
    return low, uids, ParkedPod(pod, "", _nothing)


async def _nothing() -> None: ...


async def _domain_deleted(dedicated: DedicatedNodes) -> ParkedPod:
    node, _, waiting_pod = await _unequal_domains(dedicated, "gone")
    gone = partial(dedicated.context.world.user.send, "DELETE", f"/api/v1/nodes/{node}")
    return waiting_pod._replace(awaits="the end of the emptiest domain", event=gone)


async def _domain_tainted(dedicated: DedicatedNodes) -> ParkedPod:
    node, _, waiting_pod = await _unequal_domains(dedicated, "shut", nodeTaintsPolicy="Honor")
    shut = partial(dedicated.patch, node, spec={"taints": [DEDICATED_TAINT, SHUT]})
    return waiting_pod._replace(awaits="a taint on the emptiest domain", event=shut)


async def _node_leaves_domain(dedicated: DedicatedNodes) -> ParkedPod:
    node, _, waiting_pod = await _unequal_domains(dedicated, "renamed")
    renamed = partial(dedicated.patch, node, metadata={"labels": {"sim/renamed": None}})
    return waiting_pod._replace(awaits="a node that left the emptiest domain", event=renamed)


async def _node_changes_domain(dedicated: DedicatedNodes) -> ParkedPod:
    node, _, waiting_pod = await _unequal_domains(dedicated, "changed")
    changed = partial(dedicated.patch, node, metadata={"labels": {"sim/changed": "high"}})
    return waiting_pod._replace(awaits="a node that came to the fullest domain", event=changed)


async def _pod_deleted_in_fuller_domain(dedicated: DedicatedNodes) -> ParkedPod:
    _, (one, *_), waiting_pod = await _unequal_domains(dedicated, "fewer", 1)
    return waiting_pod._replace(awaits="the end of one in the fullest domain", event=partial(dedicated.delete_pod, one))


async def _pod_added_in_emptier_domain(dedicated: DedicatedNodes) -> ParkedPod:
    node, _, waiting_pod = await _unequal_domains(dedicated, "more-there")
    add_node = partial(dedicated.add_placed_pod, node, labels={"spread": "more-there"})
    return waiting_pod._replace(awaits="one more in the emptiest domain", event=add_node)


async def _counted_pod_relabelled(dedicated: DedicatedNodes) -> ParkedPod:
    _, (one, *_), waiting_pod = await _unequal_domains(dedicated, "recounted")
    return waiting_pod._replace(
        awaits="labels of one that counted", event=partial(dedicated.relabel, one, {"spread": "no"})
    )


async def _own_spread_label_changed(dedicated: DedicatedNodes) -> ParkedPod:
    _, _, waiting_pod = await _unequal_domains(dedicated, "itself")
    change = partial(dedicated.patch_pod, waiting_pod.pod, metadata={"labels": {"spread": "no"}})
    return waiting_pod._replace(awaits="its own labels", event=change)


# -- pods are deleted --------------------------------------------------------------------------------------------------


async def _requests_freed(dedicated: DedicatedNodes) -> ParkedPod:
    uid = await dedicated.add_placed_pod(await dedicated.add_node("room"), milli=HALF_MILLI)
    pod = await dedicated.add_pod("room", milli=HALF_MILLI)
    return ParkedPod(pod, "the end of a pod whose room it needs", partial(dedicated.delete_pod, uid))


async def _port_freed(dedicated: DedicatedNodes, name: str, held: str, wanted: str) -> ParkedPod:
    uid = await dedicated.add_placed_pod(await dedicated.add_node(name), spec=_port(held, "x"))
    return ParkedPod(
        await dedicated.add_pod(name, _port(wanted, "y")),
        "the end of a pod with its port",
        partial(dedicated.delete_pod, uid),
    )


async def _disk_freed(dedicated: DedicatedNodes) -> ParkedPod:
    disk = {"volumes": [{"name": "v0", "gcePersistentDisk": {"pdName": f"pd-{dedicated.mark}"}}]}
    uid = await dedicated.add_placed_pod(await dedicated.add_node("disk"), spec=disk)
    return ParkedPod(
        await dedicated.add_pod("disk", disk), "the end of a pod with its disk", partial(dedicated.delete_pod, uid)
    )


async def _anti_affinity_target_deleted(dedicated: DedicatedNodes) -> ParkedPod:
    uid = await dedicated.add_placed_pod(await dedicated.add_node("enemy"), labels={"enemy": "gone"})
    pod = await dedicated.add_pod("enemy", _pod_anti_affinity({"enemy": "gone"}))
    return ParkedPod(pod, "the end of its enemy", partial(dedicated.delete_pod, uid))


async def _excluding_pod_deleted(dedicated: DedicatedNodes) -> ParkedPod:
    uid = await dedicated.add_placed_pod(
        await dedicated.add_node("averse"), spec=_pod_anti_affinity({"disliked": "gone"})
    )
    pod = await dedicated.add_pod("averse", labels={"disliked": "gone"})
    return ParkedPod(pod, "the end of a pod that did not bear it", partial(dedicated.delete_pod, uid))


# -- pods are created and changed --------------------------------------------------------------------------------------


async def _affinity_target_added(dedicated: DedicatedNodes) -> ParkedPod:
    node = await dedicated.add_node("company")
    pod = await dedicated.add_pod("company", _pod_affinity({"company": dedicated.mark}))
    return ParkedPod(pod, "its company", partial(dedicated.add_placed_pod, node, labels={"company": dedicated.mark}))


async def _distant_affinity_target_added(dedicated: DedicatedNodes) -> ParkedPod:
    """Places the pod on a node of another resource domain, in the same zone."""
    zone = {ZONE: f"z-{dedicated.mark}"}
    await dedicated.add_node("distant", zone)
    node = await dedicated.add_node("beyond", {"type": "virtual-kubelet", **zone})
    pod = await dedicated.add_pod("distant", _pod_affinity({"distant": dedicated.mark}, ZONE))
    return ParkedPod(
        pod, "its company elsewhere", partial(dedicated.add_placed_pod, node, labels={"distant": dedicated.mark})
    )


async def _affinity_target_labelled(dedicated: DedicatedNodes) -> ParkedPod:
    uid = await dedicated.add_placed_pod(await dedicated.add_node("befriended"), labels={"company": "no"})
    pod = await dedicated.add_pod("befriended", _pod_affinity({"company": f"{dedicated.mark}-late"}))
    return ParkedPod(
        pod, "its company's labels", partial(dedicated.relabel, uid, {"company": f"{dedicated.mark}-late"})
    )


async def _anti_affinity_target_relabelled(dedicated: DedicatedNodes) -> ParkedPod:
    uid = await dedicated.add_placed_pod(await dedicated.add_node("reconciled"), labels={"enemy": "yes"})
    pod = await dedicated.add_pod("reconciled", _pod_anti_affinity({"enemy": "yes"}))
    return ParkedPod(pod, "its enemy's labels", partial(dedicated.relabel, uid, {"enemy": "no"}))


async def _namespace_relabelled(dedicated: DedicatedNodes) -> ParkedPod:
    """Removes the label of a namespace, so that the pod's term no longer selects the excluding pod."""
    label, name = dedicated.context.world.label_namespace, "team-b"
    await label(name, {"sim/hostile": dedicated.mark})
    node = await dedicated.add_node("namespace")
    await dedicated.add_placed_pod(node, labels={"enemy": "far"}, namespace=name)
    selector: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"sim/hostile": dedicated.mark}}}
    pod = await dedicated.add_pod("namespace", _pod_anti_affinity({"enemy": "far"}, **selector), labels={GUEST: "yes"})

    def is_observed(program: Program) -> bool:
        known = program.cache.objects.namespace(name)
        return known is not None and "sim/hostile" not in known.labels

    return ParkedPod(pod, "labels of its enemy's namespace", partial(label, name, {"sim/hostile": None}), is_observed)


# -- the last pod of its kind ------------------------------------------------------------------------------------------


async def _last_pod_of_kind(
    dedicated: DedicatedNodes, name: str, event: Callable[[str, str], Awaitable[object]]
) -> ParkedPod:
    """Creates a pod with affinity to its own labels; the only other such pod is in a full topology domain. Without that pod it is
    the first of its kind.

    `event`: called with the node and the uid of that pod.
    """
    labels = {"series": f"{dedicated.mark}-{name}"}
    full = await dedicated.add_node(f"{name}-full", {RACK: f"full-{name}"})
    uid = await dedicated.add_placed_pod(full, labels=labels)
    await dedicated.add_node(name, {RACK: name})
    pod = await dedicated.add_pod(name, _pod_affinity(labels, RACK), labels=labels)
    return ParkedPod(pod, f"the last pod of its series ({name})", partial(event, full, uid))


async def _last_pod_deleted(dedicated: DedicatedNodes) -> ParkedPod:
    return await _last_pod_of_kind(dedicated, "series", lambda node, uid: dedicated.delete_pod(uid))


async def _last_pod_relabelled(dedicated: DedicatedNodes) -> ParkedPod:
    return await _last_pod_of_kind(
        dedicated, "renamed", lambda node, uid: dedicated.relabel(uid, {"series": "another"})
    )


async def _last_pod_node_relabelled(dedicated: DedicatedNodes) -> ParkedPod:
    """Removes the topology key from the node of the other pod."""
    return await _last_pod_of_kind(
        dedicated, "placeless", lambda node, uid: dedicated.patch(node, metadata={"labels": {RACK: None}})
    )


async def _distant_last_pod_node_relabelled(dedicated: DedicatedNodes) -> ParkedPod:
    """Does the same on a node of another resource domain."""
    labels = {"series": f"{dedicated.mark}-distant"}
    full = await dedicated.add_node("distant-full", {RACK: "distant-full", "type": "virtual-kubelet"})
    await dedicated.add_placed_pod(full, labels=labels)
    await dedicated.add_node("distant-series", {RACK: "distant"})
    pod = await dedicated.add_pod("distant-series", _pod_affinity(labels, RACK), labels=labels)
    event = partial(dedicated.patch, full, metadata={"labels": {RACK: None}})
    return ParkedPod(pod, "the last pod of its series elsewhere", event)


async def _last_pod_node_deleted(dedicated: DedicatedNodes) -> ParkedPod:
    """Deletes the node of the other pod."""

    async def delete(node: str, uid: str) -> None:
        await dedicated.context.world.user.send("DELETE", f"/api/v1/nodes/{node}")

    return await _last_pod_of_kind(dedicated, "stranded", delete)


# -- the pod itself changes --------------------------------------------------------------------------------------------


async def _tolerates(dedicated: DedicatedNodes) -> ParkedPod:
    await dedicated.add_node("tolerates", taints=[DEDICATED_TAINT, SHUT])
    pod = await dedicated.add_pod("tolerates")
    return ParkedPod(pod, "its own toleration", partial(_add_toleration, dedicated, pod, SHUT["key"]))


async def _tolerates_cordon(dedicated: DedicatedNodes) -> ParkedPod:
    await dedicated.add_node("cordon", unschedulable=True)
    pod = await dedicated.add_pod("cordon")
    return ParkedPod(pod, "its own toleration of cordons", partial(_add_toleration, dedicated, pod, CORDON))


async def _shrinks(dedicated: DedicatedNodes) -> ParkedPod:
    await dedicated.add_placed_pod(await dedicated.add_node("shrinks"), milli=HALF_MILLI)
    pod = await dedicated.add_pod("shrinks", milli=HALF_MILLI)
    return ParkedPod(pod, "its own size", partial(_resize, dedicated, pod))


async def _own_label_changed(dedicated: DedicatedNodes) -> ParkedPod:
    await dedicated.add_placed_pod(await dedicated.add_node("liked"), spec=_pod_anti_affinity({"disliked": "yes"}))
    pod = await dedicated.add_pod("liked", labels={"disliked": "yes"})
    return ParkedPod(pod, "its own labels", partial(dedicated.patch_pod, pod, metadata={"labels": {"disliked": "no"}}))


async def _gates_removed(dedicated: DedicatedNodes) -> ParkedPod:
    """Removes both scheduling gates, one after the other."""
    await dedicated.add_node("gates")
    pod = await dedicated.add_pod("gates", {"schedulingGates": [{"name": "test/one"}, {"name": "test/two"}]})
    return ParkedPod(pod, "the end of its gates", partial(_open_gates, dedicated, pod))


async def _open_gates(dedicated: DedicatedNodes, pod: str) -> None:
    await dedicated.patch_pod(pod, spec={"schedulingGates": [{"name": "test/two"}]})
    await dedicated.context.pause(0.1, 0.3)
    await dedicated.patch_pod(pod, spec={"schedulingGates": None})


async def _add_toleration(dedicated: DedicatedNodes, pod: str, key: str) -> None:
    await dedicated.patch_pod(pod, spec={"tolerations": [TOLERATED, {"key": key, "operator": "Exists"}]})


async def _resize(dedicated: DedicatedNodes, name: str) -> None:
    for pod in pods_named(dedicated.context, [name]):
        await dedicated.context.world.kubelets.resize(pod, "100m")


# -- a node is added --------------------------------------------------------------------------------------------------


async def _add_node_for_all(context: RunContext) -> bool:
    """Creates pods that different plugins refuse on every node, then a node that takes all of them."""
    dedicated, disks = DedicatedNodes(context), context.world.disks
    excluded, nodes = {"enemy": dedicated.mark}, context.bind_checker.nodes()
    zones = {node.labels[ZONE]: name for name, node in nodes.items() if ZONE in node.labels}
    for name in zones.values():
        await dedicated.add_placed_pod(name, labels=excluded)
    await disks.add_disk(f"disk-{dedicated.mark}", "room-1", DISK_SIZE, is_narrow=False)
    await disks.add_claim(f"claim-{dedicated.mark}", LOCAL, size=DISK_SIZE)
    wanted: tuple[tuple[str, int, Mapping[str, Any]], ...] = (
        ("NodeAffinity", 0, {"nodeSelector": {GROUP_LABEL: "come"}}),
        ("NodeResourcesFit", GIANT_MILLI, {}),
        ("InterPodAffinity", 0, _pod_anti_affinity(excluded, ZONE)),
        ("PodTopologySpread", 0, {"topologySpreadConstraints": [_SPREAD_OVER_RACKS]}),
        ("VolumeBinding", 0, _claimed(f"claim-{dedicated.mark}")),
    )
    waiting_pods = [
        ParkedPod(await dedicated.add_pod("", spec, milli=milli), f"a node that came ({plugin})", _nothing)
        for plugin, milli, spec in wanted
    ]
    add_node = partial(dedicated.add_node, "come", {RACK: "come", ZONE: "z-new"}, cpu="32")
    return await requeue_all(context, waiting_pods, add_node)


_SPREAD_OVER_RACKS: Final = {
    "maxSkew": 1,
    "topologyKey": RACK,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"spread": "berths"}},
}


# -- volumes -----------------------------------------------------------------------------------------------------------


async def _claim_created(dedicated: DedicatedNodes) -> ParkedPod:
    node, name, disks = await dedicated.add_node("claim"), f"late-{dedicated.mark}", dedicated.context.world.disks
    await disks.add_disk(name, node, DISK_SIZE, is_narrow=False)
    pod = await dedicated.add_pod("claim", _claimed(name))
    return ParkedPod(
        pod, "its claim", partial(disks.add_claim, name, LOCAL, size=DISK_SIZE), _has_observed("default", name)
    )


async def _volume_created(dedicated: DedicatedNodes) -> ParkedPod:
    node, name, disks = await dedicated.add_node("volume"), f"disk-{dedicated.mark}", dedicated.context.world.disks
    await disks.add_claim(name, LOCAL, size=DISK_SIZE)
    pod = await dedicated.add_pod("volume", _claimed(name))
    return ParkedPod(
        pod, "a volume", partial(disks.add_disk, name, node, DISK_SIZE, is_narrow=False), _has_observed("", name)
    )


async def _class_created(dedicated: DedicatedNodes) -> ParkedPod:
    name, world = f"class-{dedicated.mark}", dedicated.context.world
    await dedicated.add_node("class")
    await world.disks.add_claim(name, name)
    pod = await dedicated.add_pod("class", _claimed(name))
    made = {"metadata": {"name": name}, "provisioner": FAKE_PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"}
    return ParkedPod(
        pod, "its claim's class", partial(world.user.send, "POST", CLASSES_PATH, made), _has_observed("", name)
    )


def _has_observed(namespace: str, name: str) -> Callable[[Program], bool]:
    """Returns a function that reports whether a program has observed the claim, or the volume or class."""
    kinds = (
        (ObjectKind.PERSISTENT_VOLUME_CLAIM,) if namespace else (ObjectKind.PERSISTENT_VOLUME, ObjectKind.STORAGE_CLASS)
    )
    return lambda program: any(program.cache.objects.get(kind, namespace, name) is not None for kind in kinds)


# -- specs -------------------------------------------------------------------------------------------------------------


def _term(labels: Mapping[str, str], key: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {REQUIRED: [{"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}, **more}]}


def _pod_affinity(labels: Mapping[str, str], key: str = HOSTNAME, **more: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": _term(labels, key, more)}}


def _pod_anti_affinity(labels: Mapping[str, str], key: str = HOSTNAME, **more: Any) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": _term(labels, key, more)}}


def _claimed(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v0", "persistentVolumeClaim": {"claimName": name}}]}


def _port(address: str, image: str) -> dict[str, Any]:
    port = {"containerPort": 80, "hostPort": PORT, **({"hostIP": address} if address else {})}
    resources = {"requests": {"cpu": "10m"}}
    return {"containers": [{"name": "main", "image": image, "resources": resources, "ports": [port]}]}


_NODE_EVENTS: Final[tuple[Case, ...]] = (
    _label,
    _untaint,
    _retaint,
    _uncordon,
    _grow,
    _more_pods,
    _upgrade,
    _node_joins_affinity_domain,
    _node_leaves_anti_affinity_domain,
)
_SPREAD_EVENTS: Final[tuple[Case, ...]] = (
    _domain_tainted,
    _node_leaves_domain,
    _node_changes_domain,
    _domain_deleted,
    _pod_added_in_emptier_domain,
    _counted_pod_relabelled,
    _own_spread_label_changed,
    _pod_deleted_in_fuller_domain,
)
_DELETIONS: Final[tuple[Case, ...]] = (
    _tolerates_cordon,  # while no other node of the scenario is tainted
    _requests_freed,  # before the others: the end of any pod requeues it
    partial(_port_freed, name="port", held="", wanted="10.0.0.1"),
    partial(_port_freed, name="address", held="10.0.0.2", wanted=""),
    _disk_freed,
    _anti_affinity_target_deleted,
    _excluding_pod_deleted,
)
_ADDITIONS: Final[tuple[Case, ...]] = (
    _affinity_target_added,
    _distant_affinity_target_added,
    _affinity_target_labelled,
    _anti_affinity_target_relabelled,
    _namespace_relabelled,
    _claim_created,
    _volume_created,
    _class_created,
)
_FIRST_OF_KIND: Final[tuple[Case, ...]] = (
    _last_pod_deleted,
    _last_pod_relabelled,
    _last_pod_node_relabelled,
    _distant_last_pod_node_relabelled,
    _last_pod_node_deleted,
)
_OWN_UPDATES: Final[tuple[Case, ...]] = (_tolerates, _shrinks, _own_label_changed, _gates_removed)

SCENARIOS: Final[Scenarios] = (
    ("nodes change under sleepers", partial(requeue_each, cases=_NODE_EVENTS)),
    ("domains become level", partial(requeue_each, cases=_SPREAD_EVENTS)),
    ("pods go that sleepers wait for", partial(requeue_each, cases=_DELETIONS)),
    ("pods come that sleepers wait for", partial(requeue_each, cases=_ADDITIONS)),
    ("series end", partial(requeue_each, cases=_FIRST_OF_KIND)),
    ("sleepers change", partial(requeue_each, cases=_OWN_UPDATES)),
    ("node comes that sleepers wait for", _add_node_for_all),
)
