"""A PreFilter that refuses by what pods hold of a ledger about the cluster: dry runs ask it again without the victims."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.cycle.preemption import dry_run
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.registry import PluginSetupError, PluginUse, Registry
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.model.objects import CPU, Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_context, make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain
from tests.unit.cycle.preemption.test_gang_victims import victims
from tests.unit.cycle.preemption.test_group_preemption import state_of
from tests.unit.cycle.preemption.test_preemption import DAY_S, standing
from tests.unit.state.gang_kit import GANG_LABEL, cache_with_gangs, place, set_minimum
from tests.unit.state.state_kit import NamespaceRoom

IN_TREE = ("NodeResourcesFit", "DefaultPreemption")
MAX_MILLI = 2000
FULL = "the quota of its namespace is used up"


class RoomOfNamespace(NamespaceRoom):
    """Of the plugin below."""

    plugin = "AtPreFilter"


class AtPreFilter:
    """PreFilter refuses pods for which their namespace has no room left; Filter knows nothing of it."""

    name = "AtPreFilter"
    depends_on = Dependency.CACHE_KEY
    traits = Traits(pre_filter_reads_pods=True)

    def __init__(self, context: PluginContext) -> None:
        room = context.hold.register(RoomOfNamespace(MAX_MILLI))
        assert isinstance(room, RoomOfNamespace)
        self.room = room
        self.asked = 0
        self.fails_at = -1

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable:
        return self.room.version()

    def sign(self, pod: Pod) -> Hashable:
        return pod.namespace, pod.requests.get(CPU, 0)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        self.asked += 1
        if self.asked == self.fails_at:
            raise RuntimeError("boom")
        return PreFilterResult(Status.unschedulable(FULL)) if self.room.fits(pod) else PreFilterResult()


class Sensitive(AtPreFilter):
    """Says, too, that only pods of the same namespace matter."""

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        return PodSensitivity(pod.namespace, lambda other: other.namespace == pod.namespace)


class Untold(AtPreFilter):
    """Does not say that its PreFilter reads pods."""

    traits = Traits()


def make_domain(
    *pods: Pod, plugin: type[AtPreFilter] = AtPreFilter, cpus: int = 8, cache: ClusterCache | None = None
) -> Domain:
    nodes = [make_node(name, cpu_milli=cpus * 1000) for name in "abc"]
    domain = Domain(
        *nodes, in_tree=IN_TREE, factories=[plugin], cache=cache if cache is not None else cache_with_gangs()
    )
    for pod in pods:
        place(domain.cache, pod)
    return domain


def plugin_of(domain: Domain) -> AtPreFilter:
    return next(p for p in domain.plugins.pre_filter if isinstance(p, AtPreFilter))


def red(name: str, node: str, cpu: int = 1000, **fields: Any) -> Pod:
    return standing(name, node, cpu=cpu, namespace="red", **fields)


def preemptor(cpu: int = 1000) -> Pod:
    return make_pod("p", cpu_milli=cpu, priority=9, namespace="red")


def test_preemption_evicts_the_quota_holder() -> None:
    others = [standing(f"blue-{node}", node, start=DAY_S + 9) for node in "ab"]
    domain = make_domain(red("red-b", "b"), red("red-c", "c", start=DAY_S + 1), *others)
    before = state_of(domain)
    assert victims(domain, preemptor()) == ("c", {"c": ["red-c"]})
    assert state_of(domain) == before
    domain.cache.remove("uid-red-c")
    assert isinstance(domain.schedule(preemptor()), Placed)


def test_preemption_for_a_quota_needs_the_plugin_trait() -> None:
    domain = make_domain(red("red-b", "b"), red("red-c", "c"), plugin=Untold)
    result = domain.schedule(preemptor())
    assert isinstance(result, Unplaced)
    assert "expected at least one victim pod" in result.message


def test_victims_free_capacity_on_the_node_and_in_the_quota() -> None:
    pods = [red("red-a", "a", cpu=500), standing("blue-a", "a", cpu=1500), red("red-b", "b", cpu=1500, priority=9)]
    domain = make_domain(*pods, standing("blue-b", "b", cpu=500), standing("blue-c", "c", cpu=2000, priority=9), cpus=2)
    assert victims(domain, preemptor(500)) == ("a", {"a": ["red-a"]})
    assert victims(domain, preemptor(600)) == ("", {}), (
        "the quota would need another 100m, and only a higher one has them"
    )


def test_message_counts_nodes_on_which_the_quota_would_still_refuse() -> None:
    domain = make_domain(red("red-a", "a", cpu=500), red("red-b", "b", cpu=1500, priority=9), standing("blue-b", "b"))
    result = domain.schedule(preemptor(1000))
    assert isinstance(result, Unplaced)
    assert (result.nominated_node, result.victims) == ("", ())
    assert result.message == (
        f"0/3 nodes are available: {FULL}. preemption: 0/3 nodes are available: "
        f"1 No preemption victims found for incoming pod, 2 {FULL}."
    )


def with_gang(least: int) -> ClusterCache:
    cache = cache_with_gangs()
    set_minimum(cache, "g", least, "red")
    return cache


def test_gang_is_evicted_whole_for_a_quota() -> None:
    pods = [red(f"g{number}", node, labels={GANG_LABEL: "g"}, start=DAY_S + number) for number, node in enumerate("ab")]
    assert victims(make_domain(*pods, cache=with_gang(2)), preemptor(1000)) == ("a", {"a": ["g0"], "b": ["g1"]})
    assert victims(make_domain(*pods, cache=with_gang(1)), preemptor(1000)) == ("b", {"b": ["g1"]})
    assert victims(make_domain(*pods, cache=with_gang(2)), preemptor(2000)) == ("a", {"a": ["g0"], "b": ["g1"]})
    alone = [red(pod.name, pod.node) for pod in pods]
    assert victims(make_domain(*alone), preemptor(2000)) == ("", {}), "one node's pods are not enough"


def test_rows_without_relevant_pods_are_not_evaluated() -> None:
    others = [standing(f"blue-{node}-{number}", node, cpu=100) for node in "abc" for number in range(9)]
    asked = []
    for plugin in (AtPreFilter, Sensitive):
        domain = make_domain(red("red-b", "b", cpu=2000), *others, plugin=plugin)
        assert victims(domain, preemptor()) == ("b", {"b": ["red-b"]})
        asked.append(plugin_of(domain).asked)
    assert asked[1] < asked[0]


def test_nodes_with_the_lowest_priority_pods_are_evaluated_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "PRE_FILTER_ROWS_MAX", 1)
    domain = make_domain(
        red("red-a", "a", cpu=500, priority=2), red("red-b", "b", cpu=1000), red("red-c", "c", cpu=500)
    )
    assert victims(domain, preemptor()) == ("b", {"b": ["red-b"]})
    domain.cache.remove("uid-red-b")
    domain.cache.place(red("equal", "b", cpu=1000, priority=9))
    result = domain.schedule(preemptor())
    assert isinstance(result, Unplaced)
    assert result.message.endswith(f"1 No preemption victims found for incoming pod, 2 {FULL}.")


def test_pod_within_its_quota_is_not_evaluated_again() -> None:
    domain = make_domain(red("red-a", "a", cpu=1000), standing("blue-b", "b"), standing("blue-c", "c"), cpus=1)
    plugin = plugin_of(domain)
    assert victims(domain, preemptor(1000)) == ("a", {"a": ["red-a"]})
    asked, plugin.asked = plugin.asked, 0
    assert victims(domain, preemptor(1000)) == ("a", {"a": ["red-a"]})
    assert plugin.asked <= asked <= 3


@pytest.mark.parametrize("fails_at", range(1, 8))
def test_raising_plugin_leaves_its_ledger_unchanged(fails_at: int) -> None:
    domain = make_domain(red("red-a", "a"), red("red-b", "b", cpu=500), red("also-b", "b", cpu=500))
    before = state_of(domain)
    plugin_of(domain).fails_at = fails_at
    result = domain.schedule(preemptor())
    assert isinstance(result, Unplaced)
    assert "boom" in result.message
    assert state_of(domain) == before
    plugin_of(domain).fails_at = -1
    assert victims(domain, preemptor()) == ("a", {"a": ["red-a"]})


class Narrowing(AtPreFilter):
    """Leaves only the node that the quota names once it has room."""

    name = "AtPreFilter"

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult(super().pre_filter(cycle, pod).status, frozenset({"b"}))


def test_node_excluded_by_a_later_pre_filter_is_not_cleared() -> None:
    domain = make_domain(red("red-a", "a", start=DAY_S + 9), red("red-b", "b"), plugin=Narrowing)
    assert victims(domain, preemptor()) == ("b", {"b": ["red-b"]})


class CountsTwice(AtPreFilter):
    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return SUCCESS


def test_plugin_with_pre_filter_extensions_is_not_rerun() -> None:
    registry = Registry()
    registry.add("CountsTwice", CountsTwice, "here")
    with pytest.raises(PluginSetupError, match="replaces add_pod and remove_pod; remove one of them"):
        registry.build(PluginUse("CountsTwice"), make_context())


# -- against plain arithmetic --------------------------------------------------------------------------------------------


@st.composite
def scenes(draw: st.DrawFn) -> list[Pod]:
    return [
        standing(
            f"s{number}",
            draw(st.sampled_from("abc")),
            cpu=draw(st.sampled_from([250, 500, 1000])),
            priority=draw(st.sampled_from([0, 0, 3, 9])),
            start=DAY_S + number,
            namespace=draw(st.sampled_from(["red", "red", "blue"])),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


def fits(pods: Iterable[Pod], node: str, cpu: int) -> bool:
    on_node = sum(pod.requests[CPU] for pod in pods if pod.node == node)
    of_quota = sum(pod.requests[CPU] for pod in pods if pod.namespace == "red")
    return on_node + cpu <= 2000 and of_quota + cpu <= MAX_MILLI


@pytest.mark.parametrize("plugin", [AtPreFilter, Sensitive], ids=["all rows", "sensitive rows"])
@given(scenes(), st.sampled_from([500, 1000, 2000]))
@settings(deadline=None)
def test_victims_of_one_node_suffice_for_node_and_quota_and_are_minimal(
    plugin: type[AtPreFilter], pods: list[Pod], cpu: int
) -> None:
    domain = make_domain(*pods, plugin=plugin, cpus=2)
    before = state_of(domain)
    result = domain.schedule(preemptor(cpu))
    if isinstance(result, Placed):
        assert any(fits(pods, node, cpu) for node in "abc")
        return
    assert isinstance(result, Unplaced)
    assert state_of(domain) == before
    lower = {node: [p for p in pods if p.node == node and p.spec.priority < 9] for node in "abc"}
    curable = [node for node in "abc" if lower[node] and fits([p for p in pods if p not in lower[node]], node, cpu)]
    if result.preemption is None:
        assert not curable
        return
    node = result.nominated_node or ""
    gone = result.preemption.victims[node]
    assert node in curable
    assert set(result.preemption.victims) == {node}
    assert fits([p for p in pods if p not in gone], node, cpu)
    for one in gone:
        assert not fits([p for p in pods if p not in gone or p is one], node, cpu)
