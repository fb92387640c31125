"""Rules of `tests/reference` for observed pods and nodes. The kit has no rules of its own where the reference has them.

Pods and nodes are rendered as the documents that the reference reads. Namespaces have only the label with their name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from multisched.model.cluster_objects import PersistentVolume
from multisched.model.objects import Node, Pod
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint
from multisched.model.selectors import LabelSelector, NodeSelector, NodeTerm, Requirement
from tests.kit.checkers.elastic_nodes import limits_of
from tests.kit.world.labels import HOSTNAME
from tests.reference.matching import has_untolerated_taint, required_node_affinity_matches
from tests.reference.node_plugins import NodePorts
from tests.reference.relation_plugins import InterPodAffinity, PodTopologySpread
from tests.reference.resource_plugins import NodeResourcesFit
from tests.reference.volume_plugins import VolumeBinding, VolumeZone
from tests.reference.world import SKIP, NodeState, PodState, World

Json = dict[str, Any]
CLAIM: Final = {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}
PodOnNode = tuple[Pod, Node]
"""A pod and the node it is on."""
STATES_MAX: Final = 20_000
"""Limit of cached pods, and of cached nodes: more than one run has versions."""


# -- rules ---------------------------------------------------------------------------------------------------------


class Relations:
    """Reports whether affinity, anti-affinity and hard spread constraints allow a pod on nodes."""

    def __init__(
        self, pod: Pod, nodes: Iterable[Node], pods_on_nodes: Collection[PodOnNode], is_usable: Callable[[Node], bool]
    ) -> None:
        """`nodes`: all. `pods_on_nodes`: all pods that have not ended, with their nodes. `is_usable`: reports whether a node
        belongs to the pod's domain; spreading counts only these nodes.
        """
        self._pod, self._nodes, self._pods_on_nodes, self._is_usable = pod, tuple(nodes), pods_on_nodes, is_usable
        self._prepared: list[tuple[InterPodAffinity | PodTopologySpread, Any]] | None = None
        self._world = world_of((), ())

    def allow(self, node: Node) -> bool:
        if self._prepared is None:
            self._prepared = self._prepare()
        world, state = self._world, pod_state(self._pod)
        return all(plugin.refusal(found, world, state, node.name) is None for plugin, found in self._prepared)

    def _prepare(self) -> list[tuple[InterPodAffinity | PodTopologySpread, Any]]:
        state = pod_state(self._pod)
        self._world = world_of(self._nodes, self._pods_on_nodes, state.namespace)
        found: list[tuple[InterPodAffinity | PodTopologySpread, Any]] = []
        if self._pod.spec.pod_affinity is not None or any(pod.spec.pod_affinity for pod, _ in self._pods_on_nodes):
            affinity = InterPodAffinity({})
            found.append((affinity, affinity.prepare(self._world, state)))
        if self._pod.spec.spread:
            spread = PodTopologySpread({})
            found.append((spread, spread.prepare(restricted_to(self._world, self._nodes, self._is_usable), state)))
        return [(plugin, prepared) for plugin, prepared in found if prepared is not SKIP]


def keep_apart(pod: Pod, other: Pod) -> bool:
    """Reports whether an anti-affinity of either pod forbids that both are on one host."""
    if pod.spec.pod_affinity is None and other.spec.pod_affinity is None:
        return False
    host = Node(name="host", uid="host", version=pod.version, labels={HOSTNAME: "host"})
    alone = _only_anti_affinity(pod)
    return not Relations(alone, [host], [(_only_anti_affinity(other), host)], lambda node: True).allow(host)


def restricts_by_anti_affinity(pod: Pod, node: Node, other: Pod) -> bool:
    """Reports whether an anti-affinity of the pod, which is on the node, keeps the other pod off some nodes."""
    if pod.spec.pod_affinity is None:
        return False
    world = world_of([node], [(pod, node)], other.namespace)
    state = InterPodAffinity({}).prepare(world, pod_state(other))
    return state is not SKIP and bool(state.existing)


def ports_conflict(pod: Pod, other: Pod) -> bool:
    """Reports whether both pods want the same host port."""
    if not (pod.spec.host_ports and other.spec.host_ports):
        return False
    host = Node(name="host", uid="host", version=pod.version)
    world = world_of([host], [(other, host)])
    return NodePorts().refusal(None, world, pod_state(pod), "host") is not None


def has_room(pod: Pod, node: Node, here: Collection[Pod]) -> bool:
    """Reports whether the node has what the pod requests in addition to these pods."""
    world = world_of([node], [(one, node) for one in here])
    return NodeResourcesFit({}).refusal(None, world, pod_state(pod), node.name) is None


def matches_node_affinity(pod: Pod, node: Node) -> bool:
    """Reports whether the pod's node selector and required node affinity match the node."""
    return required_node_affinity_matches(pod_state(pod).document, node.labels, node.name)


def is_tolerated(pod: Pod, node: Node) -> bool:
    """Reports whether the pod tolerates all taints of the node that keep pods off."""
    return not has_untolerated_taint(pod_state(pod).document, node_state(node).taints)


def reaches(volume: PersistentVolume, node: Node) -> bool:
    """Reports whether a volume that is bound can be used on the node, by its node affinity and its labels of zones."""
    required = None if volume.node_affinity is None else _node_terms(volume.node_affinity)
    document: Json = {
        "metadata": {"name": volume.name, "labels": volume.labels},
        "spec": {"nodeAffinity": {"required": required}},
    }
    claim: Json = {"metadata": {"name": "claim", "namespace": "default"}, "spec": {"volumeName": volume.name}}
    user = {"metadata": {"name": "user", "namespace": "default", "uid": "user"}, "spec": {"volumes": [CLAIM]}}
    world = World({node.name: node_state(node)}, {}, (), {"pvs": [document], "pvcs": [claim]})
    zone, pod = VolumeZone(), PodState(user)
    zones = zone.prepare(world, pod)
    is_in_zone = zones is SKIP or zone.refusal(zones, world, pod, node.name) is None
    return is_in_zone and VolumeBinding().refusal(([claim], []), world, pod, node.name) is None


@lru_cache(STATES_MAX)
def _only_anti_affinity(pod: Pod) -> Pod:
    terms = pod.spec.pod_affinity
    kept = None if terms is None else PodAffinity(anti_required=terms.anti_required)
    return replace(pod, spec=replace(pod.spec, pod_affinity=kept, spread=()))


# -- worlds --------------------------------------------------------------------------------------------------------


def world_of(nodes: Iterable[Node], pods_on_nodes: Iterable[PodOnNode], *namespaces: str) -> World:
    """Returns the reference's view of these nodes and pods, and of the pods' namespaces."""
    states = {node.name: node_state(node) for node in nodes}
    pods: dict[str, list[PodState]] = {}
    known = set(namespaces)
    for pod, node in pods_on_nodes:
        states.setdefault(node.name, node_state(node))
        pods.setdefault(node.name, []).append(pod_state(pod))
        known.add(pod.namespace)
    named = [{"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}} for name in sorted(known)]
    return World(states, {name: tuple(there) for name, there in pods.items()}, (), {"namespaces": named})


def restricted_to(world: World, nodes: Iterable[Node], is_usable: Callable[[Node], bool]) -> World:
    """Returns the world with the usable nodes alone, and their pods."""
    names = {node.name for node in nodes if is_usable(node)}
    return World(
        {name: state for name, state in world.nodes.items() if name in names},
        {name: pods for name, pods in world.pods.items() if name in names},
        world.pending,
        world.problem,
    )


@lru_cache(STATES_MAX)
def pod_state(pod: Pod) -> PodState:
    """Returns the pod as the reference reads it."""
    return _state(pod, pod.requests)


@lru_cache(STATES_MAX)
def scoring_state(pod: Pod) -> PodState:
    """Returns the pending pod with the requests by which NodeResourcesFit scores it."""
    return _state(pod, {"cpu": pod.spec.scoring_cpu_milli, "memory": pod.spec.scoring_memory_bytes})


def _state(pod: Pod, requests: Mapping[str, int]) -> PodState:
    metadata: Json = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "labels": pod.labels}
    if pod.is_deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    state = PodState({"metadata": metadata, "spec": _spec(pod, requests), "status": {}})
    cpu, memory = pod.scoring_requests
    state.__dict__["scoring_requests"] = {"cpu": cpu, "memory": memory}  # of its containers one by one, as decoded
    return state


@lru_cache(STATES_MAX)
def node_state(node: Node) -> NodeState:
    """Returns the node as the reference reads it."""
    taints = [{"key": one.key, "value": one.value, "effect": one.effect} for one in node.taints]
    images = [{"names": list(one.names), "sizeBytes": one.size_bytes} for one in node.images]
    return NodeState(
        {
            "metadata": {"name": node.name, "labels": node.labels},
            "spec": {"unschedulable": node.is_unschedulable, "taints": taints},
            "status": {
                "allocatable": _quantities(limits_of(node)),
                "images": images,
                "declaredFeatures": list(node.declared_features),
            },
        }
    )


def _spec(pod: Pod, requests: Mapping[str, int]) -> Json:
    spec = pod.spec
    nothing = {"requests": {"cpu": "0", "memory": "0"}}  # scoring adds defaults for a container that names no amount
    containers: list[Json] = [
        {"name": str(at), "image": image, "resources": nothing} for at, image in enumerate(spec.images or ("none",))
    ]
    containers[0]["resources"] = {"requests": _quantities(requests)}
    containers[0]["ports"] = [
        {"hostPort": one.port, "protocol": one.protocol, "hostIP": one.ip} for one in spec.host_ports
    ]
    return {
        "priority": spec.priority,
        "containers": containers,
        "volumes": [{"image": {"reference": image}} for image in spec.image_volumes],
        "tolerations": [
            {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect}
            for one in spec.tolerations
        ],
        "nodeSelector": {one.key: one.values[0] for one in spec.affinity.node_selector},
        "affinity": {"nodeAffinity": _node_affinity(pod), **_pod_affinity(spec.pod_affinity or PodAffinity())},
        "topologySpreadConstraints": [_spread(one) for one in spec.spread],
    }


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in amounts.items()}


def _node_affinity(pod: Pod) -> Json:
    affinity = pod.spec.affinity
    found: Json = {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": one.weight, "preference": _node_term(one.term)} for one in affinity.preferred
        ]
    }
    if affinity.required is not None:
        found["requiredDuringSchedulingIgnoredDuringExecution"] = _node_terms(affinity.required)
    return found


def _node_terms(selector: NodeSelector) -> Json:
    return {"nodeSelectorTerms": [_node_term(term) for term in selector.terms]}


def _node_term(term: NodeTerm) -> Json:
    """A term that does not parse matches nothing, as one without expressions."""
    if not term.is_valid:
        return {}
    return {"matchExpressions": _expressions(term.expressions), "matchFields": _expressions(term.fields)}


def _pod_affinity(terms: PodAffinity) -> Json:
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    sides = {"podAffinity": (terms.required, terms.preferred)}
    sides["podAntiAffinity"] = (terms.anti_required, terms.anti_preferred)
    return {
        side: {
            required: [_pod_term(term) for term in hard],
            preferred: [{"weight": one.weight, "podAffinityTerm": _pod_term(one.term)} for one in soft],
        }
        for side, (hard, soft) in sides.items()
    }


def _pod_term(term: PodAffinityTerm) -> Json:
    return {
        "topologyKey": term.topology_key,
        "labelSelector": _selector(term.selector),
        "namespaces": sorted(term.namespaces),
        "namespaceSelector": _selector(term.namespace_selector),
    }


def _spread(rule: SpreadConstraint) -> Json:
    return {
        "topologyKey": rule.topology_key,
        "whenUnsatisfiable": "DoNotSchedule" if rule.is_hard else "ScheduleAnyway",
        "maxSkew": rule.max_skew,
        "minDomains": rule.min_domains,
        "labelSelector": _selector(rule.selector),
        "matchLabelKeys": list(rule.match_label_keys),
        "nodeAffinityPolicy": "Honor" if rule.honors_affinity else "Ignore",
        "nodeTaintsPolicy": "Honor" if rule.honors_taints else "Ignore",
    }


def _selector(selector: LabelSelector | None) -> Json | None:
    return None if selector is None else {"matchExpressions": _expressions(selector.requirements)}


def _expressions(requirements: Sequence[Requirement]) -> list[Json]:
    return [{"key": one.key, "operator": one.operator.value, "values": list(one.values)} for one in requirements]
