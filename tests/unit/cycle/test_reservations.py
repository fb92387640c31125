"""A place that is kept for a replacement: nobody of its rank takes it, and the replacement gets exactly it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.results import Placed, Unplaced
from multisched.model.objects import CPU, HostPort, Owner, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.state.reservations import Reservations, is_stand_in, stand_in_of
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain

IN_TREE = ("NodePorts", "NodeResourcesFit", "InterPodAffinity")
WEB = Owner("ReplicaSet", "web-1", "uid-rs")


class ReservingDomain(Domain):
    """Two nodes of four cores; `moving` stands on the first, and its place is kept on the second."""

    def __init__(self, **moving: Any) -> None:
        super().__init__(make_node("source"), make_node("target"), in_tree=IN_TREE)
        self.reservations = Reservations(self.nominator)
        self.handed = 0
        self.moving = replica("moving", node="source", **moving)
        self.cache.place(self.moving)

    def hold(self) -> None:
        self.reservations.reserve(self.moving.uid, stand_in_of(self.moving, "target"), "target", self.count)

    def count(self) -> None:
        self.handed += 1

    def refusal(self) -> str:
        return self.cycle.refusal_of_move(self.moving, stand_in_of(self.moving, "target"), "target")

    def node_of(self, pod: Pod) -> str:
        result = self.schedule(pod)
        return result.node if isinstance(result, Placed) else ""


def replica(name: str, *, cpu: int = 3000, node: str = "", owner: Owner = WEB, **fields: Any) -> Pod:
    return make_pod(name, cpu_milli=cpu, node=node, owner=owner, **fields)


def test_reserved_place_is_kept_from_equal_pods_for_the_replacement() -> None:
    domain = ReservingDomain()
    domain.hold()
    assert domain.node_of(make_pod("other", cpu_milli=2000)) == ""
    assert domain.node_of(make_pod("small", cpu_milli=1000)) in ("source", "target")

    domain.reservations.assign_to_replacement("uid-moving", frozenset({"uid-moving"}))
    replacement = replica("new")
    assert domain.reservations.offer(replacement)
    assert domain.handed == 1
    assert domain.reservations.replacement("uid-moving") == "uid-new"
    assert domain.node_of(make_pod("late", cpu_milli=2000)) == ""
    assert domain.node_of(replacement) == "target"
    domain.cache.validate()


def test_released_reservation_frees_its_place() -> None:
    domain = ReservingDomain()
    domain.hold()
    assert len(domain.nominator) == 1
    assert domain.reservations.release("uid-moving")
    assert not domain.reservations.release("uid-moving")
    assert len(domain.nominator) == len(domain.reservations) == 0
    assert domain.node_of(make_pod("other", cpu_milli=4000)) == "target"


def test_higher_priority_pod_uses_a_reserved_place() -> None:
    domain = ReservingDomain()
    domain.hold()
    assert domain.node_of(make_pod("urgent", cpu_milli=4000, priority=9)) == "target"
    assert domain.refusal().startswith("NodeResourcesFit")


@pytest.mark.parametrize(
    ("pod", "gets_it"),
    [
        (replica("new"), True),
        (replica("new", cpu=2500), True),
        (replica("larger", cpu=3001), False),
        (replica("of-another-template", owner=Owner("ReplicaSet", "web-2", "uid-rs-2")), False),
        (msgspec.structs.replace(replica("elsewhere"), namespace="another"), False),
        (make_pod("of-nobody", cpu_milli=3000), False),
        (replica("known"), False),
        (msgspec.structs.replace(replica("x"), spec=PodSpec(scheduler_name="other", requests={CPU: 3000})), False),
    ],
)
def test_only_a_fitting_replacement_gets_the_reservation(pod: Pod, gets_it: bool) -> None:
    domain = ReservingDomain()
    domain.hold()
    assert not domain.reservations.offer(pod), "nothing was evicted yet"
    domain.reservations.assign_to_replacement("uid-moving", frozenset({"uid-moving", "uid-known"}))
    assert domain.reservations.offer(pod) is gets_it
    assert domain.reservations.is_reserved("uid-moving") is not gets_it
    assert not (gets_it and domain.reservations.offer(replica("second"))), "it is given once"


def test_reservation_keeps_host_ports() -> None:
    spec = PodSpec(requests={CPU: 10}, host_ports=(HostPort("", "TCP", 80),))
    domain = ReservingDomain(spec=spec)
    domain.hold()
    assert domain.node_of(make_pod("same-port", spec=spec)) == ""
    assert domain.node_of(make_pod("no-port", cpu_milli=10)) in ("source", "target")


def test_pod_with_zone_anti_affinity_may_move_within_its_zone() -> None:
    """Its own presence is no reason against its replacement."""
    term = PodAffinityTerm("zone", LabelSelector((Requirement("app", Operator.IN, ("web",)),)))
    spec = PodSpec(requests={CPU: 10}, pod_affinity=PodAffinity(anti_required=(term,)))
    domain = ReservingDomain(spec=spec, labels={"app": "web"})
    for name in ("source", "target"):
        domain.cache.set_node(make_node(name, labels={"zone": "a"}))
    assert domain.refusal() == ""
    domain.cache.place(replica("peer", spec=spec, node="target", labels={"app": "web"}))
    assert domain.refusal().startswith("InterPodAffinity")


def test_reservation_on_a_deleted_node_is_refused() -> None:
    domain = ReservingDomain()
    domain.cache.remove_node("target")
    assert "target" in domain.refusal()


happenings = st.lists(
    st.tuples(st.sampled_from(["hold", "hand over", "release", "come", "leave"]), st.integers(0, 3)), max_size=40
)


@given(happenings)
def test_reservations_never_overcommit_or_leak(story: list[tuple[str, int]]) -> None:
    domain, places, came = ReservingDomain(cpu=1500), moving_pods(), 0
    for word, number in story:
        pod = places[number]
        match word:
            case "hold":
                domain.reservations.reserve(pod.uid, stand_in_of(pod, "target"), "target", domain.count)
            case "hand over":
                domain.reservations.assign_to_replacement(pod.uid, frozenset(one.uid for one in places))
            case "release":
                domain.reservations.release(pod.uid)
            case "come":
                came += 1
                new = replica(f"new-{came}", cpu=1500)
                was_given = domain.reservations.offer(new)
                result = domain.schedule(new)
                assert isinstance(result, Placed | Unplaced)
                if not isinstance(result, Placed) and was_given:
                    domain.nominator.remove(new.uid)
            case _:
                placed = [entry.pod.uid for entry in domain.cache if entry.pod.name.startswith("new")]
                if placed:
                    domain.cache.forget(placed[number % len(placed)])
        domain.cache.validate()
        for row, node in domain.cache.nodes.live_rows():
            assert int(domain.cache.nodes.requested(CPU)[row]) <= node.allocatable[CPU]
        kept = [one for one in domain.nominator.on("target") if is_stand_in(one)]
        assert len(kept) <= len(domain.reservations)
    for pod in places:
        domain.reservations.release(pod.uid)
    assert not any(is_stand_in(one) for one in domain.nominator.on("target"))


def moving_pods() -> list[Pod]:
    return [replica(f"old-{number}", cpu=1500, node="source") for number in range(4)]


def test_stand_in_equals_the_pending_replacement() -> None:
    standing = replica("moving", node="source", phase="Running", is_deleting=True)
    stand_in = stand_in_of(standing, "target")
    assert is_stand_in(stand_in)
    assert not is_stand_in(standing)
    assert (stand_in.node, stand_in.nominated_node, stand_in.phase) == ("", "target", "Pending")
    assert (stand_in.is_deleting, stand_in.held, stand_in.held_scoring) == (False, None, None)
    assert (stand_in.spec, stand_in.owner, stand_in.key) == (standing.spec, standing.owner, standing.key)
