"""Dry runs with filters after the resource ones that depend on no victim, and what dry runs remember."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.preemption import dry_run_parts
from multisched.cycle.preemption.dry_run import AttemptDryRun
from multisched.cycle.results import NO_PAUSE, Placed, Unplaced
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Bools, Codes, Rows
from multisched.framework.points import CycleView, Plugin, PostFilterResult, PreFilterResult, QueuedPod, Refusals
from multisched.framework.preemption import PlacedPods
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Pod
from multisched.state import pods_by_priority
from multisched.testing.builders import make_node, make_pod
from tests.kit.counted_steps import CountedSteps
from tests.unit.cycle.cycle_kit import Domain, FilterBy, Waiting, finished
from tests.unit.cycle.preemption.test_several_post_filters import OfTeams
from tests.unit.cycle.test_scheduling_cycle import Service

IN_TREE = ("NodeResourcesFit", "DefaultPreemption")
LATE = ("wrong zone", "too far")


class Insensitive(FilterBy):
    """Reads pods, as volumes and affinity do, and is sensitive to none: refuses nodes for a reason given beforehand."""

    def __init__(self, name: str, reasons: Mapping[str, str]) -> None:
        super().__init__(
            name, lambda pod, node: reasons.get(node, ""), depends_on=Dependency.CLUSTER, sign=lambda pod: ()
        )

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        return PodSensitivity((), lambda other: False)


class Shut:
    """PreFilter refuses every pod, in a way that removing pods may cure."""

    name = "Shut"
    depends_on = Dependency.NODE

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult(Status.unschedulable("shut"))

    def sign(self, pod: Pod) -> Hashable:
        return ()


class Shy(Insensitive):
    """Keeps every pod off nodes where a shy one stands, and is sensitive to those."""

    def __init__(self) -> None:
        super().__init__("Shy", {})

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        refused = self.reasons.code(Code.UNSCHEDULABLE, "shy")
        stand = (any("shy" in one.labels for one in cycle.nodes.pods_on(row)) for row in rows.tolist())
        return np.array([refused if is_kept_off else 0 for is_kept_off in stand], np.uint8)

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        return PodSensitivity((), lambda other: "shy" in other.labels)


class Tells:
    """Tells all that a dry run finds where the pods of team x may go."""

    name = "Tells"

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        found = refusals.dry_run().displace(OfTeams(frozenset("x")))
        telling = Telling(found.undisplaceable, sorted(found.needless))
        for status, count in found.refusals.items():
            telling.refusals[status.message] += count
        for at, row in enumerate(found.rows.tolist()):
            name = cycle.nodes.node(row).name
            telling.victims[name] = [victim.name for victim in found.victims_at(at)[name]]
            telling.costs[name] = found.costs[0].item(at)
        return PostFilterResult(Status.unschedulable(str(telling)))


@dataclass
class Telling:
    undisplaceable: int = 0
    needless: list[str] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("Insufficient cpu", "shy", *LATE), 0))
    victims: dict[str, list[str]] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = (
            self.undisplaceable,
            self.needless,
            *(sorted(told.items()) for told in (self.refusals, self.victims, self.costs)),
        )
        return repr(parts)


@dataclass(frozen=True)
class Stands:
    """A pod on a node: of team x, which may go, or not."""

    team: str
    cpu: int
    is_shy: bool


@dataclass(frozen=True)
class Held:
    """A node of 2 CPUs, who stands there, the most important first, and what two later filters say of it."""

    pods: list[Stands]
    first: str
    second: str

    def place(self, domain: Domain, name: str) -> None:
        domain.cache.set_node(make_node(name, cpu_milli=2000))
        for at, one in enumerate(self.pods):
            labels = {"team": one.team, **({"shy": "yes"} if one.is_shy else {})}
            domain.cache.place(
                make_pod(f"{name}-{at}", cpu_milli=one.cpu, node=name, started_s=at + 1.0, labels=labels)
            )

    def tell(self, name: str, telling: Telling, *, are_sensitive: bool, are_late: bool) -> None:
        """SelectVictimsOnNode for a pod of one CPU, pod by pod."""
        may_go = [at for at, one in enumerate(self.pods) if one.team == "x"]
        kept = [one for one in self.pods if one.team != "x"]

        def refusal(stand: Sequence[Stands]) -> str:
            if sum(one.cpu for one in stand) > 1000:
                return "Insufficient cpu"
            if are_late and (self.first or self.second):
                return self.first or self.second
            return "shy" if are_sensitive and any(one.is_shy for one in stand) else ""

        if not may_go:
            telling.undisplaceable += 1
        elif refusal(kept):
            telling.refusals[refusal(kept)] += 1
        else:
            victims = []
            for at in may_go:
                if refusal([*kept, self.pods[at]]):
                    victims.append(f"{name}-{at}")
                else:
                    kept.append(self.pods[at])
            if victims:
                telling.victims[name], telling.costs[name] = victims, float(len(victims))
            else:
                telling.needless.append(name)


stands = st.builds(Stands, st.sampled_from("xxz"), st.sampled_from([250, 500, 1000, 1500]), st.booleans())
late = st.sampled_from(["", "", *LATE])
held = st.lists(st.builds(Held, st.lists(stands, max_size=4), late, late), min_size=1, max_size=6)


@pytest.mark.parametrize("width", [1, pods_by_priority.WIDTH_MAX], ids=["wide", "narrow"])
@pytest.mark.parametrize("with_shy", [False, True], ids=["", "shy"])
@pytest.mark.parametrize("with_late", [False, True], ids=["", "late"])
@given(drawn=held, is_shut=st.booleans())
def test_dry_run_equals_removing_pods_one_by_one(
    *, drawn: list[Held], is_shut: bool, width: int, with_shy: bool, with_late: bool
) -> None:
    """Whichever nodes are looked at all at once; and the same to the next pod of the class."""
    nodes = {f"n{at}": node for at, node in enumerate(drawn)}
    first = Insensitive("First", {name: node.first for name, node in nodes.items()})
    second = Insensitive("Second", {name: node.second for name, node in nodes.items()})
    plugins: list[Plugin] = [*([first, second] if with_late else []), *([Shy()] if with_shy else []), Tells()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pods_by_priority, "WIDTH_MAX", width)
        domain = Domain(in_tree=("NodeResourcesFit",), plugins=[*plugins, *([Shut()] if is_shut else [])])
        for name, node in nodes.items():
            node.place(domain, name)
        telling = Telling()
        for name, node in nodes.items():
            node.tell(name, telling, are_sensitive=with_shy, are_late=with_late)
        for asker in ("p", "q"):
            result = domain.schedule(make_pod(asker, cpu_milli=1000))
            if isinstance(result, Placed):
                return  # some node takes it as it is
            assert isinstance(result, Unplaced)
            assert result.message.endswith(str(telling))
    assert domain.heard.failures == []


def test_dry_run_separates_undisplaceable_from_unhelpful_nodes() -> None:
    domain = Domain(*(make_node(name, cpu_milli=2000) for name in "abcd"), in_tree=IN_TREE[:1], plugins=[Tells()])
    for node, team, cpu in (("a", "z", 2000), ("b", "z", 2000), ("c", "x", 500), ("c", "z", 1500), ("d", "x", 2000)):
        domain.cache.place(make_pod(f"{node}-{team}", cpu_milli=cpu, node=node, labels={"team": team}))
    telling = Telling(undisplaceable=2, victims={"d": ["d-x"]}, costs={"d": 1.0})
    telling.refusals["Insufficient cpu"] = 1
    result = domain.schedule(make_pod("p", cpu_milli=1000))
    assert isinstance(result, Unplaced)
    assert result.message.endswith(str(telling))


def found(domain: Domain, name: str, *, nominated_node: str = "") -> tuple[str | None, list[str], str]:
    result = domain.schedule(make_pod(name, cpu_milli=1000, priority=9, nominated_node=nominated_node))
    assert isinstance(result, Unplaced)
    _, _, told = result.message.partition(". ")
    return result.nominated_node, [victim.name for victim in result.victims], told


def test_node_that_fits_without_victims_is_an_error() -> None:
    """As upstream: something else than room has refused it."""
    domain = Domain(in_tree=IN_TREE, plugins=[Insensitive("First", {"a": "wrong zone"}), Shut()])
    for name in "abc":
        domain.cache.set_node(make_node(name, cpu_milli=2000))
        domain.cache.place(make_pod(f"on-{name}", cpu_milli=500, node=name))
    text = ", ".join(f'expected at least one victim pod on node "{name}"' for name in "bc")
    assert found(domain, "p") == (None, [], f"preemption: {text}")


@pytest.mark.parametrize(("allowed", "node"), [({"a": 1}, "a"), ({}, "")])
def test_remote_refusals_hold_for_any_removed_pods(allowed: dict[str, int], node: str) -> None:
    """`a` is full, and `b` is refused by the service alone."""
    domain = Domain(
        make_node("a", cpu_milli=1000), make_node("b", cpu_milli=1000), in_tree=IN_TREE, plugins=[Service()]
    )
    domain.cache.place(make_pod("low", cpu_milli=1000, node="a"))
    domain.cache.place(make_pod("none", node="b", priority=9))
    result = Waiting.begin(domain, make_pod("p", cpu_milli=1000, priority=9)).answer({"Service": allowed})
    assert isinstance(result, Unplaced)
    assert (result.nominated_node, [victim.name for victim in result.victims]) == (node, ["low"] if node else [])


class Room(FilterBy):
    """Wants room only, of which there is enough, and keeps which nodes it was asked about."""

    traits = Traits(wants_room_only=True)

    def __init__(self) -> None:
        super().__init__(
            "Room",
            lambda pod, name: "" if pod.name else "nobody",
            depends_on=Dependency.ROW,
            sign=lambda pod: pod.name[0],
        )


def test_dry_run_results_are_cached_for_recent_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are looked at anew for a class whose memory went, the one unused for longest first."""
    monkeypatch.setattr(dry_run_parts, "VICTIM_CACHES_MAX", 2)
    room = Room()
    domain = Domain(*(make_node(name, cpu_milli=1000) for name in "ab"), in_tree=IN_TREE, plugins=[room])
    for name in "ab":
        domain.cache.place(make_pod(f"on-{name}", cpu_milli=1000, node=name))

    def is_remembered(name: str) -> bool:
        room.asked.clear()
        assert found(domain, f"{name}1")[0] == "a"
        return not room.asked

    assert [is_remembered(name) for name in "ppqqp"] == [False, True, False, True, True]
    assert [is_remembered(name) for name in "rpr"] == [False, True, True], "q was unused for longest"
    assert [is_remembered(name) for name in "qqpr"] == [False, True, False, False]


def test_dry_run_results_of_unchanged_nodes_are_kept() -> None:
    room = Room()
    domain = Domain(*(make_node(name, cpu_milli=1000) for name in "abc"), in_tree=IN_TREE, plugins=[room])
    for name in "abc":
        domain.cache.place(make_pod(f"on-{name}", cpu_milli=1000, node=name))
    assert found(domain, "p1")[0] == "a"
    domain.cache.set_node(make_node("b", cpu_milli=1000, labels={"new": "label"}, version=2))
    room.asked.clear()
    assert found(domain, "p2")[0] == "a"
    assert {name for names in room.asked for name in names} == {"b"}


def test_filter_unaffected_by_possible_victims_is_not_called_again() -> None:
    """As thousands of nodes may be candidates. Who wants room is: for what is without those who may go, and beside each."""
    by_node, late, room = FilterBy("ByNode", lambda pod, name: ""), Insensitive("Late", {"a": "wrong zone"}), Room()
    domain = Domain(*(make_node(name, cpu_milli=1000) for name in "ab"), in_tree=IN_TREE, plugins=[by_node, room, late])
    for name in "ab":
        domain.cache.place(make_pod(f"on-{name}", cpu_milli=1000, node=name))
    assert found(domain, "p")[:2] == ("b", ["on-b"])
    assert (by_node.asked, late.asked) == ([["a", "b"]], [["a", "b"]])
    assert room.asked == [["a", "b"]] * 3


class KnowsSome:
    """Displaces whom it can by what the attempt has heard of these nodes alone; the first node it finds is the best."""

    name = "KnowsSome"

    def __init__(self, heard_of: str) -> None:
        self._heard_of = heard_of

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        dry = refusals.dry_run()
        assert isinstance(dry, AttemptDryRun)
        known = {}
        for plugin, (rows, codes) in dry._failed.known.items():
            is_heard_of = np.array([cycle.nodes.node(row).name in self._heard_of for row in rows.tolist()])
            known[plugin] = rows[is_heard_of], codes[is_heard_of]
        less = AttemptDryRun(dry._runs, msgspec.structs.replace(dry._failed, known=known))
        found = less.displace(OfTeams(frozenset("x")))
        names = [cycle.nodes.node(row).name for row in found.rows.tolist()]
        return PostFilterResult(Status.unschedulable(f"finds {names}"))


@pytest.mark.parametrize("heard_of", ["abc", "ab", "bc", "ac", "a", "b", "c"])
def test_nodes_not_yet_evaluated_by_a_filter_are_evaluated(heard_of: str) -> None:
    """The class may have been renewed, and left out nodes, while somebody outside was asked."""
    late = Insensitive("Late", {"b": "wrong zone"})
    by_node = FilterBy("ByNode", lambda pod, name: "")
    plugins: list[Plugin] = [by_node, late, KnowsSome(heard_of)]
    domain = Domain(*(make_node(name, cpu_milli=1000) for name in "abc"), in_tree=IN_TREE[:1], plugins=plugins)
    for name in "abc":
        domain.cache.place(make_pod(f"on-{name}", cpu_milli=1000, node=name, labels={"team": "x"}))
    assert found(domain, "p") == (None, [], "finds ['a', 'c']")
    assert domain.heard.failures == []


class OfNoTeams(OfTeams):
    """Another rule with the same mark: nobody may go."""

    def displaceable(self, pods: PlacedPods) -> Bools:
        return np.zeros_like(super().displaceable(pods))


class TwoRules:
    """Says on how many nodes either of its rules would displace somebody."""

    name = "TwoRules"

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        rules = (OfTeams(frozenset("x")), OfNoTeams(frozenset("x")))
        found = [len(refusals.dry_run().displace(rule).rows) for rule in rules]
        return PostFilterResult(Status.unschedulable(f"finds {found}"))


def test_dry_run_results_are_separate_per_displacement_rule() -> None:
    domain = Domain(make_node("a", cpu_milli=1000), in_tree=IN_TREE[:1], plugins=[TwoRules()])
    domain.cache.place(make_pod("low", cpu_milli=1000, node="a", labels={"team": "x"}))
    assert [found(domain, name)[2] for name in "pq"] == ["finds [1, 0]"] * 2


def test_results_over_all_nodes_are_forgotten_when_one_node_changes() -> None:
    """Though nothing has happened to the node that it speaks of."""

    class ByAll(FilterBy):
        """Shuts all nodes while none of them bears the label."""

        def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
            is_open = cycle.nodes.label_codes("key").any()
            return np.full(len(rows), 0 if is_open else self.reasons.code(Code.UNSCHEDULABLE, "no key"), np.uint8)

    by_all = ByAll("ByAll", lambda pod, name: "", depends_on=Dependency.NODES)
    domain = Domain(make_node("a", cpu_milli=1000), make_node("b", cpu_milli=10), in_tree=IN_TREE, plugins=[by_all])
    domain.cache.place(make_pod("low", cpu_milli=1000, node="a"))
    assert found(domain, "p")[0] == ""
    domain.cache.set_node(make_node("b", cpu_milli=10, labels={"key": "here"}, version=2))
    assert found(domain, "q")[:2] == ("a", ["low"])
    domain.cache.set_node(make_node("b", cpu_milli=10, version=3))
    assert found(domain, "r")[0] == ""


def test_own_nomination_counts_only_for_other_pods_of_the_class() -> None:
    """Whichever of them was asked about before."""
    domain = Domain(make_node("a", cpu_milli=1000), make_node("small", cpu_milli=10), in_tree=IN_TREE)
    domain.cache.place(make_pod("low", cpu_milli=1000, node="a"))
    domain.nominator.nominate(make_pod("p", cpu_milli=1000, priority=9), "a")
    for name in "pqppqqp":
        expected = ("a", ["low"]) if name == "p" else ("", [])
        assert found(domain, name, nominated_node="a" if name == "p" else "")[:2] == expected


@pytest.mark.parametrize("pauses", range(4))
def test_node_is_tested_again_when_a_nomination_to_it_ends_in_a_pause_of_the_search(pauses: int) -> None:
    """Each node is refused because of a more important pod that is nominated to it. When that ends, no pod on the node changes."""
    domain = Domain(in_tree=IN_TREE, plugins=[Shy()], steps=CountedSteps(0))
    for name in ("n0", "n1", "n2"):
        domain.cache.set_node(make_node(name, cpu_milli=2000))
        domain.cache.place(make_pod(f"low-{name}", cpu_milli=2000, node=name, labels={"shy": ""}))
        domain.nominator.nominate(make_pod(f"next-{name}", cpu_milli=1000, priority=99, labels={"shy": ""}), name)
    running = domain.cycle.attempt(QueuedPod(make_pod("urgent", cpu_milli=1000, priority=9), 0.0, 1))
    next(running)
    for _ in range(pauses):
        running.send(NO_PAUSE)
    domain.nominator.nominate(make_pod("next-n0"), "")
    result = finished(running)
    assert isinstance(result, Unplaced)
    assert result.nominated_node == "n0"
