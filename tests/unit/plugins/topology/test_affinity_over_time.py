"""InterPodAffinity, asked again and again while pods, labels and namespaces change, says what a count of every pod says.

The plugin keeps sums, rules and tallies from one request to the next. Here little is kept, so that what is dropped, made anew and
renumbered meets what is held on to; the reference below keeps nothing and looks at every pod.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from random import Random

import numpy as np
import pytest
from hypothesis import settings
from msgspec.structs import replace

from multisched.framework import pod_counts, pod_demands
from multisched.framework.cycle_state import CycleState
from multisched.framework.points import CycleView
from multisched.framework.runner import Runner
from multisched.framework.status import Code
from multisched.model.cluster_objects import Namespace
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod, PodSpec
from multisched.model.placement import DemandKind, PodAffinity, PodAffinityTerm, PodDemand, WeightedPodTerm, demands_of
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.plugins.topology import affinity_rules
from multisched.plugins.topology.inter_pod_affinity import InterPodAffinity
from multisched.plugins.topology.inter_pod_affinity_args import InterPodAffinityArgs
from multisched.state.node_table import NodeTable
from multisched.state.object_store import ObjectStore
from multisched.state.overlay import OverlayCycle
from tests.unit.plugins.scenes import context_of

NODES, NAMESPACES, KEYS = 4, ("a", "b"), ("zone", "host")
LABELS: tuple[dict[str, str], ...] = ({}, {"app": "web"}, {"app": "db"}, {"app": "web", "tier": "1"})
"""As the decoder interns them: equal labels are one object."""
SELECTORS = (
    LabelSelector(),
    LabelSelector((Requirement("app", Operator.IN, ("web",)),)),
    LabelSelector((Requirement("app", Operator.NOT_IN, ("db",)),)),
    LabelSelector((Requirement("tier", Operator.EXISTS),)),
)
TEAM = LabelSelector((Requirement("team", Operator.IN, ("x",)),))
HARD_WEIGHT = 3
QUERIES = 8
SEEDS = settings().max_examples // 5
"""One more than a pod of these asks for."""


class NobodyWatches:
    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Times are of no interest here."""

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        raise AssertionError(f"{plugin} failed at {point}: {error}")


class Cluster:
    """A table that lives, one plugin that has seen it all, and pods that come, go and change."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.table, self.objects = NodeTable(), ObjectStore()
        self.team = dict.fromkeys(NAMESPACES, "x")
        for number in range(NODES):
            self._set_node(number, dict.fromkeys(KEYS[: number % 3], str(number % 2)))
        for name in NAMESPACES:
            self._set_namespace(name)
        self.plugin = InterPodAffinity(
            InterPodAffinityArgs(hard_pod_affinity_weight=HARD_WEIGHT), context_of(self.table, self.objects)
        )
        self.placed: dict[str, tuple[int, Pod]] = {}
        self.come = self.traced = 0
        self.askers = [self._pod() for _ in range(3)] + [replace(self._pod(), spec=PodSpec()) for _ in range(2)]
        self.states: dict[Hashable, CycleState] = {}
        """By signature, as the class cache keeps them."""
        self.told: dict[Hashable, list[int]] = {}
        """What Filter said when the moved rows were asked for last."""

    def change(self) -> None:
        what = self.rng.choice(
            ("come", "come", "come", "go", "go", "relabel", "delete", "node", "namespace", "recount")
        )
        uid = self.rng.choice([*self.placed, ""])
        if what == "come":
            pod = self._pod()
            row = self.rng.randrange(NODES)
            self.table.add_pod(row, pod)
            self.placed[pod.uid] = row, pod
        elif what == "node":
            labels = {key: self.rng.choice("01") for key in KEYS if self.rng.random() < 0.7}
            self._set_node(self.rng.randrange(NODES), labels)
        elif what == "namespace":
            name = self.rng.choice(NAMESPACES)
            self.team[name] = self.rng.choice("xy")
            self._set_namespace(name)
        elif what == "recount":
            row = self.rng.randrange(NODES)
            self.table.recount(row, dict(self.table.pods_by_uid(row)))
        elif uid:
            row, pod = self.placed.pop(uid)
            if what == "go":
                self.table.remove_pod(row, uid)
                return
            other = {"labels": self.rng.choice(LABELS)} if what == "relabel" else {"is_deleting": True}
            self.placed[uid] = row, replace(pod, **other)
            self.table.replace_pod(row, self.placed[uid][1])

    def wrong(self) -> Iterator[str]:
        for asker in self.askers:
            signature = self.plugin.sign(asker)
            state = self.states.setdefault(signature, CycleState())
            view, rows = CycleView(self.table, state), np.arange(NODES)
            standing = list(self.placed.values())
            yield from self._unlike(asker, view, standing, "as it is")
            yield from self._unmoved(signature, asker, view)
            scored = self.plugin.pre_score(view, asker, rows).code is not Code.SKIP
            said = self.plugin.score(view, asker, rows).tolist() if scored else [0] * NODES
            wanted = [self._score(asker, row, standing) for row in range(NODES)]
            if said != wanted:
                yield f"scores {said}, wanted {wanted}"
            yield from self._wrong_in_thought(asker, view, standing)

    def _unmoved(self, signature: Hashable, asker: Pod, view: CycleView) -> Iterator[str]:
        """Every row whose code changed is among those that the plugin names."""
        if self.plugin.pre_filter(view, asker).status.code is Code.SKIP:
            return
        rows = self.plugin.moved_rows(view, asker)
        codes = self.plugin.filter(view, asker, np.arange(NODES)).tolist()
        before = self.told.get(signature, codes)
        self.told[signature] = codes
        if rows is not None:
            self.traced += 1
            unnamed = [row for row in range(NODES) if codes[row] != before[row] and row not in rows]
            if unnamed:
                yield f"codes went from {before} to {codes}, and rows {unnamed} are not among {rows}"

    def _wrong_in_thought(self, asker: Pod, view: CycleView, standing: list[tuple[int, Pod]]) -> Iterator[str]:
        """As preemption asks: with some pods gone, and others there."""
        if self.plugin.pre_filter(view, asker).status.code is Code.SKIP:
            return
        overlay = OverlayCycle(self.table, view.state, asker, [self.plugin], Runner(NobodyWatches(), lambda: 0.0), 1)
        thought = list(standing)
        for row, pod in self.rng.sample(standing, min(2, len(standing))):
            overlay.remove_pod(pod, row)
            thought.remove((row, pod))
        for _ in range(2):
            row, pod = self.rng.randrange(NODES), self._pod()
            overlay.add_pod(pod, row)
            thought.append((row, pod))
        said = (self.plugin.filter(overlay.view, asker, np.arange(NODES)) == 0).tolist()
        wanted = [self._fits(asker, row, thought) for row in range(NODES)]
        if said != wanted:
            yield f"in thought: passes {said}, wanted {wanted}"

    def _unlike(self, asker: Pod, view: CycleView, standing: list[tuple[int, Pod]], when: str) -> Iterator[str]:
        if self.plugin.pre_filter(view, asker).status.code is Code.SKIP:
            said = [True] * NODES
        else:
            said = (self.plugin.filter(view, asker, np.arange(NODES)) == 0).tolist()
        wanted = [self._fits(asker, row, standing) for row in range(NODES)]
        if said != wanted:
            yield f"{when}: passes {said}, wanted {wanted}"

    # -- the reference ---------------------------------------------------------------------------------------------

    def _fits(self, asker: Pod, row: int, standing: list[tuple[int, Pod]]) -> bool:
        own = asker.spec.pod_affinity or PodAffinity()
        here = self.table.node(row).labels
        for at, other in standing:
            for key in (d.topology_key for d in self._demands(other, asker) if d.kind is DemandKind.ANTI_REQUIRED):
                if self._is_together(key, row, at):
                    return False
        for term in own.anti_required:
            if any(self._takes(term, asker, o) and self._is_together(term.topology_key, row, at) for at, o in standing):
                return False
        if any(term.topology_key not in here for term in own.required):
            return False
        company = [(at, o) for at, o in standing if all(self._takes(term, asker, o) for term in own.required)]
        if all(any(self._is_together(t.topology_key, row, at) for at, _ in company) for t in own.required):
            return True
        counts = any(term.topology_key in self.table.node(at).labels for at, _ in company for term in own.required)
        return not counts and all(self._takes(term, asker, asker) for term in own.required)

    def _score(self, asker: Pod, row: int, standing: list[tuple[int, Pod]]) -> int:
        own, total = asker.spec.pod_affinity or PodAffinity(), 0
        weights = {DemandKind.REQUIRED: HARD_WEIGHT, DemandKind.PREFERRED: 1, DemandKind.ANTI_PREFERRED: -1}
        for at, other in standing:
            for sign, liked in ((1, own.preferred), (-1, own.anti_preferred)):
                for one in liked:
                    if self._takes(one.term, asker, other) and self._is_together(one.term.topology_key, row, at):
                        total += sign * one.weight
            for demand in self._demands(other, asker):
                if self._is_together(demand.topology_key, row, at):
                    total += weights.get(demand.kind, 0) * (1 if demand.kind is DemandKind.REQUIRED else demand.weight)
        return total

    def _demands(self, other: Pod, asker: Pod) -> Iterator[PodDemand]:
        for demand in demands_of(other.spec.pod_affinity or PodAffinity(), other.namespace):
            if demand.matches(asker.namespace, asker.labels, {"team": self.team[asker.namespace]}):
                yield demand

    def _takes(self, term: PodAffinityTerm, asker: Pod, other: Pod) -> bool:
        if term.selector is None or not term.selector.matches(other.labels):
            return False
        if other.namespace in term.named_namespaces(asker.namespace):
            return True
        selector = term.namespace_selector
        return selector is not None and selector.matches({"team": self.team[other.namespace]})

    def _is_together(self, key: str, row: int, other: int) -> bool:
        here = self.table.node(row).labels.get(key)
        return here is not None and here == self.table.node(other).labels.get(key)

    # -- what is drawn ---------------------------------------------------------------------------------------------

    def _pod(self) -> Pod:
        self.come += 1
        uid = f"pod-{self.come}"
        terms = [tuple(self._term() for _ in range(self.rng.choice((0, 0, 1, 2)))) for _ in range(4)]
        weighted = [tuple(WeightedPodTerm(self.rng.randint(1, 100), one) for one in some) for some in terms[2:]]
        affinity = PodAffinity(terms[0], weighted[0], terms[1], weighted[1])
        spec = PodSpec(pod_affinity=affinity if affinity != PodAffinity() else None)
        return Pod(self.rng.choice(NAMESPACES), uid, uid, 1, spec=spec, labels=self.rng.choice(LABELS))

    def _term(self) -> PodAffinityTerm:
        names = self.rng.choice((frozenset[str](), frozenset("b")))
        selector, spaces = self.rng.choice((None, *SELECTORS, *SELECTORS)), self.rng.choice((None, None, TEAM))
        return PodAffinityTerm(self.rng.choice(KEYS), selector, names, spaces)

    def _set_node(self, number: int, labels: Mapping[str, str]) -> None:
        self.table.set_node(Node(f"node-{number}", f"uid-{number}", 1, labels=dict(labels)))

    def _set_namespace(self, name: str) -> None:
        self.objects.set(ObjectKind.NAMESPACE, Namespace(name=name, labels={"team": self.team[name]}))


@pytest.fixture
def little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOG_KEPT", "UNKNOWN_MAX", "EFFECTS_MAX", "ENTRIES_MIN", "ENTRY_BYTES_MAX", "MAPPINGS_MAX"):
        monkeypatch.setattr(pod_demands, name, 2)
    monkeypatch.setattr(pod_demands, "DEAD_MIN", 4)
    for name in ("LOG_KEPT", "MATCHES_KEPT", "NARROW_GROUPS_MAX", "QUERIES_MAX", "QUERY_BYTES_MAX"):
        monkeypatch.setattr(pod_counts, name, 2)
    monkeypatch.setattr(pod_counts, "QUERIES_MIN", QUERIES)
    monkeypatch.setattr(affinity_rules, "RULES_KEPT", 2)
    monkeypatch.setattr(affinity_rules, "TEXTS_KEPT", 8)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_cached_affinity_equals_a_full_recount(seed: int) -> None:
    cluster = Cluster(seed)
    for step in range(40):
        cluster.change()
        assert list(cluster.wrong()) == [], step
    assert cluster.traced, "some moved rows were named"


@pytest.mark.usefixtures("little_is_kept")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_cached_affinity_equals_a_full_recount_with_small_caches(seed: int) -> None:
    cluster = Cluster(seed)
    for step in range(40):
        for _ in range(cluster.rng.choice((1, 1, 3, 8))):
            cluster.change()
        assert list(cluster.wrong()) == [], step
