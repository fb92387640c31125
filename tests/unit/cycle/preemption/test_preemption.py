"""Preemption against a plain scalar telling of kube-scheduler's rules, cold and warm, and rule by rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.preemption import Preemption
from multisched.framework.status import Code
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, HostPort, Node, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.plugins.default_preemption import DefaultPreemption
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy

IN_TREE = ("NodePorts", "NodeResourcesFit", "DynamicResources", "DefaultPreemption")
DAY_S = 1_767_225_600.0


def make_domain(*nodes: Node, plugins: Sequence[Any] = (), in_tree: Sequence[str] = IN_TREE) -> Domain:
    return Domain(*nodes, plugins=plugins, in_tree=in_tree)


def standing(name: str, node: str, *, cpu: int = 1000, priority: int = 0, start: float = DAY_S, **fields: Any) -> Pod:
    return make_pod(name, cpu_milli=cpu, priority=priority, node=node, started_s=start, phase="Running", **fields)


def budget(name: str, app: str, allowed: int, disrupted: Iterable[str] = ()) -> PodDisruptionBudget:
    selector = LabelSelector((Requirement("app", Operator.IN, (app,)),))
    return PodDisruptionBudget(
        name=name,
        namespace="default",
        selector=selector,
        disruptions_allowed=allowed,
        disrupted_pods=frozenset(disrupted),
    )


def preempted(domain: Domain, pod: Pod) -> tuple[str | None, list[str]]:
    """The node and the victims, the most important first."""
    result = domain.schedule(pod)
    assert isinstance(result, Unplaced), result
    return result.nominated_node, [victim.name for victim in result.victims]


def told(domain: Domain, pod: Pod) -> str:
    result = domain.schedule(pod)
    assert isinstance(result, Unplaced), result
    return result.message


# -- eligibility and words ---------------------------------------------------------------------------------------------


def test_never_preempting_pod_reports_its_policy() -> None:
    domain = make_domain(make_node("a", cpu_milli=1000))
    domain.cache.place(standing("low", "a"))
    spec = msgspec.structs.replace(make_pod("p", cpu_milli=1000, priority=9).spec, can_preempt=False)
    assert told(domain, make_pod("p", spec=spec)) == (
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, "
        "preemption: not eligible due to preemptionPolicy=Never."
    )


def test_pod_waits_for_deleting_victims_of_its_nominated_node() -> None:
    domain = make_domain(make_node("a", cpu_milli=1000), make_node("b", cpu_milli=1000))
    domain.cache.place(standing("going", "a", is_deleting=True, is_preempted=True))
    domain.cache.place(standing("low", "b"))
    result = domain.schedule(make_pod("p", cpu_milli=1000, priority=9, nominated_node="a"))
    assert isinstance(result, Unplaced)
    assert result.message.endswith("preemption: not eligible due to a terminating pod on the nominated node.")
    assert (result.nominated_node, result.victims) == (None, ())


@pytest.mark.parametrize(("is_deleting", "is_preempted"), [(True, False), (False, True)])
def test_pod_deleted_for_another_reason_does_not_block_preemption(is_deleting: bool, is_preempted: bool) -> None:
    domain = make_domain(make_node("a", cpu_milli=1000))
    domain.cache.place(standing("low", "a", is_deleting=is_deleting, is_preempted=is_preempted))
    assert preempted(domain, make_pod("p", cpu_milli=1000, priority=9, nominated_node="a")) == ("a", ["low"])


def test_unhelpful_nominated_node_is_replaced_by_another() -> None:
    domain = make_domain(make_node("small", cpu_milli=500), make_node("b", cpu_milli=1000))
    domain.cache.place(standing("going", "small", cpu=100, is_deleting=True, is_preempted=True))
    domain.cache.place(standing("low", "b"))
    assert preempted(domain, make_pod("p", cpu_milli=1000, priority=9, nominated_node="small")) == ("b", ["low"])


def test_message_counts_all_nodes_if_preemption_does_not_help() -> None:
    domain = make_domain(*(make_node(name, cpu_milli=2000) for name in "abc"), make_node("small", cpu_milli=500))
    domain.cache.place(standing("peer", "a", cpu=2000, priority=9))
    domain.cache.place(standing("low", "b", cpu=500))
    domain.cache.place(standing("peer-b", "b", cpu=1500, priority=9))
    domain.cache.place(standing("peer-c", "c", cpu=2000, priority=9))
    pod = make_pod("p", cpu_milli=1000, priority=9)
    assert told(domain, pod) == (
        "0/4 nodes are available: 4 Insufficient cpu. no new claims to deallocate, preemption: 0/4 nodes are available: "
        "1 Insufficient cpu, 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
    )
    result = domain.schedule(pod)
    assert isinstance(result, Unplaced)
    assert result.nominated_node == ""


def test_successful_preemption_adds_nothing_to_the_message() -> None:
    domain = make_domain(make_node("a", cpu_milli=1000))
    domain.cache.place(standing("low", "a"))
    assert told(domain, make_pod("p", cpu_milli=1000, priority=9)) == "0/1 nodes are available: 1 Insufficient cpu."


def test_pod_without_nodes_does_not_preempt() -> None:
    assert told(make_domain(), make_pod("p", cpu_milli=1)) == "no nodes available to schedule pods"


def test_node_that_fits_without_victims_is_an_error_as_upstream() -> None:
    class Moody(FilterBy):
        def filter(self, cycle: Any, pod: Pod, rows: Any) -> Any:
            codes = super().filter(cycle, pod, rows)
            self._rule = lambda pod, name: ""
            return codes

    domain = make_domain(
        make_node("a"), plugins=[Moody("Moody", lambda pod, name: "no", depends_on=Dependency.ATTEMPT)]
    )
    domain.cache.place(standing("low", "a"))
    result = domain.schedule(make_pod("p", cpu_milli=1000, priority=9))
    assert isinstance(result, Unplaced)
    assert result.message.endswith('no. preemption: expected at least one victim pod on node "a"')
    assert result.nominated_node is None


def test_preemptor_stays_gated_until_its_victims_are_deleted() -> None:
    class Running:
        def is_preempting(self, uid: str) -> bool:
            return uid == "uid-p"

    cache = make_domain().cache
    plugin = DefaultPreemption(
        PluginContext("d", cache.nodes, Domain().waiting, cache.ledgers, cache.objects, preemptions=Running())
    )
    held = plugin.pre_enqueue(make_pod("p"))
    assert (held.code, held.message) == (
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        "waiting for the preemption for this pod to be finished",
    )
    assert plugin.pre_enqueue(make_pod("q")).is_success
    assert plugin.events_to_register() == ()


# -- the six criteria, one by one --------------------------------------------------------------------------------------


def two_nodes(*pods: Pod, budgets: Iterable[PodDisruptionBudget] = ()) -> Domain:
    domain = make_domain(make_node("a", cpu_milli=2000), make_node("b", cpu_milli=2000))
    for pod in pods:
        domain.cache.place(pod)
    for one in budgets:
        domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, one)
    return domain


PREEMPTOR = make_pod("p", cpu_milli=2000, priority=100)


@pytest.mark.parametrize(
    ("on_a", "on_b", "reason"),
    [
        ([standing("a1", "a", cpu=2000, labels={"app": "safe"})], [standing("b1", "b", cpu=2000, priority=50)], "budget"),
        ([standing("a1", "a", cpu=2000, priority=6)], [standing("b1", "b"), standing("b2", "b", priority=5)], "highest"),
        ([standing("a1", "a", priority=5), standing("a2", "a", priority=4)],
         [standing("b1", "b", priority=5), standing("b2", "b", priority=3)], "sum"),
        ([standing(f"a{i}", "a", cpu=500, priority=-(2**31)) for i in range(4)],
         [standing("b1", "b", cpu=2000, priority=-(2**31))], "number"),
        ([standing("a1", "a", cpu=2000, start=DAY_S)], [standing("b1", "b", cpu=2000, start=DAY_S + 1)], "latest"),
        ([standing("a1", "a", cpu=2000, start=DAY_S)], [standing("b1", "b", cpu=2000, start=0)], "not started"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_node_criterion_decides_after_the_earlier_ones(on_a: list[Pod], on_b: list[Pod], reason: str) -> None:
    domain = two_nodes(*on_a, *on_b, budgets=[budget("safe", "safe", 0)])
    node, victims = preempted(domain, PREEMPTOR)
    assert (node, set(victims)) == ("b", {pod.name for pod in on_b}), reason


def test_first_of_equal_nodes_is_taken() -> None:
    assert preempted(two_nodes(standing("a1", "a"), standing("b1", "b")), PREEMPTOR)[0] == "a"


def test_pods_with_a_budget_are_spared_before_higher_priorities() -> None:
    domain = make_domain(make_node("a", cpu_milli=2000))
    domain.cache.place(standing("safe", "a", priority=1, labels={"app": "safe"}))
    domain.cache.place(standing("other", "a", priority=5))
    pod = make_pod("p", cpu_milli=1000, priority=9)
    assert preempted(domain, pod) == ("a", ["safe"])
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("safe", "safe", 0))
    assert preempted(domain, pod) == ("a", ["other"])
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("safe", "safe", 0, disrupted=["safe"]))
    assert preempted(domain, pod) == ("a", ["safe"])
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("safe", "safe", 1))
    assert preempted(domain, pod) == ("a", ["safe"])


def test_no_pod_is_evicted_while_budgets_are_unreadable() -> None:
    domain = make_domain(make_node("a", cpu_milli=1000))
    domain.cache.place(standing("low", "a"))
    pod = make_pod("p", cpu_milli=1000, priority=9)
    domain.cache.objects.set_unreadable(ObjectKind.POD_DISRUPTION_BUDGET, "forbidden")
    assert told(domain, pod).endswith("preemption: not tried, since PodDisruptionBudgets cannot be read: forbidden")
    domain.cache.objects.set_unreadable(ObjectKind.POD_DISRUPTION_BUDGET, "")
    assert preempted(domain, pod) == ("a", ["low"])


@pytest.mark.parametrize("selector", [None, LabelSelector()])
def test_budget_without_matching_pods_protects_no_pod(selector: LabelSelector | None) -> None:
    domain = two_nodes(standing("a1", "a", cpu=2000, labels={"app": "x"}), standing("b1", "b", cpu=2000, priority=1))
    empty = PodDisruptionBudget(name="empty", namespace="default", selector=selector)
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, empty)
    assert preempted(domain, PREEMPTOR) == ("a", ["a1"])


def test_victims_are_listed_by_descending_importance() -> None:
    domain = make_domain(make_node("a", cpu_milli=3000))
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("safe", "safe", 0))
    for name, priority, labels in (("low", 1, {}), ("safe", 2, {"app": "safe"}), ("high", 3, {})):
        domain.cache.place(standing(name, "a", priority=priority, labels=labels))
    assert preempted(domain, make_pod("p", cpu_milli=3000, priority=9)) == ("a", ["high", "safe", "low"])


# -- nominations -------------------------------------------------------------------------------------------------------


def test_capacity_of_an_equal_nominated_pod_is_not_taken() -> None:
    domain = two_nodes(*(standing(f"{node}{i}", node) for node in "ab" for i in range(2)))
    first, second, third = (make_pod(name, cpu_milli=2000, priority=9) for name in ("first", "second", "third"))
    for pod, node in ((first, "a"), (second, "b")):
        assert preempted(domain, pod)[0] == node
        domain.nominator.nominate(pod, node)
    result = domain.schedule(third)
    assert isinstance(result, Unplaced)
    assert result.victims == ()
    assert result.message.endswith("preemption: 0/2 nodes are available: 2 Insufficient cpu.")
    assert preempted(domain, make_pod("above", cpu_milli=2000, priority=10))[0] == "a"


def test_local_nomination_lasts_until_the_assumption_ends() -> None:
    domain = two_nodes(standing("a1", "a"))
    pod = make_pod("p", cpu_milli=2000, priority=9)
    domain.nominator.nominate(pod, "b")
    domain.nominator.set(make_pod("p", cpu_milli=2000, priority=9), pod)
    assert domain.nominator.node_of(pod.uid) == "b"
    result = domain.schedule(pod)
    assert isinstance(result, Placed)
    assert (result.node, domain.nominator.node_of(pod.uid)) == ("b", "")


# -- against a plain telling -------------------------------------------------------------------------------------------


@dataclass
class Plain:
    """SelectVictimsOnNode and pickOneNodeForPreemption, pod by pod."""

    domain: Domain

    def fits(self, pod: Pod, node: Node, pods: Iterable[Pod]) -> bool:
        held = [*pods, *self.domain.nominator.ahead_on(node.name, pod)]
        taken = sum(one.requests.get(CPU, 0) for one in held) + pod.requests.get(CPU, 0)
        ports = {port for one in held for port in one.spec.host_ports}
        room = len(held) < node.allocatable["pods"] and taken <= node.allocatable[CPU]
        return room and not ports & set(pod.spec.host_ports)

    def on_node(self, pod: Pod, node: Node) -> tuple[list[Pod], int] | None:
        row = self.domain.row(node.name)
        kept = [one for one in self.domain.cache.nodes.pods_on(row) if one.spec.priority >= pod.spec.priority]
        lower = [one for one in self.domain.cache.nodes.pods_on(row) if one.spec.priority < pod.spec.priority]
        lower.sort(key=lambda one: (-one.spec.priority, one.started_s))
        if not lower or not self.fits(pod, node, kept):
            return None
        violating = self.violating(lower)
        victims = []
        for one in [*(v for v in lower if v in violating), *(v for v in lower if v not in violating)]:
            if self.fits(pod, node, [*kept, one]):
                kept.append(one)
            else:
                victims.append(one)
        victims.sort(key=lambda one: (-one.spec.priority, one.started_s))
        return victims, sum(one in violating for one in victims)

    def violating(self, pods: list[Pod]) -> list[Pod]:
        allowed = {b: b.disruptions_allowed for b in self.domain.cache.objects.disruption_budgets("default")}
        found = []
        for pod in pods:
            for one in allowed:
                assert one.selector is not None
                if one.selector.matches(pod.labels) and pod.name not in one.disrupted_pods:
                    allowed[one] -= 1
                    if allowed[one] < 0 and pod not in found:
                        found.append(pod)
        return found

    def answer(self, pod: Pod) -> set[tuple[str, tuple[str, ...]]]:
        """Every right answer: nodes that no criterion tells apart."""
        found: dict[str, tuple[list[Pod], int]] = {}
        for _, node in self.domain.cache.nodes.live_rows():
            # Only where the pod could fit at all, were the node empty.
            if pod.requests.get(CPU, 0) <= node.allocatable[CPU]:
                choice = self.on_node(pod, node)
                if choice is not None and choice[0]:
                    found[node.name] = choice
        costs = {node: self.cost(*choice) for node, choice in found.items()}
        least = min(costs.values(), default=None)
        return {(n, tuple(v.name for v in found[n][0])) for n, cost in costs.items() if cost == least}

    @staticmethod
    def cost(victims: list[Pod], violations: int) -> tuple[float, ...]:
        highest = victims[0].spec.priority
        return (
            violations,
            highest,
            sum(victim.spec.priority + 2**31 for victim in victims),
            len(victims),
            -min(victim.started_s for victim in victims if victim.spec.priority == highest),
        )


PORT = HostPort("", "TCP", 80)
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
RELATED = (
    "NodePorts",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "DefaultPreemption",
)
NODES = ("n0", "n1", "n2", "n3")
APPS = ("web", "db", "none")
amounts = st.sampled_from([250, 500, 1000, 1500])
priorities = st.sampled_from([-5, 0, 3, 7])


@st.composite
def specs(draw: st.DrawFn, priority: st.SearchStrategy[int]) -> PodSpec:
    spec = make_pod("s", cpu_milli=draw(amounts), priority=draw(priority)).spec
    ports = (PORT,) if draw(st.integers(0, 4)) == 0 else ()
    return msgspec.structs.replace(spec, host_ports=ports)


@st.composite
def related(draw: st.DrawFn, spec: PodSpec) -> PodSpec:
    """Half of the pods keep others away, and some want to be spread."""
    selector = LabelSelector((Requirement("app", Operator.IN, (draw(st.sampled_from(APPS)),)),))
    key = draw(st.sampled_from([HOST, ZONE]))
    match draw(st.integers(0, 5)):
        case 0 | 1:
            term = PodAffinityTerm(key, selector)
            return msgspec.structs.replace(spec, pod_affinity=PodAffinity(anti_required=(term,)))
        case 2:
            return msgspec.structs.replace(spec, spread=(SpreadConstraint(1, key, True, selector),))
        case _:
            return spec


class Story:
    """A cluster to which things happen; names are drawn once, starts never repeat, so that no order is left to chance."""

    def __init__(self, data: st.DataObject, in_tree: Sequence[str] = IN_TREE) -> None:
        self.data = data
        self.are_related = "InterPodAffinity" in in_tree
        self.domain = make_domain(*(self.node(name) for name in NODES), in_tree=in_tree)
        self.number = 0

    @staticmethod
    def node(name: str, cpu: int = 2000) -> Node:
        labels = {HOST: name, ZONE: f"z{int(name[1:]) % 2}"}
        return make_node(name, cpu_milli=cpu, pods=5, labels=labels)

    def spec(self, priority: st.SearchStrategy[int]) -> PodSpec:
        spec: PodSpec = self.draw(specs(priority))
        return self.draw(related(spec)) if self.are_related else spec

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def place(self) -> None:
        self.number += 1
        name, labels = f"s{self.number}", {"app": self.draw(st.sampled_from(APPS))}
        spec, node = self.spec(priorities), self.draw(st.sampled_from(NODES))
        start = DAY_S + self.draw(st.integers(0, 50)) * 100 + self.number
        self.domain.cache.place(make_pod(name, spec=spec, node=node, started_s=start, labels=labels))

    def happen(self) -> None:
        placed = sorted(entry.pod.uid for entry in self.domain.cache)
        match self.draw(
            st.sampled_from(["place", "place", "remove", "start", "nominate", "denominate", "budget", "node"])
        ):
            case "place":
                self.place()
            case "remove" if placed:
                self.domain.cache.remove(self.draw(st.sampled_from(placed)))
            case "start" if placed:
                entry = self.domain.cache.placed(self.draw(st.sampled_from(placed)))
                assert entry is not None
                self.number += 1
                self.domain.cache.place(msgspec.structs.replace(entry.pod, started_s=DAY_S + 10_000 + self.number))
            case "nominate":
                self.number += 1
                labels = {"app": self.draw(st.sampled_from(APPS))}
                promised = make_pod(f"promised{self.number}", spec=self.spec(st.sampled_from([3, 9])), labels=labels)
                self.domain.nominator.nominate(promised, self.draw(st.sampled_from(NODES)))
            case "denominate":
                for node in NODES:
                    for pod in self.domain.nominator.on(node)[:1]:
                        self.domain.nominator.remove(pod.uid)
            case "budget":
                app, allowed = self.draw(st.sampled_from(APPS[:2])), self.draw(st.integers(0, 2))
                disrupted = [f"s{self.draw(st.integers(1, 9))}"]
                item = budget(app, app, allowed, disrupted)
                self.domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, item)
            case "node":
                name = self.draw(st.sampled_from(NODES))
                cpu = self.draw(st.sampled_from([500, 1500, 2500]))
                self.domain.cache.set_node(self.node(name, cpu))
            case _:
                self.place()


def check(domain: Domain, pod: Pod, cycles: Iterable[Any]) -> None:
    expected = Plain(domain).answer(pod)
    for cycle in cycles:
        result = domain.schedule(pod, cycle=cycle)
        if isinstance(result, Placed):
            domain.cache.forget(pod.uid)
            continue
        assert isinstance(result, Unplaced)
        found = (result.nominated_node, tuple(victim.name for victim in result.victims))
        if not expected:
            assert found == ("", ())
        else:
            assert found in expected
            check_minimal(domain, pod, result.preemption)


def check_minimal(domain: Domain, pod: Pod, preemption: Preemption | None) -> None:
    """Without its victims the pod fits there, and with any one of them it does not."""
    assert preemption is not None
    plain, row = Plain(domain), domain.row(preemption.node_of(pod.uid))
    node, gone = domain.cache.nodes.node(row), {victim.uid for victim in preemption.every_victim}
    left = [one for one in domain.cache.nodes.pods_on(row) if one.uid not in gone]
    assert plain.fits(pod, node, left)
    assert not any(plain.fits(pod, node, [*left, victim]) for victim in preemption.every_victim)
    assert all(victim.spec.priority < pod.spec.priority for victim in preemption.every_victim)


@given(st.data())
@settings(deadline=None)
def test_preemption_equals_the_reference_after_any_history(data: st.DataObject) -> None:
    story = Story(data)
    for _ in range(data.draw(st.integers(2, 10))):
        story.place()
    pod = make_pod("preemptor", spec=data.draw(specs(st.sampled_from([3, 9]))))
    other = make_pod("other", spec=data.draw(specs(st.sampled_from([3, 9]))))
    for _ in range(data.draw(st.integers(1, 4))):
        cycles = [story.domain.cycle, story.domain.fresh_cycle()]
        check(story.domain, pod, cycles)
        check(story.domain, other, cycles)
        for _ in range(data.draw(st.integers(0, 3))):
            story.happen()


@pytest.mark.parametrize("in_tree", [IN_TREE, RELATED], ids=["plain", "related"])
@given(st.data())
@settings(deadline=None)
def test_row_by_row_dry_run_equals_the_vectorised_one(in_tree: Sequence[str], data: st.DataObject) -> None:
    """A plugin of which nothing is known but that it reads pods makes every row be gone through by itself."""
    story = Story(data, in_tree)
    for _ in range(data.draw(st.integers(2, 14))):
        story.happen()
    labels = {"app": data.draw(st.sampled_from(APPS))}
    pod = make_pod("preemptor", spec=story.spec(st.sampled_from([3, 9])), labels=labels)
    careful = make_domain(
        plugins=[FilterBy("Careful", lambda pod, name: "", depends_on=Dependency.CLUSTER, sign=lambda pod: ())],
        in_tree=in_tree,
    )
    for _, node in story.domain.cache.nodes.live_rows():
        careful.cache.set_node(node)
    for entry in story.domain.cache:
        careful.cache.place(entry.pod)
    for name in NODES:
        for promised in story.domain.nominator.on(name):
            careful.nominator.set(promised)
    for item in story.domain.cache.objects.disruption_budgets("default"):
        careful.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, item)
    if not story.are_related:
        check(careful, pod, [careful.cycle])
    swift, slow = story.domain.schedule(pod), careful.schedule(pod)
    if isinstance(swift, Unplaced):
        assert isinstance(slow, Unplaced)
        assert (swift.message, swift.nominated_node) == (slow.message, slow.nominated_node)
        assert [v.name for v in swift.victims] == [v.name for v in slow.victims]


def test_node_with_very_many_pods_is_evaluated_the_same_way() -> None:
    domain = make_domain(make_node("wide", cpu_milli=300_000, pods=1000), make_node("b", cpu_milli=1000))
    for i in range(300):
        domain.cache.place(standing(f"w{i}", "wide", priority=i % 3, start=DAY_S + i))
    domain.cache.place(standing("b0", "b", priority=1))
    assert preempted(domain, make_pod("p", cpu_milli=2000, priority=9)) == ("wide", ["w294", "w297"])
    assert preempted(domain, make_pod("q", cpu_milli=1000, priority=9)) == ("wide", ["w297"])


def test_node_with_an_incompatible_nominated_pod_is_not_cleared() -> None:
    """Whoever is nominated there keeps the preemptor away, also where others of its kind stand elsewhere and may go."""
    away = PodAffinity(
        anti_required=(PodAffinityTerm("host", LabelSelector((Requirement("app", Operator.IN, ("x",)),))),)
    )
    domain = make_domain(
        *(make_node(name, cpu_milli=1000, labels={"host": name}) for name in "ab"),
        in_tree=("NodeResourcesFit", "InterPodAffinity", "DefaultPreemption"),
    )
    domain.cache.place(standing("on-a", "a", cpu=500))
    domain.cache.place(standing("on-b", "b", cpu=1000, priority=1, labels={"app": "x"}))
    domain.nominator.set(make_pod("promised", cpu_milli=100, priority=20, labels={"app": "x"}, nominated_node="a"))
    spec = msgspec.structs.replace(make_pod("p", cpu_milli=900, priority=9).spec, pod_affinity=away)
    assert preempted(domain, make_pod("p", spec=spec)) == ("b", ["on-b"])


class Flaky(FilterBy):
    """Fails where it is asked what would be without some pods, as long as it is broken."""

    traits = Traits(wants_room_only=True)

    def __init__(self) -> None:
        super().__init__("Flaky", lambda pod, name: "", depends_on=Dependency.ROW)
        self.is_broken = True

    def filter(self, cycle: Any, pod: Pod, rows: Any) -> Any:
        if self.is_broken and (cycle.nodes.requested(CPU)[rows] == 0).any():
            raise RuntimeError("boom")
        return super().filter(cycle, pod, rows)


def test_failed_filter_drops_cached_preemption_results() -> None:
    flaky = Flaky()
    domain = make_domain(make_node("a", cpu_milli=1000), make_node("b", cpu_milli=500), plugins=[flaky])
    domain.cache.place(standing("low", "a"))
    domain.cache.place(standing("small", "b", cpu=100))
    result = domain.schedule(make_pod("p", cpu_milli=1000, priority=9))
    assert isinstance(result, Unplaced)
    assert (result.nominated_node, result.victims) == (None, ())
    assert "boom" in result.message
    assert [point for _, point, _ in domain.heard.failures] == ["Filter"]
    flaky.is_broken = False
    assert preempted(domain, make_pod("p", cpu_milli=1000, priority=9)) == ("a", ["low"])


def test_budget_used_up_by_another_preemption_protects_its_pods() -> None:
    pods = [standing("web-1", "a", labels={"app": "web"}), standing("web-2", "b", labels={"app": "web"})]
    pods.append(standing("other", "c", priority=5))
    domain = Domain(
        *(make_node(name, cpu_milli=1000) for name in "abc"), in_tree=("NodeResourcesFit", "DefaultPreemption")
    )
    for pod in pods:
        domain.cache.place(pod)
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget("web", "web", 1))
    high = make_pod("high", cpu_milli=1000, priority=9)
    assert preempted(domain, high) == ("a", ["web-1"])
    domain.removals.decide("another plan", pods[:1])
    domain.nominator.nominate(make_pod("first", cpu_milli=1000, priority=9), "a")
    assert preempted(domain, high) == ("c", ["other"])
    counted = budget("web", "web", 0, ["web-1"])
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, counted)
    assert preempted(domain, high) == ("c", ["other"])
    domain.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, msgspec.structs.replace(counted, disruptions_allowed=1))
    assert preempted(domain, high) == ("b", ["web-2"]), "the victim is counted once"
