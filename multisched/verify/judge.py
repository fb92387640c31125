"""The judge: finds pods that violate a required rule.

`Judge` learns the state of a cluster object by object. `placement(uid)` judges one pod as the latest: would it be allowed on its
node now? `findings()` judges all pods by the present state, as far as it is conclusive. It shares no code with the scheduler;
each rule is written from the API's documentation, by pod and node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from multisched.verify.cards import NodeCards, cards_of_device, is_koordinator_device
from multisched.verify.fields import Json, Unreadable, mapping, strings, text
from multisched.verify.findings import Fault, Finding
from multisched.verify.loan_rules import LoanUsage
from multisched.verify.node_usage import NodeUsage
from multisched.verify.objects import (
    Node,
    Pod,
    Problem,
    Problems,
    is_over,
    name_of,
    node_name_of,
    read_claim,
    read_limits,
    read_node,
    read_pod,
    read_volume,
)
from multisched.verify.placed_pods import PlacedPods
from multisched.verify.placement_rules import Domain, Domains, affinity_faults, taint_faults
from multisched.verify.relation_rules import OtherPods, SpreadCounts, anti_affinity_faults, came_after
from multisched.verify.relation_rules import affinity_faults as company_faults
from multisched.verify.volume_rules import Storage

KINDS = (
    "Namespace",
    "Node",
    "StorageClass",
    "CSINode",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "VolumeAttachment",
    "Device",
    "Pod",
)
"""The kinds that the judge reads, in an order in which each comes after the kinds it refers to."""


class Judge:
    """Judges placements by required rules, from objects added one by one.

    Objects are the API's JSON as dicts; unreadable ones are listed in `problems`.
    """

    def __init__(self, domains: Sequence[Domain] = ()) -> None:
        self._domains = Domains(domains)
        self._placed = PlacedPods()
        self._storage = Storage()
        self._spread = SpreadCounts(self._placed, self._domains)
        self._ended: dict[str, Pod] = {}
        self._devices: dict[str, NodeCards] = {}
        """Node -> its cards by Koordinator's Device."""
        self._problems = Problems()
        self._readers: dict[str, Callable[[Json], None]] = {
            "Namespace": self._namespace,
            "Node": self._node,
            "StorageClass": self._storage_class,
            "CSINode": self._csi_node,
            "PersistentVolume": self._volume,
            "PersistentVolumeClaim": self._claim,
            "VolumeAttachment": self._attachment,
            "Device": self._device,
            "Pod": self._pod,
        }

    @property
    def problems(self) -> Sequence[Problem]:
        """Unreadable objects and fields, in the order of arrival."""
        return self._problems.found

    @property
    def pods(self) -> Mapping[str, Pod]:
        """All pods on nodes, by uid."""
        return self._placed.pods

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self._placed.nodes

    @property
    def lacks_claims(self) -> bool:
        """True if pods use claims, but no claim was added."""
        return not self._storage.claims and any(pod.claims for pod in self._placed.pods.values())

    # -- state -----------------------------------------------------------------------------------------------------

    def add(self, kind: str, document: Json) -> None:
        """Adds a new or changed object. Ignores kinds without influence on rules."""
        reader = self._readers.get(kind)
        if reader is None:
            return
        try:
            reader(document)
        except Unreadable as error:
            self._problems.add(_shown_name(kind, document), str(error))

    def forget(self, kind: str, document: Json) -> None:
        """Removes a deleted object."""
        name, namespace, uid = name_of(document)
        key = f"{namespace or 'default'}/{name}"
        match kind:
            case "Pod":
                self._placed.remove(uid or key)
                self._ended.pop(uid or key, None)
            case "Node":
                self._placed.remove_node(name)
            case "Namespace":
                self._placed.set_namespace(name, None)
            case "PersistentVolume":
                self._storage.volumes.pop(name, None)
            case "PersistentVolumeClaim":
                self._storage.claims.pop(key, None)
            case "StorageClass":
                self._storage.provisioners.pop(name, None)
            case "CSINode":
                self._storage.limits.pop(name, None)
            case "VolumeAttachment":
                self._storage.attachments.pop(name, None)
            case "Device":
                self._devices.pop(name, None)

    def bind(self, pod: Json, node: str) -> list[Finding]:
        """Puts a pod on a node, and judges this placement by all pods that are there already."""
        self.add("Pod", {**pod, "spec": {**mapping(pod, "spec"), "nodeName": node}})
        name, namespace, uid = name_of(pod)
        return self.placement(uid or f"{namespace or 'default'}/{name}")

    def _pod(self, document: Json) -> None:
        name, namespace, uid = name_of(document)
        uid = uid or f"{namespace or 'default'}/{name}"
        self._placed.remove(uid)
        self._ended.pop(uid, None)
        if not node_name_of(document):
            return
        pod = read_pod(document, self._problems)
        if is_over(document):
            self._ended[uid] = pod
        else:
            self._placed.add(pod)

    def _node(self, document: Json) -> None:
        self._placed.set_node(read_node(document, self._problems))

    def _namespace(self, document: Json) -> None:
        self._placed.set_namespace(name_of(document)[0], strings(mapping(document, "metadata"), "labels"))

    def _storage_class(self, document: Json) -> None:
        self._storage.provisioners[name_of(document)[0]] = text(document, "provisioner")

    def _csi_node(self, document: Json) -> None:
        name, limits = read_limits(document, self._problems)
        self._storage.limits[name] = limits

    def _volume(self, document: Json) -> None:
        volume = read_volume(document, self._problems)
        self._storage.volumes[volume.name] = volume

    def _claim(self, document: Json) -> None:
        claim = read_claim(document, self._problems)
        self._storage.claims[claim.key] = claim

    def _attachment(self, document: Json) -> None:
        spec = mapping(document, "spec")
        volume = text(mapping(spec, "source"), "persistentVolumeName")
        self._storage.attachments[name_of(document)[0]] = (text(spec, "nodeName"), text(spec, "attacher"), volume)

    def _device(self, document: Json) -> None:
        if is_koordinator_device(document):
            name = name_of(document)[0]
            self._devices[name] = cards_of_device(document, partial(self._problems.add, f"device {name}"))

    # -- judging ---------------------------------------------------------------------------------------------------

    def placement(self, uid: str) -> list[Finding]:
        """Returns findings about a pod on its node, as the latest of all pods. Empty if it or its node is unknown."""
        pod = self._placed.pods.get(uid)
        node = self._placed.nodes.get(pod.node) if pod is not None else None
        if pod is None or node is None:
            return []
        storage = self._storage
        usage = self._usage(node, storage.attached_to(node.name), knows_order=True)
        for other in self._placed.on[node.name].values():
            if other is not pod:
                usage.add(other, storage.attached_by(other))
        others = OtherPods(self._placed, knows_order=True)
        faults = [*usage.faults(pod, storage.attached_by(pod)), *self._faults(pod, node, others)]
        return [_finding(pod, fault) for fault in faults]

    def _usage(self, node: Node, attached: Mapping[str, str], *, knows_order: bool) -> NodeUsage:
        cards = self._devices.get(node.name, node.cards)
        limits, domains = self._storage.limits.get(node.name, {}), self._domains
        loans = LoanUsage(node, domains.borrowers_on(node), knows_order=knows_order)
        return NodeUsage(node, limits, attached, cards, domains.binds_devices, loans, domains.elastic(node))

    def findings(self) -> list[Finding]:
        """Returns findings about all pods, by the present state and the times in the API."""
        others = OtherPods(self._placed, knows_order=False, ended=self._ended.values())
        found = []
        for name in sorted(self._placed.on):
            node = self._placed.nodes.get(name)
            if node is None:
                continue
            pods = sorted(self._placed.on[name].values(), key=lambda pod: pod.order)
            for pod, faults in self._taken(node, pods):
                if not pod.is_mirror:
                    faults += self._faults(pod, node, others)
                is_replaced = came_after(node, pod)
                found += [_finding(pod, f._replace(is_sure=f.is_sure and not is_replaced)) for f in faults]
        return found

    def _taken(self, node: Node, pods: Iterable[Pod]) -> Iterator[tuple[Pod, list[Fault]]]:
        """Yields faults of resources that earlier pods left too little of. A pod with a fault does not count for later pods."""
        storage = self._storage
        usage = self._usage(node, {}, knows_order=False)
        for pod in pods:
            volumes = storage.attached_by(pod)
            faults = list(usage.faults(pod, volumes))
            if not faults:
                usage.add(pod, volumes)
            yield pod, faults

    def _faults(self, pod: Pod, node: Node, others: OtherPods) -> Iterator[Fault]:
        """Yields faults of all rules except those about resources of the node."""
        tolerations, lapsed = self._domains.tolerations(pod), self._domains.lapsed(pod)
        yield from taint_faults(pod, tolerations, node, knows_order=others.knows_order, lapsed=lapsed)
        yield from affinity_faults(pod, node)
        yield from anti_affinity_faults(pod, node, others)
        yield from company_faults(pod, node, others)
        if not pod.is_terminating or others.knows_order:
            yield from self._spread.faults(pod, node, others)
        yield from self._storage.faults(pod, node, others)
        yield from self._domains.faults(pod, node)


def _finding(pod: Pod, fault: Fault) -> Finding:
    return Finding(pod.key, pod.node, fault.rule, fault.message, pod.uid, fault.is_sure)


def _shown_name(kind: str, document: Json) -> str:
    metadata = document.get("metadata")
    parts = [metadata.get(part) for part in ("namespace", "name")] if isinstance(metadata, dict) else []
    name = "/".join(part for part in parts if isinstance(part, str) and part)
    return f"{kind.lower()} {name}" if name else f"a {kind.lower()} without a name"


def judge(
    objects: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    order: Sequence[str] | None = None,
    domains: Sequence[Domain] = (),
) -> list[Finding]:
    """Returns findings about a cluster given as (kind, document) in any order.

    `order`: uids of pods in the order of their binds. Each is judged by the state before it. Other pods are taken as present from
    the beginning.
    """
    by_kind: dict[str, list[Json]] = {}
    for kind, document in objects:
        by_kind.setdefault(kind, []).append(document)
    cluster = Judge(domains)
    late: dict[str, Json] = {}
    wanted = set(order or ())
    for kind in KINDS:
        for document in by_kind.get(kind, ()):
            uid = mapping(document, "metadata").get("uid") if kind == "Pod" else None
            if uid in wanted:
                late[str(uid)] = document
            else:
                cluster.add(kind, document)
    if order is None:
        return cluster.findings()
    found = []
    for uid in order:
        if uid in late:
            cluster.add("Pod", late[uid])
            found += cluster.placement(uid)
    return found
