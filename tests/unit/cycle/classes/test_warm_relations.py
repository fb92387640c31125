"""Pods that relate to each other: a class cache that lived through any events answers as one that is asked for the first time."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.config.plugins import plugin_registry
from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import CycleState
from multisched.framework.points import CycleView
from multisched.framework.registry import PluginUse, Profile, build_profile
from multisched.framework.runner import Runner
from multisched.model.cluster_objects import Namespace, Service
from multisched.model.decode import Decoder
from multisched.model.decode_selectors import equality_selector
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.model.selectors import Taint
from multisched.plugins.topology.inter_pod_affinity import InterPodAffinity
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from tests.unit.cycle.relations_kit import ZONE, Drawn

STEPS = 10
FEW, MANY = 4, 30
"""Nodes; of many so many share a zone or a rack that plugins are asked about one of each."""

PROFILE = Profile(
    tuple(
        PluginUse(name, weight)
        for name, weight in (
            ("QOSSort", 1),
            ("NodeUnschedulable", 1),
            ("TaintToleration", 3),
            ("NodeAffinity", 2),
            ("NodeResourcesFit", 1),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("DefaultBinder", 1),
        )
    )
)


class FailuresAreFatal:
    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Times are of no interest here."""

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        raise AssertionError(f"{plugin} failed at {point}: {error}")


class Bench:
    """A small cluster, a warm class cache, and pods that are asked about again and again."""

    def __init__(self, seed: int, nodes: int = FEW) -> None:
        self.draw = Drawn(seed)
        self.decoder = Decoder()
        self.cache = ClusterCache()
        self.rows = DomainRows("test", lambda node: node.name != "foreign")
        self.cache.add_domain(self.rows)
        context = PluginContext("test", self.cache.nodes, WaitingPodTable(), self.cache.ledgers, self.cache.objects)
        self.plugins = build_profile(PROFILE, plugin_registry(), context)
        self.runner = Runner(FailuresAreFatal(), lambda: 0.0)
        for name in (*(f"n{number}" for number in range(nodes)), "foreign"):
            self.set_node(name)
        self.cache.objects.set(ObjectKind.NAMESPACE, Namespace(name="other", labels={"team": "x"}))
        self.waiting = [self.pod(f"waiting-{number}") for number in range(3)]
        self.placed: list[str] = []
        self.warm = ClassCache(self.plugins, self.runner, self.cache.nodes, self.rows)
        self._cold = ClassCache(self.plugins, self.runner, self.cache.nodes, self.rows)

    def cold(self) -> ClassCache:
        self._cold.forget_all()
        return self._cold

    def pod(self, name: str, node: str = "") -> Pod:
        return self.decoder.pod(orjson.dumps(self.draw.pod(name, node)))

    def set_node(self, name: str) -> None:
        self.cache.set_node(self.decoder.node(orjson.dumps(self.draw.node(name))))

    def nodes(self) -> list[Node]:
        return [node for _, node in self.cache.nodes.live_rows()]

    def step(self, number: int) -> None:
        """Something happens: most often a pod comes or goes."""
        what = self.draw.rng.choice(
            ("place", "place", "place", "remove", "relabel", "node", "handover", "object", "nothing")
        )
        if what == "place":
            self.placed.append(f"uid-p{number}")
            self.cache.place(self.pod(f"p{number}", self.draw.rng.choice(self.nodes()).name))
        elif what == "remove" and self.placed:
            self.cache.remove(self.placed.pop(self.draw.rng.randrange(len(self.placed))))
        elif what == "relabel" and self.placed:
            entry = self.cache.placed(self.draw.rng.choice(self.placed))
            assert entry is not None
            changed = msgspec.structs.replace(entry.pod, labels=self.draw.labels(), is_deleting=self.draw.chance(0.3))
            self.cache.place(changed)
        elif what == "node":
            self.change_node()
        elif what == "handover":
            self.hand_over()
        elif what == "object":
            self.change_object()

    def change_node(self) -> None:
        name = f"n{self.draw.rng.randrange(6)}"
        if self.draw.chance(0.3) and self.cache.nodes.row_of(name) is not None:
            self.cache.remove_node(name)
        else:
            self.set_node(name)
            row = self.cache.nodes.row_of(name)
            assert row is not None
            node = self.cache.nodes.node(row)
            if self.draw.chance(0.3):
                self.cache.set_node(msgspec.structs.replace(node, taints=(Taint("t", effect="NoSchedule"),)))
            elif self.draw.chance(0.2):
                self.cache.set_node(msgspec.structs.replace(node, allocatable={}, malformed="odd"))

    def hand_over(self) -> None:
        """A node of the domain is withheld from it, or let in again."""
        withheld = sorted(self.rows.withheld.items())
        if withheld and self.draw.chance(0.6):
            self.rows.admit(*self.draw.rng.choice(withheld))
        elif len(self.rows.rows):
            row = self.draw.rng.choice(self.rows.rows.tolist())
            self.rows.withhold(row, self.cache.nodes.node(row))

    def change_object(self) -> None:
        if self.draw.chance(0.5):
            labels = {"team": self.draw.rng.choice("xy")}
            self.cache.objects.set(ObjectKind.NAMESPACE, Namespace(name="other", labels=labels))
        else:
            selector = equality_selector(self.draw.labels())
            self.cache.objects.set(ObjectKind.SERVICE, Service(name="s", namespace="default", selector=selector))


def answers(cache: ClassCache, pod: Pod) -> dict[str, Any]:
    """All that a class cache says of a pod."""
    pod_class = cache.find(pod, 1)
    found: dict[str, Any] = {
        "refusal": pod_class.refusal,
        "rows": pod_class.rows.tolist(),
        "codes": {c.plugin.name: c.codes.tolist() for c in pod_class.filters},
        "feasible": pod_class.feasible.tolist(),
    }
    if pod_class.refusal is None and pod_class.feasible.any():
        cache.score(pod_class)
        found |= {"scores": scores(pod_class), "total": pod_class.total.tolist()}
    return found


def scores(pod_class: EquivalenceClass) -> dict[str, list[int]]:
    return {
        column.plugin.name: column.final[pod_class.feasible].tolist()
        for column in pod_class.scores
        if not column.is_skipped
    }


@given(st.integers(0, 2**32))
def test_warm_relation_cache_equals_a_cold_one(seed: int) -> None:
    bench = Bench(seed)
    for number in range(STEPS):
        bench.step(number)
        for pod in bench.waiting:
            assert answers(bench.warm, pod) == answers(bench.cold(), pod), f"step {number}"
    bench.cache.validate()


@given(st.integers(0, 2**32))
def test_rows_evaluated_in_groups_get_their_individual_results(seed: int) -> None:
    bench = Bench(seed, MANY)
    for number in range(STEPS):
        bench.step(number)
        for pod in bench.waiting:
            said = answers(bench.warm, pod)
            assert said == answers(bench.cold(), pod), f"step {number}"
            assert said | row_by_row(bench, bench.warm.find(pod, 1), pod) == said, f"step {number}"


def test_rows_of_a_zone_are_evaluated_as_one() -> None:
    bench = Bench(2, MANY)
    document = bench.draw.pod("spread")
    document["spec"] = {
        "containers": [{"name": "c"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
    }
    pod_class = bench.warm.find(bench.decoder.pod(orjson.dumps(document)), 1)
    [column] = [column for column in pod_class.filters if column.plugin.name == "PodTopologySpread"]

    assert column.groups is not None
    assert column.groups.count == 4, "three zones, and the nodes without one"


def test_filter_reports_moved_rows_of_the_changed_domain_only() -> None:
    bench = Bench(2)
    for number in range(FEW):
        document = bench.draw.node(f"n{number}")
        document["metadata"]["labels"] = {"host": str(number)}
        bench.cache.set_node(bench.decoder.node(orjson.dumps(document)))
    waiting, first, second, third = (
        placed_alone(bench, name, node) for name, node in (("waiting", ""), ("a", "n0"), ("b", "n1"), ("c", "n1"))
    )
    [plugin] = [built.plugin for built in bench.plugins.built if isinstance(built.plugin, InterPodAffinity)]
    view = CycleView(bench.cache.nodes, CycleState())

    def moved() -> list[int] | None:
        plugin.pre_filter(view, waiting)
        rows = plugin.moved_rows(view, waiting)
        return None if rows is None else rows.tolist()

    bench.cache.place(first)
    assert moved() is None, "it was never asked about this state"
    bench.cache.place(second)
    assert moved() == [1]
    bench.cache.place(third)
    assert moved() == [], "there is one on that host already"
    bench.cache.remove(second.uid)
    bench.cache.remove(third.uid)
    assert moved() == [1]
    assert moved() == []


def placed_alone(bench: Bench, name: str, node: str) -> Pod:
    """It bears no other pod of its kind on its host."""
    document = bench.draw.pod(name, node)
    document["metadata"] |= {"labels": {"app": "alone"}, "namespace": "default"}
    term = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "alone"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    document["spec"] = {"containers": [{"name": "c"}], "affinity": affinity, "nodeName": node}
    return bench.decoder.pod(orjson.dumps(document))


def test_hard_spreading_only_filters_and_soft_spreading_only_scores() -> None:
    bench = Bench(2, MANY)
    for when, sides in (("DoNotSchedule", (True, False)), ("ScheduleAnyway", (False, True))):
        document = bench.draw.pod(when.lower())
        document["metadata"]["labels"] = {"app": "web"}
        selector = {"matchLabels": {"app": "web"}}
        spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": when, "labelSelector": selector}
        document["spec"] = {"containers": [{"name": "c"}], "topologySpreadConstraints": [spread]}
        pod = bench.decoder.pod(orjson.dumps(document))
        pod_class = bench.warm.find(pod, 1)
        bench.warm.score(pod_class)
        cache_key = pod_class.cache_keys["PodTopologySpread"]

        assert isinstance(cache_key, SplitCacheKey)
        assert (cache_key.filters is not None, cache_key.scores is not None) == sides
        assert "PodTopologySpread" in {c.plugin.name for c in (pod_class.filters if sides[0] else pod_class.scores)}
        assert "PodTopologySpread" not in {c.plugin.name for c in (pod_class.scores if sides[0] else pod_class.filters)}


@pytest.mark.parametrize("why", ["withheld", "unreadable"])
def test_pods_on_an_unschedulable_node_count_for_spreading(why: str) -> None:
    bench = Bench(2, 0)
    for name, zone in (("left", "a"), ("right", "b"), ("late", "b")):
        document = bench.draw.node(name)
        document["metadata"]["labels"] = {ZONE: zone}
        document["spec"] = {}
        if name == "late" and why == "unreadable":
            document["status"] = {"allocatable": {"cpu": "-1"}}
        bench.cache.set_node(bench.decoder.node(orjson.dumps(document)))
    late, right = bench.cache.nodes.row_of("late"), bench.cache.nodes.row_of("right")
    assert late is not None
    spread = {"maxSkew": 1, "topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}

    def pod(name: str, when: str, node: str = "") -> Pod:
        document = bench.draw.pod(name)
        document["metadata"] = {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}}
        rule = {**spread, "whenUnsatisfiable": when}
        document["spec"] = {"containers": [{"name": "c"}], "topologySpreadConstraints": [rule], "nodeName": node}
        return bench.decoder.pod(orjson.dumps(document))

    if why == "withheld":
        bench.rows.withhold(late, bench.cache.nodes.node(late))
    bench.cache.place(pod("there", "DoNotSchedule", "late"))
    hard = bench.warm.find(pod("hard", "DoNotSchedule"), 1)
    soft = bench.warm.find(pod("soft", "ScheduleAnyway"), 1)
    bench.warm.score(soft)
    by_node = dict(
        zip(soft.rows.tolist(), next(c.final for c in soft.scores if "Spread" in c.plugin.name), strict=True)
    )

    assert right in hard.rows.tolist()
    assert right not in hard.rows[hard.feasible].tolist()
    assert late not in hard.rows.tolist()
    assert by_node[right] < max(by_node.values())


def row_by_row(bench: Bench, pod_class: EquivalenceClass, pod: Pod) -> dict[str, Any]:
    """What the plugins say when they are asked about every row, in the form of `answers`."""
    if pod_class.refusal is not None:
        return {}
    ask = bench.runner
    codes = {
        c.plugin.name: ask.filter(c.plugin, pod_class.view, pod, pod_class.rows).tolist() for c in pod_class.filters
    }
    found: dict[str, Any] = {"codes": codes}
    feasible = pod_class.rows[pod_class.feasible]
    if len(feasible):
        found["scores"] = {
            c.plugin.name: ask.normalize(
                c.custom, pod_class.view, pod, ask.score(c.plugin, pod_class.view, pod, feasible)
            ).tolist()
            if c.custom is not None
            else c.final[pod_class.feasible].tolist()
            for c in pod_class.scores
            if not c.is_skipped
        }
    return found


def test_pod_without_relations_is_unaffected_by_pods_with_them() -> None:
    bench = Bench(1)
    document = bench.draw.pod("plain")
    document["spec"] = {"containers": [{"name": "c"}]}
    document["metadata"]["labels"] = {"nobody": "knows"}
    plain = bench.decoder.pod(orjson.dumps(document))
    bench.cache.place(bench.pod("first", "n0"))
    pod_class = bench.warm.find(plain, 1)

    assert {"PodTopologySpread", "InterPodAffinity"} == pod_class.silent
    assert pod_class.cache_keys == {}
    assert bench.warm.find(plain, 1) is pod_class
