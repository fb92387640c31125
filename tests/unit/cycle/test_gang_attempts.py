"""Gangs in the cycle: all that must start stand or nobody does, by the same decisions as one after the other, and without a trace."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from multisched.cycle.attempt_record import Outcome
from multisched.cycle.results import GangAttempt, GangResult, Pause, Placed, RemoteRequest
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, QueuedGang, QueuedPod
from multisched.framework.reasons import ReasonTable
from multisched.framework.runner import PluginFailure
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.gang import TopologyLevel
from multisched.model.objects import Pod, PodSpec
from multisched.plugins.default_preemption import TERMINATING
from multisched.testing.builders import container, decode_pod, make_node, make_pod, pod_document
from tests.kit.plugins.slow_oracle import SlowOracle
from tests.unit.cycle.cycle_kit import Domain, Reserves


def gang_of(
    pods: Sequence[Pod], needs: Mapping[str, int] | int, *, keys: Mapping[str, str] | None = None, **fields: Any
) -> QueuedGang:
    """`keys`: name of a pod -> its gang; all are of `g` else."""
    gang = {pod.uid: (keys or {}).get(pod.name, "g") for pod in pods}
    wanted = {"g": needs} if isinstance(needs, int) else needs
    return QueuedGang(tuple(QueuedPod(pod, 0.0, 1) for pod in pods), wanted, gang, **fields)


def attempt(domain: Domain, gang: QueuedGang) -> GangResult:
    running = domain.cycle.attempt(gang)
    try:
        asked = next(running)
    except StopIteration as ended:
        result: GangResult = ended.value
        return result
    raise AssertionError(f"the cycle asks {asked}")


def ended(running: Any, answers: Mapping[str, object]) -> GangResult:
    """The result of an attempt once its plugins have answered."""
    try:
        asked = running.send(answers)
    except StopIteration as stop:
        result: GangResult = stop.value
        return result
    raise AssertionError(f"the cycle asks again: {asked}")


def requests_of(running: GangAttempt) -> Sequence[RemoteRequest]:
    """What the attempt asks outside before anything else."""
    asked = next(running)
    assert not isinstance(asked, Pause)
    return asked


def nodes_of(result: GangResult) -> dict[str, str]:
    return {placed.pod.name: placed.node for placed in result.placed}


def trace(domain: Domain) -> object:
    nodes = domain.cache.nodes
    rows = [row for row, _ in nodes.live_rows()]
    return (
        sorted(domain.cache.uids()),
        [(nodes.node(row).name, sorted(pod.uid for pod in nodes.pods_on(row))) for row in rows],
        nodes.requested("cpu")[rows].tolist(),
        [ledger.held() for ledger in domain.cache.ledgers],
        [(pod.uid, pod.nominated_node) for pod in domain.nominator.pods()],
    )


SPEC = PodSpec(requests={"cpu": 1000}, scoring_cpu_milli=1000, scoring_memory_bytes=2**28)


def test_all_members_are_placed_if_there_is_room() -> None:
    domain = Domain(make_node("a", cpu_milli=2000), make_node("b", cpu_milli=2000))
    result = attempt(domain, gang_of([make_pod(f"m{at}", spec=SPEC) for at in range(4)], 4))
    assert sorted(nodes_of(result).values()) == ["a", "a", "b", "b"]
    assert result.unplaced == ()
    domain.cache.validate()


def test_failed_gang_leaves_no_trace_and_each_member_gets_the_reason() -> None:
    domain = Domain(make_node("a", cpu_milli=2000), make_node("b", cpu_milli=1000))
    before = trace(domain)
    result = attempt(domain, gang_of([make_pod(f"m{at}", spec=SPEC) for at in range(4)], 4))
    assert result.placed == ()
    assert {one.message for one in result.unplaced} == {
        "gang g: 3 of the 4 members that must start together fit; m3: 0/2 nodes are available: 2 Insufficient cpu."
    }
    assert all({"NodeResourcesFit"} == one.rejectors for one in result.unplaced)
    assert trace(domain) == before
    domain.cache.validate()
    outcomes = {pod: domain.cycle.records.read(f"uid-{pod}")[-1] for pod in ("m0", "m3")}
    assert outcomes["m3"].outcome is Outcome.REFUSED
    assert outcomes["m0"].outcome is Outcome.GIVEN_UP
    assert outcomes["m0"].message.startswith("its gang could not start: 3 of the 4 members")
    assert outcomes["m0"].status is not None
    assert outcomes["m0"].status.plugin == "GangScheduling", "the API server has turned nobody away"


def test_surplus_members_stay_pending() -> None:
    domain = Domain(make_node("a", cpu_milli=3000))
    result = attempt(domain, gang_of([make_pod(f"m{at}", spec=SPEC) for at in range(5)], 2))
    assert len(result.placed) == 3
    assert [one.message for one in result.unplaced] == ["0/1 nodes are available: 1 Insufficient cpu."] * 2


def test_infeasible_members_do_not_block_the_gang_minimum() -> None:
    domain = Domain(make_node("a", cpu_milli=3000))
    pods = [make_pod("huge", cpu_milli=9000), *(make_pod(f"m{at}", spec=SPEC) for at in range(3))]
    result = attempt(domain, gang_of(pods, 3))
    assert sorted(nodes_of(result)) == ["m0", "m1", "m2"]


def test_linked_gangs_are_placed_all_or_none() -> None:
    """scheduler-plugins#117: groups {A, B} and {C, D}, which come in the order A C B D, hold nothing against each other."""
    domain = Domain(make_node("a", cpu_milli=2000))
    pods = {name: make_pod(name, spec=SPEC) for name in "acbd"}
    first = gang_of([pods["a"], pods["b"]], {"A": 1, "B": 1}, keys={"a": "A", "b": "B"})
    second = gang_of([pods["c"], pods["d"]], {"C": 1, "D": 1}, keys={"c": "C", "d": "D"})
    assert sorted(nodes_of(attempt(domain, first))) == ["a", "b"]
    assert attempt(domain, second).placed == ()
    domain.cache.forget("uid-a")
    assert attempt(domain, second).placed == ()
    domain.cache.forget("uid-b")
    assert sorted(nodes_of(attempt(domain, second))) == ["c", "d"]


def test_messages_of_linked_gangs_name_no_pods_of_other_namespaces() -> None:
    domain = Domain(make_node("a", cpu_milli=1000))
    pods = [make_pod("mine", spec=SPEC, namespace="here"), make_pod("secret", spec=SPEC, namespace="there")]
    entries = tuple(QueuedPod(pod, 0.0) for pod in pods)
    gang_of_each = {pods[0].uid: "here/x", pods[1].uid: "there/y"}
    result = attempt(domain, QueuedGang(entries, {"here/x": 1, "there/y": 1}, gang_of_each))
    assert {one.message for one in result.unplaced} == {
        "gang here/x and there/y: gang there/y: 0 of the 1 members that must start together fit"
    }


def test_two_large_gangs_are_placed_one_after_the_other() -> None:
    domain = Domain(*(make_node(f"n{at}", cpu_milli=1000) for at in range(10)))
    gangs = [gang_of([make_pod(f"{name}{at}", spec=SPEC) for at in range(6)], 6) for name in "xy"]
    assert [len(attempt(domain, gang).placed) for gang in gangs] == [6, 0]


def test_large_gang_without_room_is_refused_before_any_placement() -> None:
    domain = Domain(*(make_node(f"n{at}", cpu_milli=1000) for at in range(10)))
    result = attempt(domain, gang_of([make_pod(f"m{at}", spec=SPEC) for at in range(20)], 20))
    assert result.unplaced[0].message == (
        "gang g: the nodes have room for 10 of the 20 identical members that must start together"
    )
    small = gang_of([make_pod(f"s{at}", spec=SPEC) for at in range(3)], 3)
    assert len(attempt(domain, small).placed) == 3, "small ones go on beside it"


def racks(count: int, *, per_rack: int = 2, cpu_milli: int = 2000) -> list[Any]:
    return [
        make_node(f"r{rack}n{at}", cpu_milli=cpu_milli, labels={"rack": f"r{rack}", "zone": f"z{rack % 2}"})
        for rack in range(count)
        for at in range(per_rack)
    ]


RACK, RACK_REQUIRED = TopologyLevel("rack"), TopologyLevel("rack", is_required=True)


def racks_of(domain: Domain, result: GangResult, key: str = "rack") -> set[str]:
    nodes = domain.cache.nodes
    return {nodes.node(domain.row(placed.node)).labels[key] for placed in result.placed}


def test_gang_is_packed_into_the_rack_it_fills_most() -> None:
    domain = Domain(*racks(3))
    domain.cache.place(make_pod("standing", cpu_milli=1000, node="r1n0"))
    result = attempt(domain, gang_of([make_pod(f"m{at}", spec=SPEC) for at in range(3)], 3, topology=(RACK_REQUIRED,)))
    assert racks_of(domain, result) == {"r1"}


def test_rack_that_holds_all_pending_members_is_preferred() -> None:
    for standing, rack in ((("r0n0", "r2n0"), "r1"), (("r0n0", "r1n0", "r2n0", "r2n1"), "r0")):
        domain = Domain(*racks(3))
        for at, node in enumerate(standing):
            domain.cache.place(make_pod(f"standing-{at}", cpu_milli=1000, node=node))
        pods = [make_pod(f"m{at}", spec=SPEC) for at in range(4)]
        result = attempt(domain, gang_of(pods, 2, topology=(RACK_REQUIRED,)))
        assert racks_of(domain, result) == {rack}
        assert len(result.placed) == 4 - (rack == "r0")


def test_rack_choice_follows_the_most_important_members() -> None:
    domain = Domain(*racks(2))
    pods = [make_pod("first", cpu_milli=1000, priority=5), make_pod("last", cpu_milli=9000)]
    result = attempt(domain, gang_of(pods, 1, topology=(RACK_REQUIRED,)))
    assert list(nodes_of(result)) == ["first"]


def test_required_rack_is_kept_and_a_preferred_one_may_be_left() -> None:
    domain = Domain(*racks(3))
    pods = [make_pod(f"m{at}", spec=SPEC) for at in range(5)]
    refused = attempt(domain, gang_of(pods, 5, topology=(RACK_REQUIRED,)))
    assert refused.placed == ()
    assert refused.unplaced[0].message == (
        "gang g: no domain of rack has room for the 5 members that must start together, 4 at most"
    )
    assert len(racks_of(domain, attempt(domain, gang_of(pods, 5, topology=(RACK,))))) == 2


def test_rack_at_its_pod_limit_has_no_room() -> None:
    domain = Domain(*(make_node(f"n{at}", pods=1, labels={"rack": "r"}) for at in range(2)))
    pods = [make_pod(f"m{at}", spec=SPEC) for at in range(3)]
    refused = attempt(domain, gang_of(pods, 3, topology=(RACK_REQUIRED,)))
    assert refused.unplaced[0].message == (
        "gang g: no domain of rack has room for the 3 members that must start together, 2 at most"
    )


def test_narrowest_topology_level_that_fits_is_used() -> None:
    domain = Domain(*racks(4))
    levels = (TopologyLevel("zone", is_required=True), RACK)
    small = attempt(domain, gang_of([make_pod(f"s{at}", spec=SPEC) for at in range(3)], 3, topology=levels))
    assert len(racks_of(domain, small)) == 1
    large = attempt(domain, gang_of([make_pod(f"l{at}", spec=SPEC) for at in range(6)], 6, topology=levels))
    assert len(racks_of(domain, large)) == 2
    assert len(racks_of(domain, large, "zone")) == 1


def test_recovering_gang_uses_the_domain_of_its_placed_members() -> None:
    domain = Domain(*racks(3, cpu_milli=4000))
    domain.cache.place(make_pod("standing", cpu_milli=1000, node="r2n1"))
    pods = [make_pod("m", spec=SPEC)]
    result = attempt(domain, gang_of(pods, 1, topology=(RACK_REQUIRED,), member_nodes=("r2n1",)))
    assert racks_of(domain, result) == {"r2"}


@pytest.mark.parametrize("seed", range(30))
def test_members_see_the_placements_of_earlier_members(seed: int) -> None:
    """A gang that fits gets what its members would get alone, in their order."""
    rng = random.Random(seed)
    nodes = [make_node(f"n{at}", cpu_milli=rng.choice((2000, 4000))) for at in range(rng.randint(1, 6))]
    pods = [make_pod(f"m{at}", cpu_milli=rng.choice((500, 1000, 1500)), priority=0) for at in range(rng.randint(1, 8))]
    together, alone = Domain(*nodes), Domain(*nodes)
    singles = [alone.schedule(pod) for pod in pods]
    expected = {one.pod.name: one.node for one in singles if isinstance(one, Placed)}
    result = attempt(together, gang_of(pods, len(expected)))
    assert nodes_of(result) == expected
    assert {one.pod.name for one in result.unplaced} == {pod.name for pod in pods} - expected.keys()
    refused = Domain(*nodes)
    if len(expected) < len(pods) and len(attempt(refused, gang_of(pods, len(expected) + 1)).placed) <= len(expected):
        assert trace(refused) == trace(Domain(*nodes))


def test_large_members_are_placed_before_small_ones() -> None:
    """In the order in which they came, the small ones fill the only node that holds the large one."""
    domain = Domain(make_node("large", cpu_milli=3000), make_node("small", cpu_milli=1000))
    pods = [make_pod("s0", cpu_milli=1000), make_pod("l0", cpu_milli=3000)]
    assert nodes_of(attempt(domain, gang_of(pods, 2))) == {"s0": "small", "l0": "large"}


def test_reported_reason_is_of_the_order_that_placed_most() -> None:
    domain = Domain(make_node("a", cpu_milli=3000))
    pods = [*(make_pod(f"s{at}", cpu_milli=1000) for at in range(3)), make_pod("l0", cpu_milli=3000)]
    (message,) = {one.message for one in attempt(domain, gang_of(pods, 4)).unplaced}
    assert "3 of the 4 members that must start together fit; l0: " in message


def test_member_with_affinity_is_retried_after_the_other_member() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "head"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    worker = decode_pod(pod_document("worker", container(cpu="1"), affinity=affinity))
    head = decode_pod(pod_document("head", container(cpu="1"), labels={"app": "head"}))
    nodes = [make_node(name, cpu_milli=2000) for name in "ab"]
    domain = Domain(*nodes, in_tree=("NodeResourcesFit", "InterPodAffinity"))
    found = nodes_of(attempt(domain, gang_of([worker, head], 2)))
    assert found["worker"] == found["head"]


def test_reserve_refusal_of_one_member_undoes_its_gang() -> None:
    calls: list[str] = []

    class Picky(Reserves):
        def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
            self._calls.append(f"reserve {pod.name}")
            return Status.unschedulable("not this one") if pod.name == "m2" else SUCCESS

        def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
            self._calls.append(f"unreserve {pod.name}")

    domain = Domain(make_node("a", cpu_milli=9000), plugins=[Picky("Picky", calls)])
    before = trace(domain)
    result = attempt(domain, gang_of([make_pod(f"m{at}", spec=SPEC) for at in range(3)], 3))
    assert result.placed == ()
    assert calls[:3] == ["reserve m0", "reserve m1", "reserve m2"]
    assert calls[-2:] == ["unreserve m1", "unreserve m0"]
    assert "m2: 0/1 nodes are available: 1 not this one." in result.unplaced[0].message
    assert trace(domain) == before


def test_members_keep_their_nominated_nodes() -> None:
    domain = Domain(*(make_node(name, cpu_milli=1000) for name in "abc"))
    pods = [make_pod(f"m{at}", spec=SPEC) for at in range(3)]
    for pod, node in zip(pods, "cab", strict=True):
        domain.nominator.nominate(pod, node)
    assert nodes_of(attempt(domain, gang_of(pods, 3))) == {"m0": "c", "m1": "a", "m2": "b"}
    assert not domain.nominator.pods()


@pytest.mark.parametrize(("priority", "placed"), [(5, []), (0, ["m0", "m1"])])
def test_gang_does_not_use_room_of_a_more_important_nominated_pod(priority: int, placed: list[str]) -> None:
    domain = Domain(make_node("a", cpu_milli=2000))
    domain.nominator.nominate(make_pod("promised", cpu_milli=1000, priority=priority), "a")
    members = [make_pod(f"m{at}", cpu_milli=1000, priority=1) for at in range(2)]
    assert sorted(nodes_of(attempt(domain, gang_of(members, 2)))) == placed


def test_undone_gang_keeps_its_nominations() -> None:
    domain = Domain(make_node("a", cpu_milli=1000))
    pods = [make_pod(f"m{at}", spec=SPEC) for at in range(2)]
    domain.nominator.nominate(pods[0], "a")
    assert attempt(domain, gang_of(pods, 2)).placed == ()
    assert domain.nominator.node_of("uid-m0") == "a"


def test_members_keep_nominated_nodes_while_victims_are_deleting() -> None:
    """Else whoever comes meanwhile takes the room, and others are removed for the gang again."""
    going = make_pod("going", cpu_milli=1000, node="a", is_deleting=True, is_preempted=True)
    domain = Domain(make_node("a", cpu_milli=1000), in_tree=("NodeResourcesFit", "DefaultPreemption"))
    domain.cache.place(going)
    urgent = [make_pod(f"m{at}", cpu_milli=500, priority=9) for at in range(2)]
    for pod in urgent:
        domain.nominator.nominate(pod, "a")
    result = attempt(domain, gang_of(urgent, 2))
    assert {one.message.rpartition("preemption: ")[2] for one in result.unplaced} == {TERMINATING}
    assert [one.nominated_node for one in result.unplaced] == [None, None]


def test_remote_plugins_are_called_for_all_members_at_once() -> None:
    domain = Domain(*(make_node(name, cpu_milli=1000) for name in "abc"), plugins=[SlowOracle()])
    pods = [make_pod(f"m{at}", spec=SPEC) for at in range(3)]
    running = domain.cycle.attempt(gang_of(pods, 3))
    asked = requests_of(running)
    assert [one.key for one in asked] == ["SlowOracle/uid-m0", "SlowOracle/uid-m1", "SlowOracle/uid-m2"]
    domain.cache.remove_node("a")
    domain.cache.set_node(make_node("d", cpu_milli=1000))
    result = ended(running, {one.key: one.request for one in asked})
    assert result.placed == (), "a node is gone, and nobody was asked about the one that came"
    domain.cache.set_node(make_node("a", cpu_milli=1000))
    running = domain.cycle.attempt(gang_of(pods, 3))
    answers: dict[str, object] = {one.key: one.request for one in requests_of(running)}
    assert len(nodes_of(ended(running, answers))) == 3


class Unwilling(SlowOracle):
    """Refuses every node once it has been answered."""

    name = "Unwilling"
    reasons = ReasonTable(name)
    refuses = reasons.code(Code.UNSCHEDULABLE, "node(s) were refused outside")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.full(len(rows), self.refuses, np.uint8)


def test_gang_refused_by_a_remote_plugin_is_requeued_by_its_events() -> None:
    domain = Domain(make_node("a", cpu_milli=1000), make_node("b", cpu_milli=1), plugins=[Unwilling()])
    running = domain.cycle.attempt(gang_of([make_pod("m0", spec=SPEC), make_pod("m1", spec=SPEC)], 2))
    answers: dict[str, object] = {one.key: one.request for one in requests_of(running)}
    first = ended(running, answers).unplaced[0]
    assert "1 node(s) were refused outside" in first.message
    assert "Unwilling" in first.rejectors


NEAR = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "main"}}}
        ]
    }
}


def main_and_near(count: int = 1) -> QueuedGang:
    """One member, and others that no node takes until that one is placed."""
    near = [decode_pod(pod_document(f"near{at}", container(cpu="100m"), affinity=NEAR)) for at in range(count)]
    return gang_of([*near, make_pod("main", cpu_milli=100, labels={"app": "main"})], count + 1)


def asked_later(running: GangAttempt, asked: Sequence[RemoteRequest]) -> tuple[list[str], Sequence[RemoteRequest]]:
    """Members held while plugins are asked again, and what they are asked."""
    paused = running.send({one.key: one.request for one in asked})
    assert isinstance(paused, Pause)
    held = [placed.pod.name for placed in paused.placed]
    again = running.send({})
    assert not isinstance(again, Pause)
    return held, again


@pytest.mark.parametrize("count", [1, 3])
def test_member_that_fits_later_is_asked_about_before_it_is_placed(count: int) -> None:
    domain = Domain(
        *(make_node(name, cpu_milli=1000, labels={"kubernetes.io/hostname": name}) for name in "abc"),
        in_tree=("NodeResourcesFit", "InterPodAffinity"),
        plugins=[SlowOracle()],
    )
    gang = main_and_near(count)
    running = domain.cycle.attempt(gang)
    first = requests_of(running)
    assert [one.key for one in first] == ["SlowOracle/uid-main"]
    held, again = asked_later(running, first)
    assert held == ["main"]
    names = {member.pod.uid: member.pod.name for member in gang.members}
    assert [names[one.uid] for one in again] == [f"near{at}" for at in range(count)]
    result = ended(running, {one.key: one.request for one in again})
    assert len(result.placed) == count + 1
    assert len({placed.node for placed in result.placed}) == 1
    domain.cache.validate()


def test_gang_is_refused_if_a_remote_plugin_refuses_a_later_member() -> None:
    class RefusesNear(Unwilling):
        def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
            return np.full(len(rows), self.refuses if pod.name.startswith("near") else 0, np.uint8)

    domain = Domain(
        *(make_node(name, cpu_milli=1000, labels={"kubernetes.io/hostname": name}) for name in "ab"),
        in_tree=("NodeResourcesFit", "InterPodAffinity"),
        plugins=[RefusesNear()],
    )
    before = trace(domain)
    running = domain.cycle.attempt(main_and_near())
    _, again = asked_later(running, requests_of(running))
    result = ended(running, {one.key: one.request for one in again})
    assert result.placed == ()
    first = result.unplaced[0]
    assert first.pod.name == "near0"
    assert "1 node(s) were refused outside" in first.message
    assert {"Unwilling", "InterPodAffinity"} <= first.rejectors
    assert trace(domain) == before
    domain.cache.validate()


def test_gang_is_requeued_by_an_event_of_a_node_full_at_the_request() -> None:
    domain = Domain(make_node("a", cpu_milli=9000), make_node("b", cpu_milli=1000), plugins=[Unwilling()])
    domain.cache.place(make_pod("other", cpu_milli=1000, node="b"))
    running = domain.cycle.attempt(gang_of([make_pod("m0", spec=SPEC), make_pod("m1", spec=SPEC)], 2))
    answers: dict[str, object] = {one.key: one.request for one in requests_of(running)}
    domain.cache.remove("uid-other")
    first = ended(running, answers).unplaced[0]
    assert "1 node(s) became feasible while remote requests about others were in flight" in first.message
    assert "NodeResourcesFit" in first.rejectors


def test_failed_remote_answer_fails_the_member_and_its_gang() -> None:
    domain = Domain(*(make_node(name, cpu_milli=1000) for name in "abc"), plugins=[SlowOracle()])
    pods = [make_pod(f"m{at}", spec=SPEC) for at in range(3)]
    running = domain.cycle.attempt(gang_of(pods, 3))
    answers: dict[str, object] = {one.key: one.request for one in requests_of(running)}
    answers["SlowOracle/uid-m1"] = PluginFailure(Status.error("no answer").by("SlowOracle"))
    result = ended(running, answers)
    assert result.placed == ()
    assert result.unplaced[0].pod.name == "m1"
    assert {one.is_error for one in result.unplaced} == {True}
    assert "m1: no answer" in result.unplaced[0].message
