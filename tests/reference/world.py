"""What a problem's cluster looks like to the reference, and what a reference plugin is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from tests.reference.amounts import (
    allocatable,
    asked_requests,
    asked_scoring_requests,
    placed_scoring_requests,
    pod_requests,
)

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A plugin's refusal of a node, or of the pod everywhere."""

    reasons: tuple[str, ...]
    is_unresolvable: bool = False

    @property
    def code(self) -> str:
        return "UnschedulableAndUnresolvable" if self.is_unresolvable else "Unschedulable"


def unresolvable(*reasons: str) -> Refused:
    return Refused(reasons, is_unresolvable=True)


class Skip:
    """PreFilter or PreScore has nothing to say: Filter or Score is not asked."""


SKIP = Skip()


class PodState:
    """A pod with what is computed of it once."""

    def __init__(self, document: Json) -> None:
        self.document = document
        metadata = document["metadata"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.uid: str = metadata["uid"]
        self.labels: Mapping[str, str] = metadata.get("labels") or {}
        self.is_terminating = "deletionTimestamp" in metadata
        self.priority: int = document["spec"].get("priority") or 0
        self.node: str = document["spec"].get("nodeName") or ""
        status = document.get("status") or {}
        self.nominated_node: str = status.get("nominatedNodeName") or ""
        self.started: str = status.get("startTime") or "now"
        """RFC 3339 texts of one form compare as times do; a pod that has not started counts as started now."""

    @cached_property
    def requests(self) -> dict[str, int]:
        return pod_requests(self.document)

    @cached_property
    def scoring_requests(self) -> dict[str, int]:
        return placed_scoring_requests(self.document)

    @cached_property
    def asked_requests(self) -> dict[str, int]:
        return asked_requests(self.document)

    @cached_property
    def asked_scoring_requests(self) -> dict[str, int]:
        return asked_scoring_requests(self.document)

    @cached_property
    def volumes(self) -> Sequence[Json]:
        return self.document["spec"].get("volumes") or ()

    def terms(self, kind: str, when: str) -> Sequence[Json]:
        """`podAffinity` or `podAntiAffinity`, `required` or `preferred`."""
        return self._terms.get((kind, when), ())

    @cached_property
    def _terms(self) -> Mapping[tuple[str, str], Sequence[Json]]:
        """Read once, since every pair of pods is asked for them."""
        affinity = self.document["spec"].get("affinity") or {}
        return {
            (kind, when): (affinity.get(kind) or {}).get(f"{when}DuringSchedulingIgnoredDuringExecution") or ()
            for kind in ("podAffinity", "podAntiAffinity")
            for when in ("required", "preferred")
        }


class NodeState:
    """A node, and the pods on it in the order in which they came."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.name: str = document["metadata"]["name"]
        self.labels: Mapping[str, str] = document["metadata"].get("labels") or {}
        self.taints: Sequence[Json] = document.get("spec", {}).get("taints") or ()
        self.allocatable = allocatable(document)


@dataclass(frozen=True)
class World:
    """Nodes with their pods, and the other objects of a problem by field."""

    nodes: Mapping[str, NodeState]
    pods: Mapping[str, tuple[PodState, ...]]
    """Node -> its pods."""
    pending: tuple[PodState, ...]
    problem: Json

    def on(self, node: str) -> tuple[PodState, ...]:
        return self.pods.get(node, ())

    def with_pod(self, pod: PodState, node: str) -> World:
        return replace(self, pods={**self.pods, node: (*self.on(node), pod)})

    def without_pod(self, pod: PodState, node: str) -> World:
        return replace(self, pods={**self.pods, node: tuple(p for p in self.on(node) if p.uid != pod.uid)})

    def objects(self, field: str) -> Sequence[Json]:
        return self.problem.get(field) or ()

    def named(self, field: str, name: str, namespace: str = "") -> Json | None:
        for one in self.objects(field):
            if one["metadata"]["name"] == name and one["metadata"].get("namespace", "") == namespace:
                return one
        return None

    def requested(self, node: str, resource: str) -> int:
        return sum(pod.requests.get(resource, 0) for pod in self.on(node))

    def scoring_requested(self, node: str, resource: str) -> int:
        return sum(pod.scoring_requests.get(resource, 0) for pod in self.on(node))


def make_world(problem: Json) -> World:
    nodes = {document["metadata"]["name"]: NodeState(document) for document in problem["nodes"]}
    pods: dict[str, list[PodState]] = {name: [] for name in nodes}
    pending = []
    for document in problem["pods"]:
        pod = PodState(document)
        if (document.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        if not pod.node:
            pending.append(pod)
        elif pod.node in nodes:
            pods[pod.node].append(pod)
    return World(nodes, {name: tuple(those) for name, those in pods.items()}, tuple(pending), problem)


class Reference(Protocol):
    """One plugin, said plainly. Methods that a plugin has nothing to say at are those of `Silent`."""

    name: str
    filters: bool
    scores: bool

    def prepare(self, world: World, pod: PodState) -> Any:
        """PreFilter: the state that `refusal` reads, Skip, Refused everywhere, or a frozenset of node names."""
        ...

    def moved(self, state: Any, world: World, pod: PodState, other: PodState, node: str, sign: int) -> Any:
        """The state once `other` has come to the node (sign 1) or left it (-1)."""
        ...

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        """Filter."""
        ...

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        """PreScore, Score and NormalizeScore: 0..100 for each feasible node."""
        ...


class Silent:
    """What plugins do at points they have nothing to say at."""

    name = ""
    filters = False
    scores = False

    def prepare(self, world: World, pod: PodState) -> Any:
        return None

    def moved(self, state: Any, world: World, pod: PodState, other: PodState, node: str, sign: int) -> Any:
        return state

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        return None

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        return SKIP


def in_proportion(raw: Mapping[str, int], *, reverse: bool) -> dict[str, int]:
    """Upstream's default normalisation: in proportion to the largest."""
    most = max(raw.values(), default=0)
    if most == 0:
        return dict.fromkeys(raw, 100 if reverse else 0)
    shares = {node: 100 * score // most for node, score in raw.items()}
    return {node: 100 - share for node, share in shares.items()} if reverse else shares
