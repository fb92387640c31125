"""Several PostFilter plugins in one profile: each has its own rule of who may go, and none reads what another found."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.results import Unplaced
from multisched.framework.node_view import Bools, Int64
from multisched.framework.points import CycleView, Plugin, PostFilterResult, Refusals
from multisched.framework.preemption import Costs, Nomination, PlacedPods, Preemption
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.plugins.default_preemption import DefaultPreemption
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain

IN_TREE = ("NodeResourcesFit",)
NODES = ("a", "b", "c")


class OfTeams:
    """A rule: pods of these teams may go, whatever their priority; the fewest victims are the best."""

    below = 2**40

    def __init__(self, teams: frozenset[str], *, by_size: bool = False) -> None:
        self.mark: Hashable = (teams, by_size)
        self._teams = teams
        self._by_size = by_size

    def displaceable(self, pods: PlacedPods) -> Bools:
        of_teams = [one.labels.get("team", "") in self._teams for one in pods.label_sets]
        return np.array([*of_teams, False], np.bool_)[pods.label_set] & (pods.priority < self.below)

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return np.zeros_like(displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        count = np.count_nonzero(victims, axis=0)
        return np.stack([-count if self._by_size else count]).astype(np.float64)


class Displaces:
    """A PostFilter plugin with a rule of its own."""

    def __init__(self, name: str, teams: str, *, goes_by_asker: bool = False, by_size: bool = False) -> None:
        """`goes_by_asker`: of the teams, only the one that the pod itself names may be displaced."""
        self.name = name
        self.by_size = by_size
        self._teams = frozenset(teams)
        self._goes_by_asker = goes_by_asker

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        teams = frozenset(pod.annotations.get("displaces", "")) if self._goes_by_asker else self._teams
        found = refusals.dry_run().displace(OfTeams(teams, by_size=self.by_size))
        if not len(found.rows):
            return PostFilterResult(Status.unschedulable(f"{self.name} finds nobody").by(self.name))
        best = int(found.costs[0].argmin())
        node = cycle.nodes.node(int(found.rows[best])).name
        return PostFilterResult(SUCCESS, node, Preemption(found.victims_at(best), (Nomination(pod, node),), self.name))


def domain_of(*plugins: Plugin) -> Domain:
    first, *more = plugins
    domain = Domain(*(make_node(name, cpu_milli=2000) for name in NODES), plugins=[first, *more], in_tree=IN_TREE)
    return domain


def stand(domain: Domain, name: str, node: str, team: str, *, cpu: int = 1000, priority: int = 9) -> None:
    domain.cache.place(
        make_pod(name, cpu_milli=cpu, priority=priority, node=node, labels={"team": team}, phase="Running")
    )


def preempted(domain: Domain, pod: Pod) -> tuple[str | None, list[str]]:
    result = domain.schedule(pod)
    assert isinstance(result, Unplaced), result
    return result.nominated_node, sorted(victim.name for victim in result.victims)


def test_second_post_filter_finds_victims_by_its_own_rule() -> None:
    """Found by review: it read that one's memory, by which the low pods that had to go were not enough."""
    domain = Domain(
        make_node("a", cpu_milli=2000),
        plugins=[Displaces("Teams", "x")],
        in_tree=IN_TREE,
        factories=[lambda context: DefaultPreemption(context)],
    )
    assert [plugin.name for plugin in domain.plugins.post_filter] == ["Teams", "DefaultPreemption"]
    behind = Domain(
        make_node("a", cpu_milli=2000), in_tree=(*IN_TREE, "DefaultPreemption"), plugins=[Displaces("Teams", "x")]
    )
    assert [plugin.name for plugin in behind.plugins.post_filter] == ["DefaultPreemption", "Teams"]
    for one in (domain, behind):
        stand(one, "low", "a", "y", cpu=500, priority=0)
        stand(one, "big", "a", "x", cpu=1500)
        for name in ("p", "q"):
            assert preempted(one, make_pod(name, cpu_milli=1500, priority=9)) == ("a", ["big"])


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_first_post_filter_with_victims_decides(order: str) -> None:
    domain = domain_of(*(Displaces(f"Of{team}", team) for team in order))
    stand(domain, "x", "a", "x")
    stand(domain, "y", "b", "y")
    for node in NODES:
        stand(domain, f"full-{node}", node, "z")
    stand(domain, "more", "c", "z")
    expected = {"x": ("a", ["x"]), "y": ("b", ["y"])}[order[0]]
    assert preempted(domain, make_pod("p", cpu_milli=1000, priority=9)) == expected
    assert preempted(domain, make_pod("q", cpu_milli=1000, priority=9)) == expected


def test_rule_results_are_not_shared_between_pods_of_a_class() -> None:
    domain = domain_of(Displaces("Asked", "", goes_by_asker=True))
    for team, node in zip("xyz", NODES, strict=True):
        stand(domain, team, node, team, cpu=2000)
    spec = make_pod("any", cpu_milli=2000, priority=9).spec
    for team, node in (*zip("xyz", NODES, strict=True), ("x", "a")):
        asker = make_pod(f"for-{team}-{node}", spec=spec, annotations={"displaces": team})
        assert preempted(domain, asker) == (node, [team])


def test_costs_follow_the_current_rule() -> None:
    plugin = Displaces("Sized", "x")
    domain = domain_of(plugin)
    stand(domain, "one", "a", "x", cpu=2000)
    for name in ("two", "three"):
        stand(domain, name, "b", "x")
    stand(domain, "other", "c", "z", cpu=2000)
    pod = make_pod("p", cpu_milli=2000, priority=9)
    assert preempted(domain, pod) == ("a", ["one"])
    plugin.by_size = True
    assert preempted(domain, pod) == ("b", ["three", "two"])
    plugin.by_size = False
    assert preempted(domain, pod) == ("a", ["one"])


standings = st.lists(
    st.tuples(
        st.sampled_from(NODES), st.sampled_from("xyz"), st.sampled_from((500, 1000, 2000)), st.sampled_from((0, 9))
    ),
    min_size=3,
    max_size=9,
)
orders = st.permutations(["DefaultPreemption", "OfX", "OfXy", "Asked"])


@given(
    standings,
    orders,
    st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from((1000, 2000))), min_size=1, max_size=5),
)
def test_used_plugins_decide_as_fresh_ones(
    standing: list[tuple[str, str, int, int]], order: Sequence[str], askers: list[tuple[str, int]]
) -> None:
    def made() -> Domain:
        rules: dict[str, Plugin] = {
            "OfX": Displaces("OfX", "x"),
            "OfXy": Displaces("OfXy", "xy"),
            "Asked": Displaces("Asked", "", goes_by_asker=True),
        }
        domain = Domain(
            *(make_node(name, cpu_milli=2000) for name in NODES),
            in_tree=IN_TREE,
            factories=[
                (lambda context: DefaultPreemption(context))
                if name not in rules
                else (lambda rule: lambda context: rule)(rules[name])
                for name in order
            ],
        )
        for number, (node, team, cpu, priority) in enumerate(standing):
            stand(domain, f"s{number}", node, team, cpu=cpu, priority=priority)
        return domain

    warm = made()
    for number, (team, cpu) in enumerate(askers):
        pod = make_pod(f"p{number}", cpu_milli=cpu, priority=5, annotations={"displaces": team})
        found, expected = warm.schedule(pod), made().schedule(pod)
        assert type(found) is type(expected)
        if isinstance(found, Unplaced) and isinstance(expected, Unplaced):
            assert (found.nominated_node, found.message) == (expected.nominated_node, expected.message)
            assert {v.name for v in found.victims} == {v.name for v in expected.victims}
        else:
            warm.cache.forget(pod.uid)
    assert warm.heard.failures == []
