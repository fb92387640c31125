"""The whole decision, plainly: from a problem to an answer in the form of answers.jsonl."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.reference.node_plugins import (
    ImageLocality,
    NodeAffinity,
    NodeDeclaredFeatures,
    NodeName,
    NodePorts,
    NodeUnschedulable,
    TaintToleration,
)
from tests.reference.relation_plugins import InterPodAffinity, PodTopologySpread
from tests.reference.resource_plugins import NodeResourcesBalancedAllocation, NodeResourcesFit
from tests.reference.volume_plugins import NodeVolumeLimits, VolumeBinding, VolumeRestrictions, VolumeZone
from tests.reference.world import SKIP, PodState, Reference, Refused, Skip, World, make_world

Json = Mapping[str, Any]

PLUGINS: Mapping[str, tuple[Callable[[Json], Reference], int]] = {
    "NodeUnschedulable": (lambda args: NodeUnschedulable(), 1),
    "NodeName": (lambda args: NodeName(), 1),
    "TaintToleration": (lambda args: TaintToleration(), 3),
    "NodeAffinity": (NodeAffinity, 2),
    "NodePorts": (lambda args: NodePorts(), 1),
    "NodeResourcesFit": (NodeResourcesFit, 1),
    "VolumeRestrictions": (lambda args: VolumeRestrictions(), 1),
    "NodeVolumeLimits": (lambda args: NodeVolumeLimits(), 1),
    "VolumeBinding": (lambda args: VolumeBinding(), 1),
    "VolumeZone": (lambda args: VolumeZone(), 1),
    "PodTopologySpread": (PodTopologySpread, 2),
    "InterPodAffinity": (InterPodAffinity, 2),
    "NodeResourcesBalancedAllocation": (NodeResourcesBalancedAllocation, 1),
    "ImageLocality": (lambda args: ImageLocality(), 1),
    "NodeDeclaredFeatures": (lambda args: NodeDeclaredFeatures(), 1),
}
"""Name -> how it is made of its arguments, and its weight; in the order of the default profile."""
POST_FILTERS = frozenset({"DynamicResources", "DefaultPreemption"})


@dataclass(frozen=True, slots=True)
class Profile:
    plugins: tuple[Reference, ...]
    filters: tuple[Reference, ...]
    weights: Mapping[str, int]
    """Of the plugins that score."""
    post_filters: frozenset[str]


def make_profile(configuration: Json | None) -> Profile:
    """What the first profile of a KubeSchedulerConfiguration runs; plugins are disabled by name or `*`."""
    chosen: Json = configuration["profiles"][0] if configuration else {}
    args = {one["name"]: one.get("args") or {} for one in chosen.get("pluginConfig") or ()}
    sets: Json = chosen.get("plugins") or {}
    weights = {name: weight for name, (_, weight) in PLUGINS.items()}
    everywhere = sets.get("multiPoint") or {}
    for name in _disabled(everywhere, weights):
        del weights[name]
    weights |= {one["name"]: one.get("weight") or 1 for one in everywhere.get("enabled") or ()}
    plugins = {name: PLUGINS[name][0](args.get(name, {})) for name in PLUGINS if name in weights}
    filter_set = sets.get("filter") or {}
    filters = [name for name, plugin in plugins.items() if plugin.filters]
    left_out = _disabled(filter_set, filters)
    first = [one["name"] for one in filter_set.get("enabled") or ()]
    filters = [*first, *(name for name in filters if name not in (*first, *left_out))]
    score = sets.get("score") or {}
    scored = {name: weights[name] for name, plugin in plugins.items() if plugin.scores}
    for name in _disabled(score, scored):
        del scored[name]
    scored |= {one["name"]: one.get("weight") or 1 for one in score.get("enabled") or ()}
    return Profile(
        tuple(plugins.values()),
        tuple(plugins[name] for name in filters),
        scored,
        POST_FILTERS - set(_disabled(sets.get("postFilter") or {}, POST_FILTERS)),
    )


def _disabled(plugins: Json, known: Any) -> list[str]:
    names = {one["name"] for one in plugins.get("disabled") or ()}
    return [name for name in known if name in names or "*" in names]


class Search:
    """PreFilter has run; nodes can be asked, also with pods added and taken away."""

    def __init__(self, profile: Profile, pod: PodState, world: World, states: Mapping[str, Any]) -> None:
        self.profile = profile
        self.pod = pod
        self.world = world
        self.states = states
        """Of the plugins that PreFilter did not skip; those that have no PreFilter are there too."""

    def moved(self, other: PodState, node: str, sign: int) -> Search:
        world = self.world.with_pod(other, node) if sign > 0 else self.world.without_pod(other, node)
        states = {
            plugin.name: plugin.moved(self.states[plugin.name], world, self.pod, other, node, sign)
            for plugin in self.profile.plugins
            if plugin.name in self.states
        }
        return Search(self.profile, self.pod, world, states)

    def refusal(self, node: str) -> tuple[str, Refused] | None:
        """The first plugin that refuses the node, with the pods that are nominated there, then without."""
        ahead = [
            p
            for p in self.world.pending
            if p.nominated_node == node and p.priority >= self.pod.priority and p.uid != self.pod.uid
        ]
        beside = self
        for other in ahead:
            beside = beside.moved(other, node, 1)
        return beside._first(node) or (self._first(node) if ahead else None)

    def _first(self, node: str) -> tuple[str, Refused] | None:
        for plugin in self.profile.filters:
            if plugin.name in self.states:
                refused = plugin.refusal(self.states[plugin.name], self.world, self.pod, node)
                if refused is not None:
                    return plugin.name, refused
        return None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a problem comes to, before PostFilter."""

    search: Search
    feasible: Sequence[str]
    refusals: Mapping[str, tuple[str, Refused]]
    narrowed: frozenset[str] | None
    narrowed_by: Sequence[str]
    refused: tuple[str, Refused] | None
    """By PreFilter, everywhere."""

    def sentence(self) -> str:
        """Why the pod fits nowhere."""
        if self.refused is not None:
            return f"0/{len(self.search.world.nodes)} nodes are available: {', '.join(self.refused[1].reasons)}."
        outside = len(self.search.world.nodes) - len(self.refusals)
        names = " ".join(sorted(self.narrowed_by))
        otherwise = Refused((f"node(s) didn't satisfy plugin(s) [{names}]",), is_unresolvable=True)
        refusals = [refused for _, refused in self.refusals.values()]
        return told(self.search.world, refusals, outside, otherwise if outside else None)


def decide(problem: Json) -> Decision:
    world, pod, profile = make_world(problem), PodState(problem["pod"]), make_profile(problem.get("profile"))
    states: dict[str, Any] = {}
    narrowed: frozenset[str] | None = None
    narrowed_by = []
    for plugin in profile.plugins:
        state = plugin.prepare(world, pod)
        if isinstance(state, Refused):
            return Decision(Search(profile, pod, world, {}), (), {}, None, (), (plugin.name, state))
        if isinstance(state, frozenset):
            narrowed = state if narrowed is None else narrowed & state
            narrowed_by.append(plugin.name)
        if state is not SKIP:
            states[plugin.name] = state
    search = Search(profile, pod, world, states)
    asked = [node for node in world.nodes if narrowed is None or node in narrowed]
    found = {node: search.refusal(node) for node in asked}
    refusals = {node: refusal for node, refusal in found.items() if refusal is not None}
    return Decision(search, sorted(found.keys() - refusals.keys()), refusals, narrowed, narrowed_by, None)


def told(world: World, refusals: Sequence[Refused], outside: int, otherwise: Refused | None) -> str:
    """The sentence of a pod that fits nowhere. `outside`: nodes that were not asked, and `otherwise` what counts there."""
    tally = Counter(reason for refused in refusals for reason in refused.reasons)
    if otherwise is not None:
        tally.update(dict.fromkeys(otherwise.reasons, outside))
    counted = ", ".join(sorted(f"{count} {reason}" for reason, count in tally.items()))
    return f"0/{len(world.nodes)} nodes are available: {counted}."


def shown(plugin: str, refused: Refused) -> dict[str, Any]:
    return {"code": refused.code, "plugin": plugin, "reasons": list(refused.reasons)}


def scores(decision: Decision) -> dict[str, Any]:
    """By plugin and in total, weighted."""
    search = decision.search
    found: dict[str, dict[str, int]] = {}
    for plugin in search.profile.plugins:
        weight = search.profile.weights.get(plugin.name, 0)
        given = plugin.scored(search.world, search.pod, decision.feasible) if weight else SKIP
        if not isinstance(given, Skip):
            found[plugin.name] = {node: weight * score for node, score in given.items()}
    return {"scores": found, "total": {node: sum(one[node] for one in found.values()) for node in decision.feasible}}
