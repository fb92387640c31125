"""Preemption for pods that must start together: few victims, all of them needed, and no trace of the search."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations, count, takewhile
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.cycle.effort import Effort
from multisched.cycle.preemption import group_trial
from multisched.cycle.preemption.group_dry_run import GroupAttemptDryRun
from multisched.cycle.preemption.group_trial import GroupOfPods
from multisched.cycle.preemption.post_filter import PostFilterOutcome
from multisched.cycle.preemption.victim_units import run_unpaused
from multisched.framework.dependency import Dependency
from multisched.framework.points import CycleView, PostFilterResult
from multisched.framework.preemption import GroupDryRun, GroupVictims, Preemption
from multisched.framework.status import SUCCESS, Status
from multisched.framework.step_budget import UNLIMITED
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, Pod
from multisched.model.placement import PodAffinity, PodAffinityTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.plugins.default_preemption import LowerPriority
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.testing.builders import make_node, make_pod
from tests.kit.counted_steps import CountedSteps
from tests.unit.cycle.cycle_kit import Domain, FilterBy
from tests.unit.cycle.preemption.test_gang_victims import member
from tests.unit.cycle.preemption.test_preemption import DAY_S, budget, standing
from tests.unit.cycle.test_cluster_quota import NamespaceQuota, room_of
from tests.unit.state.gang_kit import GANG_LABEL, PlainGangs, cache_with_gangs, place, subsets_of

HOST = "kubernetes.io/hostname"
IN_TREE = ("NodeResourcesFit", "DefaultPreemption")
NONE: Mapping[str, int] = {}
RELATED = ("NodeResourcesFit", "InterPodAffinity", "DefaultPreemption")


def make_domain(
    nodes: Mapping[str, int],
    pods: Iterable[Pod] = (),
    *,
    in_tree: Sequence[str] = IN_TREE,
    plugins: Sequence[Any] = (),
    factories: Sequence[Any] = (),
    minimums: Mapping[str, int] = NONE,
) -> Domain:
    """`nodes`: name -> CPUs. `minimums`: gang -> its minimum."""
    made = [
        make_node(name, cpu_milli=cpus * 1000, labels={HOST: name, "zone": name[0]}) for name, cpus in nodes.items()
    ]
    cache = cache_with_gangs(**minimums)
    domain = Domain(*made, in_tree=in_tree, cache=cache, plugins=plugins, factories=factories)
    for pod in pods:
        place(domain.cache, pod)
    return domain


def group_of(count: int, *, cpu: int = 1000, priority: int = 9, **fields: Any) -> GroupOfPods:
    pods = tuple(make_pod(f"m{number}", cpu_milli=cpu, priority=priority, **fields) for number in range(count))
    return GroupOfPods("default/train", pods)


def run(domain: Domain, group: GroupOfPods) -> PostFilterOutcome:
    """Leaves everything as it was, whatever comes of it, and comes to the same if it pauses after each evaluation."""
    before = state_of(domain)
    found = run_unpaused(domain.cycle.group_post_filters.run(group, Effort(UNLIMITED)))
    assert state_of(domain) == before
    if "boom" not in found.sentence:
        assert told(paused(domain, group)) == told(found)
    return found


def paused(domain: Domain, group: GroupOfPods) -> PostFilterOutcome:
    """The same by a search that pauses after each evaluation: during a pause everything is as it was."""
    before, steps = state_of(domain), CountedSteps(1)
    search = domain.cycle.group_post_filters.run(group, Effort(steps, pauses_max=1_000_000))
    while True:
        steps.begin()
        try:
            next(search)
        except StopIteration as ended:
            assert state_of(domain) == before
            found: PostFilterOutcome = ended.value
            return found
        assert state_of(domain) == before
        assert steps.longest <= 2


def told(found: PostFilterOutcome) -> object:
    preemption = found.preemption
    victims = None if preemption is None else {node: set(pods) for node, pods in preemption.victims.items()}
    return found.sentence, victims, preemption and preemption.nominations


def preempted(domain: Domain, group: GroupOfPods) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The victims by node, and the node of each member."""
    preemption = run(domain, group).preemption
    if preemption is None:
        return {}, {}
    victims = {node: [pod.name for pod in pods] for node, pods in preemption.victims.items()}
    return victims, {pod.name: node for pod, node in preemption.nominations}


def state_of(domain: Domain) -> object:
    """All that anybody could read but versions."""
    cache, nominator = domain.cache, domain.nominator
    cache.validate()
    nodes = cache.nodes
    rows = [row for row, _ in nodes.live_rows()]
    return (
        {name: nodes.requested(name).tolist() for name in nodes.resources},
        nodes.pod_count.tolist(),
        [[pod.uid for pod in nodes.pods_on(row)] for row in rows],
        {e.pod.uid: (e.node, e.row, e.state, e.pod) for e in cache},
        [dict(ledger.held()) for ledger in cache.ledgers],
        dict(cache.ledgers.broken),
        {pod.uid: (pod.nominated_node, nominator.rank_of(pod)) for pod in nominator.pods()},
        cache.pod_changes.end,
    )


# -- who goes ------------------------------------------------------------------------------------------------------------


def test_members_that_run_are_not_evicted_whole_for_the_rest_of_their_gang() -> None:
    """Two of three members run, which is below the minimum: evicting both for the third would only restart the gang."""
    running = [member("g1", "a"), member("g2", "a")]
    for others, expected in (([], {}), ([standing("alone", "b", priority=5)], {"b": ["alone"]})):
        domain = make_domain({"a": 2, "b": 1} if others else {"a": 2}, [*running, *others], minimums={"g": 3})
        group = group_of(1, labels={GANG_LABEL: "g"})
        domain.cache.gangs.set(group.pods[0])
        assert preempted(domain, group)[0] == expected


def test_group_preemption_evicts_only_pods_in_the_way() -> None:
    pods = [standing(f"low-{node}", node, start=DAY_S + number) for number, node in enumerate("abcd")]
    domain = make_domain(dict.fromkeys("abcd", 1), pods)
    victims, places = preempted(domain, group_of(2))
    assert victims == {"c": ["low-c"], "d": ["low-d"]}, "they have started last"
    assert sorted(places.values()) == ["c", "d"]


def test_group_preemption_uses_free_capacity_first() -> None:
    pods = [standing("low", "a"), standing("equal", "b", cpu=500, priority=9)]
    assert preempted(make_domain({"a": 1, "b": 2}, pods), group_of(2)) == ({"a": ["low"]}, {"m0": "b", "m1": "a"})


def test_lowest_member_priority_limits_the_victims() -> None:
    group = GroupOfPods(
        "default/train", (make_pod("m0", cpu_milli=1000, priority=9), make_pod("m1", cpu_milli=1000, priority=5))
    )
    assert preempted(make_domain({"a": 2}, [standing("mid", "a", cpu=1000, priority=5)]), group) == ({}, {})
    assert preempted(make_domain({"a": 2}, [standing("low", "a", cpu=1000, priority=4)]), group)[0] == {"a": ["low"]}


def test_group_with_a_never_preempting_member_does_not_preempt() -> None:
    group = group_of(2)
    spec = msgspec.structs.replace(group.pods[1].spec, can_preempt=False)
    group = msgspec.structs.replace(group, pods=(group.pods[0], msgspec.structs.replace(group.pods[1], spec=spec)))
    found = run(make_domain({"a": 2}, [standing("low", "a")]), group)
    assert (found.sentence, found.preemption) == ("preemption: not eligible due to preemptionPolicy=Never.", None)


def test_group_waits_for_deleting_victims_of_a_nominated_node() -> None:
    group = group_of(2)
    group = msgspec.structs.replace(
        group, pods=(group.pods[0], msgspec.structs.replace(group.pods[1], nominated_node="b"))
    )
    pods = [standing("low", "a"), standing("going", "b", is_deleting=True, is_preempted=True)]
    found = run(make_domain({"a": 1, "b": 1}, pods), group)
    assert found.sentence == "preemption: not eligible due to a terminating pod on the nominated node."
    assert found.nominated_node is None, "its members keep the nodes that are being cleared for them"


def test_group_reports_that_no_victims_are_enough() -> None:
    found = run(make_domain({"a": 1, "b": 1}, [standing("low", "a"), standing("equal", "b", priority=9)]), group_of(2))
    text = "preemption: No preemption victims found that would make room for all that must start together."
    assert (found.sentence, found.preemption, found.nominated_node) == (text, None, "")


def test_group_without_nodes_calls_no_post_filter() -> None:
    assert run(make_domain({}), group_of(3)) == PostFilterOutcome(nominated_node="")


def test_group_that_fits_without_victims_is_an_error() -> None:
    assert run(make_domain({"a": 2}, [standing("low", "a", cpu=100)]), group_of(1)).preemption is None
    low = standing("low", "a", cpu=100)
    assert run(make_domain({"a": 2}, [low]), group_of(1)).sentence == "preemption: expected at least one victim pod"


def test_group_without_displaceable_pods_is_refused_before_any_placement() -> None:
    high = standing("high", "a", priority=9)
    assert "No preemption victims" in run(make_domain({"a": 1}, [high]), group_of(1)).sentence


def interrupted(domain: Domain, group: GroupOfPods, at: int, change: Callable[[], object]) -> PostFilterOutcome | None:
    """A search that pauses after each evaluation, in whose pause `at` the cluster changes; None: it ended before."""
    search = domain.cycle.group_post_filters.run(group, Effort(CountedSteps(1), pauses_max=1_000_000))
    for pauses in count(1):
        try:
            next(search)
        except StopIteration as ended:
            found: PostFilterOutcome = ended.value
            return found if pauses > at else None
        if pauses == at:
            change()
    raise AssertionError("the search does not end")


def taken_meanwhile(at: int) -> PostFilterOutcome | None:
    """A search for two pods, during which another plan takes the surplus of gang g on node b."""
    pods = [member(f"g{number}", "ab"[number % 2]) for number in range(6)]
    domain = make_domain({"a": 3, "b": 3}, pods, minimums={"g": 4})

    def take() -> None:
        for uid in ("uid-g1", "uid-g3"):
            domain.cache.set_victim(uid, is_victim=True)

    return interrupted(domain, group_of(2), at, take)


def test_victims_decided_during_a_pause_count_against_the_surplus() -> None:
    ends = list(takewhile(lambda one: one is not None, map(taken_meanwhile, count(1))))
    assert len(ends) > 5
    for end in ends:
        taken = {pod.name for pod in end.preemption.every_victim} if end and end.preemption else set[str]()
        assert len({f"g{number}" for number in range(6)} - taken - {"g1", "g3"}) in (0, 4)


def left_meanwhile(at: int) -> tuple[set[str], set[str]] | None:
    """A search for one of two topology domains, during which a pod ends. Returns the victims, and the pods that are there."""
    pods = [standing(f"{node}{number}", node, priority=int(node == "b")) for node in "ab" for number in range(2)]
    domain = make_domain({"a": 2, "b": 2}, pods)
    masks = tuple(np.array([row == at for row in range(len(domain.cache.nodes.pod_count))]) for at in range(2))
    group = msgspec.structs.replace(group_of(2), domains=masks)
    found = interrupted(domain, group, at, partial(domain.cache.remove, "uid-a0"))
    if found is None:
        return None
    assert found.preemption is not None
    return {pod.uid for pod in found.preemption.every_victim}, set(domain.cache.uids())


def test_failed_domain_search_restores_its_victims() -> None:
    ends = list(takewhile(lambda one: one is not None, map(left_meanwhile, count(1))))
    assert len(ends) > 5
    for end in ends:
        assert end is not None
        victims, there = end
        assert victims <= there


def ended_meanwhile(ended: Sequence[int], at: int) -> int | None:
    """A search for three pods on a full node of six, during which some of these six end. Returns the number of victims."""
    domain = make_domain({"a": 6}, [standing(f"a{number}", "a") for number in range(6)])

    def end() -> None:
        for number in ended:
            domain.cache.remove(f"uid-a{number}")

    found = interrupted(domain, group_of(3), at, end)
    if found is None:
        return None
    return 0 if found.preemption is None else len(found.preemption.every_victim)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pods_that_ended_during_a_pause_leave_fewer_victims(size: int) -> None:
    for ended in combinations(range(6), size):
        found = list(takewhile(lambda one: one is not None, map(partial(ended_meanwhile, ended), count(1))))
        assert len(found) > 5
        assert found == [3 - size] * len(found), ended


def test_budgets_are_violated_only_as_the_last_resort() -> None:
    pods = [
        standing("kept", "a", labels={"app": "kept"}),
        standing("b", "b", priority=5),
        standing("c", "c", priority=5),
    ]
    domain = make_domain(dict.fromkeys("abc", 1), pods)
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("kept", "kept", 0))
    assert preempted(domain, group_of(2))[0] == {"b": ["b"], "c": ["c"]}
    assert preempted(domain, group_of(3))[0] == {"a": ["kept"], "b": ["b"], "c": ["c"]}


def test_group_evicts_no_pod_while_budgets_are_unreadable() -> None:
    domain = make_domain({"a": 1}, [standing("low", "a")])
    domain.cache.objects.set_unreadable(ObjectKind.POD_DISRUPTION_BUDGET, "forbidden")
    found = run(domain, group_of(1))
    assert found.sentence == "preemption: not tried, since PodDisruptionBudgets cannot be read: forbidden"


def test_group_preemption_evicts_gang_surplus_before_whole_gangs() -> None:
    nodes = dict.fromkeys("abcd", 1)
    pods = [member(f"g-{node}", node, start=DAY_S + number) for number, node in enumerate("abc")]
    pods.append(standing("equal", "d", priority=9))
    assert preempted(make_domain(nodes, pods, minimums={"g": 2}), group_of(1))[0] == {"c": ["g-c"]}
    assert preempted(make_domain(nodes, pods, minimums={"g": 3}), group_of(1))[0] == {
        "a": ["g-a"],
        "b": ["g-b"],
        "c": ["g-c"],
    }
    assert preempted(make_domain(nodes, pods, minimums={"g": 2}), group_of(2))[0] == {
        "a": ["g-a"],
        "b": ["g-b"],
        "c": ["g-c"],
    }
    assert preempted(make_domain(nodes, pods, minimums={"g": 1}), group_of(2))[0] == {"b": ["g-b"], "c": ["g-c"]}


def test_single_pods_are_evicted_before_gangs_of_equal_priority() -> None:
    pods = [member("g1", "a"), member("g2", "b"), standing("alone", "c", start=DAY_S - 100)]
    assert preempted(make_domain(dict.fromkeys("abc", 1), pods, minimums={"g": 2}), group_of(1))[0] == {"c": ["alone"]}
    pods[2] = standing("alone", "c", priority=1)
    assert preempted(make_domain(dict.fromkeys("abc", 1), pods, minimums={"g": 2}), group_of(1))[0] == {
        "a": ["g1"],
        "b": ["g2"],
    }


def test_preemption_has_the_names_of_group_and_plugin() -> None:
    preemption = run(make_domain({"a": 1}, [standing("low", "a")]), group_of(1)).preemption
    assert preemption is not None
    assert (preemption.group, preemption.plugin, preemption.rank) == ("default/train", "DefaultPreemption", None)


def test_members_are_placed_only_on_allowed_nodes() -> None:
    pods = [standing(f"low-{node}", node, start=DAY_S - ord(node[0])) for node in ("a1", "a2", "b1", "b2")]
    domain = make_domain(dict.fromkeys(("a1", "a2", "b1", "b2"), 1), pods)
    allowed = np.array([name[0] == "a" for name in ("a1", "a2", "b1", "b2")])
    group = msgspec.structs.replace(group_of(2), allowed=allowed)
    assert preempted(domain, group)[0] == {"a1": ["low-a1"], "a2": ["low-a2"]}
    assert preempted(domain, msgspec.structs.replace(group_of(3), allowed=allowed)) == ({}, {})


def test_nominated_member_keeps_its_node() -> None:
    domain = make_domain(dict.fromkeys("abc", 1), [standing("low", "a"), standing("equal", "b", priority=9)])
    group = group_of(2)
    domain.nominator.nominate(group.pods[0], "c", 77)
    named = msgspec.structs.replace(group.pods[0], nominated_node="c")
    group = msgspec.structs.replace(group, pods=(named, group.pods[1]))
    assert preempted(domain, group) == ({"a": ["low"]}, {"m0": "c", "m1": "a"})


def test_capacity_of_earlier_nominated_pods_is_kept() -> None:
    domain = make_domain(dict.fromkeys("ab", 1), [standing("low-a", "a", start=DAY_S + 1), standing("low-b", "b")])
    domain.nominator.nominate(make_pod("before", cpu_milli=500, priority=9), "a")
    domain.nominator.nominate(make_pod("behind", cpu_milli=500, priority=8), "b")
    assert preempted(domain, group_of(1)) == ({"b": ["low-b"]}, {"m0": "b"})
    assert preempted(domain, group_of(2)) == ({}, {})


# -- rules about others, and room of the cluster -------------------------------------------------------------------------


def apart() -> PodAffinity:
    term = PodAffinityTerm(HOST, LabelSelector((Requirement("app", Operator.IN, ("train",)),)))
    return PodAffinity(anti_required=(term,))


def test_members_with_anti_affinity_get_separate_nodes() -> None:
    pods = [standing(f"low-{node}", node, start=DAY_S + number) for number, node in enumerate("abc")]
    domain = make_domain(dict.fromkeys("abc", 2), pods, in_tree=RELATED)
    group = group_of(3, cpu=1500, labels={"app": "train"})
    members = tuple(
        msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, pod_affinity=apart())) for pod in group.pods
    )
    victims, places = preempted(domain, msgspec.structs.replace(group, pods=members))
    assert victims == {node: [f"low-{node}"] for node in "abc"}
    assert sorted(places.values()) == ["a", "b", "c"]
    domain.cache.remove("uid-low-a")
    place(domain.cache, standing("train", "a", priority=9, labels={"app": "train"}))
    assert preempted(domain, msgspec.structs.replace(group, pods=members)) == ({}, {})


def test_pods_that_a_member_has_affinity_to_are_not_evicted() -> None:
    near = PodAffinity(required=(PodAffinityTerm(HOST, LabelSelector((Requirement("app", Operator.IN, ("db",)),))),))
    pods = [standing("db", "a", labels={"app": "db"}), standing("other", "a", start=DAY_S + 9)]
    domain = make_domain({"a": 2, "b": 2}, pods, in_tree=RELATED)
    group = group_of(1)
    spec = msgspec.structs.replace(group.pods[0].spec, pod_affinity=near)
    group = msgspec.structs.replace(group, pods=(msgspec.structs.replace(group.pods[0], spec=spec),))
    assert preempted(domain, group)[0] == {"a": ["other"]}


def test_pods_on_other_nodes_are_evicted_for_a_shared_quota() -> None:
    domain = make_domain({"a": 8, "b": 8}, in_tree=IN_TREE, factories=[NamespaceQuota])
    room_of(domain)
    for name, node, namespace, start in (
        ("mine-1", "a", "red", 1),
        ("mine-2", "b", "red", 2),
        ("blue", "a", "blue", 3),
    ):
        place(domain.cache, standing(name, node, cpu=500, namespace=namespace, start=DAY_S + start))
    group = group_of(2, cpu=250, namespace="red")
    victims, places = preempted(domain, group)
    assert victims == {"b": ["mine-2"]}
    assert set(places) == {"m0", "m1"}
    assert preempted(domain, group_of(3, cpu=250, namespace="red"))[0] == {"a": ["mine-1"], "b": ["mine-2"]}
    assert preempted(domain, group_of(5, cpu=250, namespace="red")) == ({}, {})


def test_quota_victims_may_be_on_nodes_that_members_cannot_use() -> None:
    domain = make_domain({"a": 8, "b": 8}, in_tree=IN_TREE, factories=[NamespaceQuota])
    room_of(domain)
    place(domain.cache, standing("mine", "a", cpu=1000, namespace="red"))
    group = msgspec.structs.replace(group_of(2, cpu=250, namespace="red"), allowed=np.array([False, True]))
    assert preempted(domain, group) == ({"a": ["mine"]}, {"m0": "b", "m1": "b"})


# -- what fails, and what ends -------------------------------------------------------------------------------------------


class FailsLater(FilterBy):
    """Filter raises after it was asked so many times."""

    def __init__(self, asked_max: int) -> None:
        super().__init__("FailsLater", lambda pod, name: "", depends_on=Dependency.ROW, sign=lambda pod: ())
        self._left = asked_max

    def filter(self, cycle: Any, pod: Pod, rows: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("boom")
        return super().filter(cycle, pod, rows)


@pytest.mark.parametrize("asked_max", range(8))
def test_raising_plugin_fails_the_group_attempt_without_a_trace(asked_max: int) -> None:
    pods = [standing(f"low-{node}", node, start=DAY_S + number) for number, node in enumerate("abcd")]
    domain = make_domain(dict.fromkeys("abcd", 1), pods, plugins=[FailsLater(asked_max)])
    domain.nominator.nominate(make_pod("m0", cpu_milli=1000, priority=9), "a", 50)
    found = run(domain, group_of(3))
    assert found.preemption is None
    assert "boom" in found.sentence


def dry_run(domain: Domain, group: GroupOfPods) -> GroupVictims | None:
    filters = domain.cycle.group_post_filters
    rule = LowerPriority(9, DisruptionBudgets(domain.cache.objects))
    effort = Effort(UNLIMITED)
    return run_unpaused(
        GroupAttemptDryRun("Tests", filters._runs, filters._rows, filters._places, group, effort).displace(rule)
    )


def test_search_over_its_limit_returns_victims_not_shown_to_be_minimal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = [standing(f"low-{number}", "a", cpu=500, start=DAY_S + number) for number in range(8)]
    domain = make_domain({"a": 4}, pods)
    whole = dry_run(domain, group_of(3, cpu=700))
    assert whole is not None
    assert (whole.is_minimal, [pod.name for pod in whole.victims["a"]]) == (True, [f"low-{n}" for n in range(3, 8)])
    monkeypatch.setattr(group_trial, "PLACINGS_MAX", 1)
    before = state_of(domain)
    found = dry_run(domain, group_of(3, cpu=700))
    assert state_of(domain) == before
    assert found is not None
    assert not found.is_minimal
    assert {pod.name for pod in found.victims["a"]} >= {f"low-{n}" for n in range(3, 8)}


def test_equal_members_need_one_placement_per_unit_to_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many of them stand on its node."""
    domain = make_domain({"a": 30}, [standing(f"low-{number}", "a", cpu=1000) for number in range(30)])
    monkeypatch.setattr(group_trial, "PLACINGS_MAX", 150)
    found = dry_run(domain, group_of(30))
    assert found is not None
    assert (found.is_minimal, len(found.victims["a"])) == (True, 30)


@pytest.mark.parametrize(
    ("tries", "victims"), [(64, {"a": ["little"], "b": ["low"]}), (0, {"a": ["mid", "little"], "b": ["low"]})]
)
def test_unit_is_restored_by_moving_other_members(
    monkeypatch: pytest.MonkeyPatch, tries: int, victims: dict[str, list[str]]
) -> None:
    """The small member stands where the large one could go, and could itself stand beside `mid`."""
    monkeypatch.setattr(group_trial, "WHOLE_TRIES_MAX", tries)
    pods = [
        standing("mid", "a", cpu=2000, priority=5),
        standing("little", "a", priority=4),
        standing("low", "b", cpu=3000),
    ]
    domain = make_domain({"a": 3, "b": 3}, pods)
    small, large = make_pod("small", cpu_milli=1000, priority=9), make_pod("large", cpu_milli=3000, priority=9)
    found = dry_run(domain, GroupOfPods("default/mixed", (small, large)))
    assert found is not None
    assert {node: [pod.name for pod in pods] for node, pods in found.victims.items()} == victims


def test_first_plugin_that_nominates_a_group_ends_the_chain() -> None:
    class Refuses:
        name = "Refuses"

        def post_filter(self, cycle: CycleView, pod: Pod, refusals: Any) -> PostFilterResult:
            raise AssertionError("it is a group")

        def post_filter_group(
            self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
        ) -> Generator[None, None, PostFilterResult]:
            yield from ()
            assert (dry_run.name, cycle.nodes.node_count) == ("default/train", 1)
            return PostFilterResult(Status.unschedulable("not mine"))

    class Takes(Refuses):
        name = "Takes"

        def post_filter_group(
            self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
        ) -> Generator[None, None, PostFilterResult]:
            yield from ()
            return PostFilterResult(SUCCESS, preemption=Preemption({}, (), self.name))

    low = standing("low", "a")
    found = run(make_domain({"a": 1}, [low], in_tree=("NodeResourcesFit",), plugins=[Refuses(), Takes()]), group_of(1))
    assert found.preemption is not None
    assert found.preemption.plugin == "Takes"
    alone = run(make_domain({"a": 1}, [low], in_tree=("NodeResourcesFit",), plugins=[Refuses()]), group_of(1))
    assert (alone.sentence, alone.preemption) == ("not mine", None)


# -- against every set of victims ----------------------------------------------------------------------------------------


class Plain:
    """What a set of victims is worth for members that are alike, by counting."""

    def __init__(self, domain: Domain, group: GroupOfPods) -> None:
        self._domain, self._group = domain, group
        self.lower = {e.pod.uid for e in domain.cache if e.pod.spec.priority < group.pods[0].spec.priority}
        self._gangs = PlainGangs(domain.cache)

    def is_allowed(self, uids: frozenset[str]) -> bool:
        return self._gangs.are_spared(uids) and uids <= self.lower

    def fits(self, uids: frozenset[str]) -> bool:
        table, cpu = self._domain.cache.nodes, self._group.pods[0].requests[CPU]
        places = 0
        for row, node in table.live_rows():
            left = sum(pod.requests[CPU] for pod in table.pods_on(row) if pod.uid not in uids)
            places += max(node.allocatable[CPU] - left, 0) // cpu
        return places >= len(self._group.pods)


@st.composite
def quota_clusters(draw: st.DrawFn) -> Domain:
    nodes = {f"n{number}": draw(st.integers(1, 3)) for number in range(3)}
    minimums = {gang: draw(st.integers(1, 4)) for gang in ("g", "h")}
    domain = make_domain(nodes, minimums=minimums)
    for number in range(draw(st.integers(1, 9))):
        gang = draw(st.sampled_from(["", "", "g", "h"]))
        labels = {"app": draw(st.sampled_from(["web", "db"])), **({GANG_LABEL: gang} if gang else {})}
        node, cpu = draw(st.sampled_from(sorted(nodes))), draw(st.sampled_from([500, 1000, 2000]))
        priority = draw(st.sampled_from([0, 0, 3, 9]))
        place(
            domain.cache, standing(f"s{number}", node, cpu=cpu, priority=priority, start=DAY_S + number, labels=labels)
        )
    if draw(st.booleans()):
        domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("web", "web", draw(st.integers(0, 2))))
    return domain


@given(quota_clusters(), st.integers(1, 4), st.sampled_from([500, 1000, 2000]))
@settings(deadline=None)
def test_group_victims_are_minimal(domain: Domain, count: int, cpu: int) -> None:
    group = group_of(count, cpu=cpu)
    plain, found = Plain(domain, group), run(domain, group)
    if found.preemption is None:
        assert plain.fits(frozenset()) or not any(
            plain.is_allowed(uids) and plain.fits(uids) for uids in subsets_of(plain.lower)
        )
        return
    gone = frozenset(victim.uid for victim in found.preemption.every_victim)
    assert plain.is_allowed(gone)
    assert plain.fits(gone)
    assert not any(plain.is_allowed(some) and plain.fits(some) for some in subsets_of(gone) if some < gone)
    check_places(domain, group, found.preemption)


def check_places(domain: Domain, group: GroupOfPods, preemption: Preemption) -> None:
    """Each member has a node, and all fit there together once the victims are gone."""
    gone, table = {victim.uid for victim in preemption.every_victim}, domain.cache.nodes
    assert [pod.uid for pod, _ in preemption.nominations] == [pod.uid for pod in group.pods]
    for name in {node for _, node in preemption.nominations}:
        row = domain.row(name)
        here = [pod for pod in table.pods_on(row) if pod.uid not in gone]
        here += [pod for pod, node in preemption.nominations if node == name]
        assert sum(pod.requests[CPU] for pod in here) <= table.node(row).allocatable[CPU]
    for node, victims in preemption.victims.items():
        assert {entry.node for entry in domain.cache if entry.pod in victims} == {node}


@given(
    quota_clusters(),
    st.lists(st.tuples(st.sampled_from([500, 1000, 2000]), st.sampled_from([3, 9])), min_size=1, max_size=4),
)
@settings(deadline=None)
def test_members_of_several_kinds_fit_and_victims_are_minimal(domain: Domain, kinds: list[tuple[int, int]]) -> None:
    pods = tuple(make_pod(f"m{n}", cpu_milli=cpu, priority=priority) for n, (cpu, priority) in enumerate(kinds))
    group = GroupOfPods("default/mixed", pods)
    found = run(domain, group)
    if found.preemption is None:
        return
    least = min(pod.spec.priority for pod in pods)
    assert all(victim.spec.priority < least for victim in found.preemption.every_victim)
    check_places(domain, group, found.preemption)
    plain = Plain(domain, group)
    plain.lower = {entry.pod.uid for entry in domain.cache}
    gone = frozenset(victim.uid for victim in found.preemption.every_victim)
    assert plain.is_allowed(gone)
    for victim in gone:
        if plain.is_allowed(gone - {victim}):
            entry = domain.cache.placed(victim)
            assert entry is not None
            table, used = domain.cache.nodes, [pod for pod, node in found.preemption.nominations if node == entry.node]
            here = [pod for pod in table.pods_on(entry.row) if pod.uid not in gone or pod.uid == victim]
            assert sum(p.requests[CPU] for p in [*here, *used]) > table.node(entry.row).allocatable[CPU]
