"""Scenarios of pods asleep: each is refused by one plugin, then the event comes that this plugin listens to, and nothing else.

In the order of each scenario, no event helps a pod that still waits for its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER
from multisched.model.object_kinds import ObjectKind
from multisched.shell.program import Program
from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.rooms import BED, KEPT, TOLERATED, Case, Rooms, Sleeper, wake_all, wake_each
from tests.kit.scenarios.steps import Scenarios, named
from tests.kit.world.labels import GUEST, HOSTNAME, ZONE
from tests.kit.world.storage import CLASSES_PATH, LOCAL

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
WHOLE_MILLI, HALF_MILLI, GIANT_MILLI = 4_000, 2_500, 20_000
"""CPU of a whole room, of more than half of one, and of more than any node but one has."""
SHUT: Final = {"key": "sim/shut", "effect": "NoSchedule"}
CORDON: Final = "node.kubernetes.io/unschedulable"
BERTH: Final = "sim/berth"
"""The topology key of rooms."""
PORT: Final = 9_960
DISK_SIZE: Final = "3Gi"
"""Larger than the disks of other nodes."""


# -- nodes change ------------------------------------------------------------------------------------------------------


async def _label(rooms: Rooms) -> Sleeper:
    node = await rooms.room("label")
    pod = await rooms.pod("", {"nodeSelector": {"sim/wanted": rooms.mark}})
    return Sleeper(pod, "a node's label", partial(rooms.patch, node, metadata={"labels": {"sim/wanted": rooms.mark}}))


async def _untaint(rooms: Rooms) -> Sleeper:
    node = await rooms.room("untaint", taints=[KEPT, SHUT])
    return Sleeper(await rooms.pod("untaint"), "a taint that went", partial(rooms.patch, node, spec={"taints": [KEPT]}))


async def _retaint(rooms: Rooms) -> Sleeper:
    """The taint stays, with a value that is tolerated."""
    node = await rooms.room("retaint", taints=[KEPT, SHUT | {"value": "today"}])
    pod = await rooms.pod("retaint", {"tolerations": [TOLERATED, {"key": SHUT["key"], "value": "tomorrow"}]})
    taints = [KEPT, SHUT | {"value": "tomorrow"}]
    return Sleeper(pod, "a taint's value", partial(rooms.patch, node, spec={"taints": taints}))


async def _uncordon(rooms: Rooms) -> Sleeper:
    node = await rooms.room("uncordon", unschedulable=True)
    pod = await rooms.pod("uncordon")
    return Sleeper(pod, "an end of a cordon", partial(rooms.patch, node, spec={"unschedulable": None}))


async def _grow(rooms: Rooms) -> Sleeper:
    node = await rooms.room("grow", cpu="1")
    pod = await rooms.pod("grow", milli=HALF_MILLI)
    return Sleeper(pod, "more allocatable CPU", partial(rooms.patch, node, status={"allocatable": {"cpu": "4"}}))


async def _more_pods(rooms: Rooms) -> Sleeper:
    node = await rooms.room("more")
    await rooms.patch(node, status={"allocatable": {"pods": "1"}})
    await rooms.holder(node)
    pod = await rooms.pod("more")
    return Sleeper(pod, "room for more pods", partial(rooms.patch, node, status={"allocatable": {"pods": "9"}}))


async def _upgrade(rooms: Rooms) -> Sleeper:
    node = await rooms.room("upgrade")
    pod = await rooms.pod("upgrade", {"hostNetwork": True, "hostUsers": False})
    features = {"declaredFeatures": ["UserNamespacesHostNetworkSupport"]}
    return Sleeper(pod, "a declared feature", partial(rooms.patch, node, status=features))


async def _join_company(rooms: Rooms) -> Sleeper:
    """The node comes into the place where the pod's company is."""
    company, key = await rooms.room("elsewhere", {BERTH: "joined"}), {BERTH: "joined"}
    await rooms.holder(company, labels={"company": rooms.mark})
    node = await rooms.room("join")
    pod = await rooms.pod("join", _near({"company": rooms.mark}, BERTH))
    return Sleeper(pod, "a node that came to its company", partial(rooms.patch, node, metadata={"labels": key}))


async def _leave_enemy(rooms: Rooms) -> Sleeper:
    """The node goes out of the place where an enemy is."""
    enemy = await rooms.room("elsewhere", {BERTH: "hostile"})
    await rooms.holder(enemy, labels={"enemy": rooms.mark})
    node = await rooms.room("leave", {BERTH: "hostile"})
    pod = await rooms.pod("leave", _far({"enemy": rooms.mark}, BERTH))
    change = {"labels": {BERTH: "calm"}}
    return Sleeper(pod, "a node that left its enemy", partial(rooms.patch, node, metadata=change))


# -- nodes of a spread -------------------------------------------------------------------------------------------------


async def _level(rooms: Rooms, name: str, emptier: int = 0, **more: Any) -> tuple[str, list[str], Sleeper]:
    """Two domains: of one, which is cordoned, as many as `emptier`, and one more in the other. The emptier one's node, the uids
    in the fuller one, and a pod that waits until they are level."""
    low = await rooms.room(name, {f"sim/{name}": "low"}, unschedulable=True)
    high = await rooms.room(name, {f"sim/{name}": "high"})
    labels = {"spread": name}
    for _ in range(emptier):
        await rooms.holder(low, labels=labels)
    uids = [await rooms.holder(high, labels=labels) for _ in range(emptier + 1)]
    rule = {
        "maxSkew": 1,
        "topologyKey": f"sim/{name}",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
        **more,
    }
    pod = await rooms.pod(name, {"topologySpreadConstraints": [rule]}, labels=labels)
    return low, uids, Sleeper(pod, "", _nothing)


async def _nothing() -> None: ...


async def _last_node_gone(rooms: Rooms) -> Sleeper:
    node, _, sleeper = await _level(rooms, "gone")
    gone = partial(rooms.context.world.user.send, "DELETE", f"/api/v1/nodes/{node}")
    return sleeper._replace(awaits="the end of the emptiest domain", wake=gone)


async def _domain_shut(rooms: Rooms) -> Sleeper:
    node, _, sleeper = await _level(rooms, "shut", nodeTaintsPolicy="Honor")
    shut = partial(rooms.patch, node, spec={"taints": [KEPT, SHUT]})
    return sleeper._replace(awaits="a taint on the emptiest domain", wake=shut)


async def _domain_renamed(rooms: Rooms) -> Sleeper:
    node, _, sleeper = await _level(rooms, "renamed")
    renamed = partial(rooms.patch, node, metadata={"labels": {"sim/renamed": None}})
    return sleeper._replace(awaits="a node that left the emptiest domain", wake=renamed)


async def _domain_changed(rooms: Rooms) -> Sleeper:
    node, _, sleeper = await _level(rooms, "changed")
    changed = partial(rooms.patch, node, metadata={"labels": {"sim/changed": "high"}})
    return sleeper._replace(awaits="a node that came to the fullest domain", wake=changed)


async def _fewer(rooms: Rooms) -> Sleeper:
    _, (one, *_), sleeper = await _level(rooms, "fewer", 1)
    return sleeper._replace(awaits="the end of one in the fullest domain", wake=partial(rooms.send_off, one))


async def _more(rooms: Rooms) -> Sleeper:
    node, _, sleeper = await _level(rooms, "more-there")
    come = partial(rooms.holder, node, labels={"spread": "more-there"})
    return sleeper._replace(awaits="one more in the emptiest domain", wake=come)


async def _counts_no_more(rooms: Rooms) -> Sleeper:
    _, (one, *_), sleeper = await _level(rooms, "recounted")
    return sleeper._replace(awaits="labels of one that counted", wake=partial(rooms.relabel, one, {"spread": "no"}))


async def _counts_itself_no_more(rooms: Rooms) -> Sleeper:
    _, _, sleeper = await _level(rooms, "itself")
    change = partial(rooms.patch_pod, sleeper.pod, metadata={"labels": {"spread": "no"}})
    return sleeper._replace(awaits="its own labels", wake=change)


# -- pods go -----------------------------------------------------------------------------------------------------------


async def _room_freed(rooms: Rooms) -> Sleeper:
    uid = await rooms.holder(await rooms.room("room"), milli=HALF_MILLI)
    pod = await rooms.pod("room", milli=HALF_MILLI)
    return Sleeper(pod, "the end of a pod whose room it needs", partial(rooms.send_off, uid))


async def _port_freed(rooms: Rooms, name: str, held: str, wanted: str) -> Sleeper:
    uid = await rooms.holder(await rooms.room(name), spec=_port(held, "x"))
    return Sleeper(
        await rooms.pod(name, _port(wanted, "y")), "the end of a pod with its port", partial(rooms.send_off, uid)
    )


async def _disk_freed(rooms: Rooms) -> Sleeper:
    disk = {"volumes": [{"name": "v0", "gcePersistentDisk": {"pdName": f"pd-{rooms.mark}"}}]}
    uid = await rooms.holder(await rooms.room("disk"), spec=disk)
    return Sleeper(await rooms.pod("disk", disk), "the end of a pod with its disk", partial(rooms.send_off, uid))


async def _enemy_gone(rooms: Rooms) -> Sleeper:
    uid = await rooms.holder(await rooms.room("enemy"), labels={"enemy": "gone"})
    pod = await rooms.pod("enemy", _far({"enemy": "gone"}))
    return Sleeper(pod, "the end of its enemy", partial(rooms.send_off, uid))


async def _averse_gone(rooms: Rooms) -> Sleeper:
    uid = await rooms.holder(await rooms.room("averse"), spec=_far({"disliked": "gone"}))
    pod = await rooms.pod("averse", labels={"disliked": "gone"})
    return Sleeper(pod, "the end of a pod that did not bear it", partial(rooms.send_off, uid))


# -- pods come and change ----------------------------------------------------------------------------------------------


async def _company_comes(rooms: Rooms) -> Sleeper:
    node = await rooms.room("company")
    pod = await rooms.pod("company", _near({"company": rooms.mark}))
    return Sleeper(pod, "its company", partial(rooms.holder, node, labels={"company": rooms.mark}))


async def _distant_company_comes(rooms: Rooms) -> Sleeper:
    """To a node of another domain, in the same zone."""
    zone = {ZONE: f"z-{rooms.mark}"}
    await rooms.room("distant", zone)
    node = await rooms.room("beyond", {"type": "virtual-kubelet", **zone})
    pod = await rooms.pod("distant", _near({"distant": rooms.mark}, ZONE))
    return Sleeper(pod, "its company elsewhere", partial(rooms.holder, node, labels={"distant": rooms.mark}))


async def _company_relabelled(rooms: Rooms) -> Sleeper:
    uid = await rooms.holder(await rooms.room("befriended"), labels={"company": "no"})
    pod = await rooms.pod("befriended", _near({"company": f"{rooms.mark}-late"}))
    return Sleeper(pod, "its company's labels", partial(rooms.relabel, uid, {"company": f"{rooms.mark}-late"}))


async def _enemy_relabelled(rooms: Rooms) -> Sleeper:
    uid = await rooms.holder(await rooms.room("reconciled"), labels={"enemy": "yes"})
    pod = await rooms.pod("reconciled", _far({"enemy": "yes"}))
    return Sleeper(pod, "its enemy's labels", partial(rooms.relabel, uid, {"enemy": "no"}))


async def _namespace_relabelled(rooms: Rooms) -> Sleeper:
    """The enemy is of a namespace that the pod's term selects no more."""
    label, name = rooms.context.world.label_namespace, "team-b"
    await label(name, {"sim/hostile": rooms.mark})
    node = await rooms.room("namespace")
    await rooms.holder(node, labels={"enemy": "far"}, namespace=name)
    selector: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"sim/hostile": rooms.mark}}}
    pod = await rooms.pod("namespace", _far({"enemy": "far"}, **selector), labels={GUEST: "yes"})

    def is_heard(program: Program) -> bool:
        known = program.cache.objects.namespace(name)
        return known is not None and "sim/hostile" not in known.labels

    return Sleeper(pod, "labels of its enemy's namespace", partial(label, name, {"sim/hostile": None}), is_heard)


# -- the last pod of a series ------------------------------------------------------------------------------------------


async def _series(rooms: Rooms, name: str, wake: Callable[[str, str], Awaitable[object]]) -> Sleeper:
    """A pod that wants its own kind, which has one pod, in a place that takes no other. Without that pod it is the first.

    `wake`: hears the node and the uid of that pod.
    """
    labels = {"series": f"{rooms.mark}-{name}"}
    full = await rooms.room(f"{name}-full", {BERTH: f"full-{name}"})
    uid = await rooms.holder(full, labels=labels)
    await rooms.room(name, {BERTH: name})
    pod = await rooms.pod(name, _near(labels, BERTH), labels=labels)
    return Sleeper(pod, f"the last pod of its series ({name})", partial(wake, full, uid))


async def _series_ended(rooms: Rooms) -> Sleeper:
    return await _series(rooms, "series", lambda node, uid: rooms.send_off(uid))


async def _series_relabelled(rooms: Rooms) -> Sleeper:
    return await _series(rooms, "renamed", lambda node, uid: rooms.relabel(uid, {"series": "another"}))


async def _series_moved(rooms: Rooms) -> Sleeper:
    """Its node is no place any more."""
    return await _series(rooms, "placeless", lambda node, uid: rooms.patch(node, metadata={"labels": {BERTH: None}}))


async def _distant_series_moved(rooms: Rooms) -> Sleeper:
    """As before, of a node of another domain."""
    labels = {"series": f"{rooms.mark}-distant"}
    full = await rooms.room("distant-full", {BERTH: "distant-full", "type": "virtual-kubelet"})
    await rooms.holder(full, labels=labels)
    await rooms.room("distant-series", {BERTH: "distant"})
    pod = await rooms.pod("distant-series", _near(labels, BERTH), labels=labels)
    wake = partial(rooms.patch, full, metadata={"labels": {BERTH: None}})
    return Sleeper(pod, "the last pod of its series elsewhere", wake)


async def _series_stranded(rooms: Rooms) -> Sleeper:
    """Its node is deleted."""

    async def delete(node: str, uid: str) -> None:
        await rooms.context.world.user.send("DELETE", f"/api/v1/nodes/{node}")

    return await _series(rooms, "stranded", delete)


# -- the pod itself changes --------------------------------------------------------------------------------------------


async def _tolerates(rooms: Rooms) -> Sleeper:
    await rooms.room("tolerates", taints=[KEPT, SHUT])
    pod = await rooms.pod("tolerates")
    return Sleeper(pod, "its own toleration", partial(_add_toleration, rooms, pod, SHUT["key"]))


async def _tolerates_cordon(rooms: Rooms) -> Sleeper:
    await rooms.room("cordon", unschedulable=True)
    pod = await rooms.pod("cordon")
    return Sleeper(pod, "its own toleration of cordons", partial(_add_toleration, rooms, pod, CORDON))


async def _shrinks(rooms: Rooms) -> Sleeper:
    await rooms.holder(await rooms.room("shrinks"), milli=HALF_MILLI)
    pod = await rooms.pod("shrinks", milli=HALF_MILLI)
    return Sleeper(pod, "its own size", partial(_resize, rooms, pod))


async def _is_disliked_no_more(rooms: Rooms) -> Sleeper:
    await rooms.holder(await rooms.room("liked"), spec=_far({"disliked": "yes"}))
    pod = await rooms.pod("liked", labels={"disliked": "yes"})
    return Sleeper(pod, "its own labels", partial(rooms.patch_pod, pod, metadata={"labels": {"disliked": "no"}}))


async def _gates_opened(rooms: Rooms) -> Sleeper:
    """One of two is no help yet."""
    await rooms.room("gates")
    pod = await rooms.pod("gates", {"schedulingGates": [{"name": "test/one"}, {"name": "test/two"}]})
    return Sleeper(pod, "the end of its gates", partial(_open_gates, rooms, pod))


async def _open_gates(rooms: Rooms, pod: str) -> None:
    await rooms.patch_pod(pod, spec={"schedulingGates": [{"name": "test/two"}]})
    await rooms.context.pause(0.1, 0.3)
    await rooms.patch_pod(pod, spec={"schedulingGates": None})


async def _add_toleration(rooms: Rooms, pod: str, key: str) -> None:
    await rooms.patch_pod(pod, spec={"tolerations": [TOLERATED, {"key": key, "operator": "Exists"}]})


async def _resize(rooms: Rooms, name: str) -> None:
    for pod in named(rooms.context, [name]):
        await rooms.context.world.kubelets.resize(pod, "100m")


# -- a node comes ------------------------------------------------------------------------------------------------------


async def _come(context: RunContext) -> bool:
    """Each pod is refused by another plugin on every node; the one that comes takes all of them."""
    rooms, disks = Rooms(context), context.world.disks
    enemy, nodes = {"enemy": rooms.mark}, context.bind_checker.nodes()
    zones = {node.labels[ZONE]: name for name, node in nodes.items() if ZONE in node.labels}
    for name in zones.values():
        await rooms.holder(name, labels=enemy)
    await disks.add_disk(f"disk-{rooms.mark}", "room-1", DISK_SIZE, is_narrow=False)
    await disks.add_claim(f"claim-{rooms.mark}", LOCAL, size=DISK_SIZE)
    wanted: tuple[tuple[str, int, Mapping[str, Any]], ...] = (
        ("NodeAffinity", 0, {"nodeSelector": {BED: "come"}}),
        ("NodeResourcesFit", GIANT_MILLI, {}),
        ("InterPodAffinity", 0, _far(enemy, ZONE)),
        ("PodTopologySpread", 0, {"topologySpreadConstraints": [_BERTHS]}),
        ("VolumeBinding", 0, _claimed(f"claim-{rooms.mark}")),
    )
    sleepers = [
        Sleeper(await rooms.pod("", spec, milli=milli), f"a node that came ({plugin})", _nothing)
        for plugin, milli, spec in wanted
    ]
    come = partial(rooms.room, "come", {BERTH: "come", ZONE: "z-new"}, cpu="32")
    return await wake_all(context, sleepers, come)


_BERTHS: Final = {
    "maxSkew": 1,
    "topologyKey": BERTH,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"spread": "berths"}},
}


# -- volumes -----------------------------------------------------------------------------------------------------------


async def _claim_comes(rooms: Rooms) -> Sleeper:
    node, name, disks = await rooms.room("claim"), f"late-{rooms.mark}", rooms.context.world.disks
    await disks.add_disk(name, node, DISK_SIZE, is_narrow=False)
    pod = await rooms.pod("claim", _claimed(name))
    return Sleeper(pod, "its claim", partial(disks.add_claim, name, LOCAL, size=DISK_SIZE), _knows("default", name))


async def _volume_comes(rooms: Rooms) -> Sleeper:
    node, name, disks = await rooms.room("volume"), f"disk-{rooms.mark}", rooms.context.world.disks
    await disks.add_claim(name, LOCAL, size=DISK_SIZE)
    pod = await rooms.pod("volume", _claimed(name))
    return Sleeper(pod, "a volume", partial(disks.add_disk, name, node, DISK_SIZE, is_narrow=False), _knows("", name))


async def _class_comes(rooms: Rooms) -> Sleeper:
    name, world = f"class-{rooms.mark}", rooms.context.world
    await rooms.room("class")
    await world.disks.add_claim(name, name)
    pod = await rooms.pod("class", _claimed(name))
    made = {"metadata": {"name": name}, "provisioner": FAKE_PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"}
    return Sleeper(pod, "its claim's class", partial(world.user.send, "POST", CLASSES_PATH, made), _knows("", name))


def _knows(namespace: str, name: str) -> Callable[[Program], bool]:
    """A claim, or a volume or class, of this name."""
    kinds = (
        (ObjectKind.PERSISTENT_VOLUME_CLAIM,) if namespace else (ObjectKind.PERSISTENT_VOLUME, ObjectKind.STORAGE_CLASS)
    )
    return lambda program: any(program.cache.objects.get(kind, namespace, name) is not None for kind in kinds)


# -- specs -------------------------------------------------------------------------------------------------------------


def _term(labels: Mapping[str, str], key: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {REQUIRED: [{"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}, **more}]}


def _near(labels: Mapping[str, str], key: str = HOSTNAME, **more: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": _term(labels, key, more)}}


def _far(labels: Mapping[str, str], key: str = HOSTNAME, **more: Any) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": _term(labels, key, more)}}


def _claimed(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v0", "persistentVolumeClaim": {"claimName": name}}]}


def _port(address: str, image: str) -> dict[str, Any]:
    port = {"containerPort": 80, "hostPort": PORT, **({"hostIP": address} if address else {})}
    resources = {"requests": {"cpu": "10m"}}
    return {"containers": [{"name": "main", "image": image, "resources": resources, "ports": [port]}]}


_NODES: Final[tuple[Case, ...]] = (
    _label,
    _untaint,
    _retaint,
    _uncordon,
    _grow,
    _more_pods,
    _upgrade,
    _join_company,
    _leave_enemy,
)
_LEVELS: Final[tuple[Case, ...]] = (
    _domain_shut,
    _domain_renamed,
    _domain_changed,
    _last_node_gone,
    _more,
    _counts_no_more,
    _counts_itself_no_more,
    _fewer,
)
_GOING: Final[tuple[Case, ...]] = (
    _tolerates_cordon,  # where no other room is tainted
    _room_freed,  # before the others: any pod's end wakes it
    partial(_port_freed, name="port", held="", wanted="10.0.0.1"),
    partial(_port_freed, name="address", held="10.0.0.2", wanted=""),
    _disk_freed,
    _enemy_gone,
    _averse_gone,
)
_OTHERS: Final[tuple[Case, ...]] = (
    _company_comes,
    _distant_company_comes,
    _company_relabelled,
    _enemy_relabelled,
    _namespace_relabelled,
    _claim_comes,
    _volume_comes,
    _class_comes,
)
_SERIES: Final[tuple[Case, ...]] = (
    _series_ended,
    _series_relabelled,
    _series_moved,
    _distant_series_moved,
    _series_stranded,
)
_OWN: Final[tuple[Case, ...]] = (_tolerates, _shrinks, _is_disliked_no_more, _gates_opened)

SCENARIOS: Final[Scenarios] = (
    ("nodes change under sleepers", partial(wake_each, cases=_NODES)),
    ("domains become level", partial(wake_each, cases=_LEVELS)),
    ("pods go that sleepers wait for", partial(wake_each, cases=_GOING)),
    ("pods come that sleepers wait for", partial(wake_each, cases=_OTHERS)),
    ("series end", partial(wake_each, cases=_SERIES)),
    ("sleepers change", partial(wake_each, cases=_OWN)),
    ("node comes that sleepers wait for", _come),
)
