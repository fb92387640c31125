"""Rules about pairs of pods: host ports that conflict, and nodes that count for a hard spread."""

from __future__ import annotations

import pytest

from multisched.model.objects import HostPort, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.testing.builders import HOSTNAME, make_node, make_pod
from tests.kit.checkers.reference_rules import Relations, has_room, keep_apart, ports_conflict, scoring_state
from tests.reference.amounts import asked_scoring_requests


def pod_with_port(name: str, ip: str, protocol: str = "TCP", port: int = 80) -> Pod:
    return make_pod(name, spec=PodSpec(host_ports=(HostPort(ip, protocol, port),)))


@pytest.mark.parametrize(
    ("ours", "theirs", "do_conflict"),
    [
        (pod_with_port("a", ""), pod_with_port("b", ""), True),
        (pod_with_port("a", ""), pod_with_port("b", "10.0.0.1"), True),
        (pod_with_port("a", "10.0.0.1"), pod_with_port("b", ""), True),
        (pod_with_port("a", "10.0.0.1"), pod_with_port("b", "10.0.0.1"), True),
        (pod_with_port("a", "10.0.0.1"), pod_with_port("b", "10.0.0.2"), False),
        (pod_with_port("a", "", "UDP"), pod_with_port("b", ""), False),
        (pod_with_port("a", "", port=81), pod_with_port("b", ""), False),
    ],
)
def test_host_ports_conflict_by_address_protocol_and_port(ours: Pod, theirs: Pod, do_conflict: bool) -> None:
    assert ports_conflict(ours, theirs) == do_conflict


def test_a_node_without_the_label_of_one_constraint_counts_for_none_of_them() -> None:
    selector = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
    spread = tuple(SpreadConstraint(1, key, is_hard=True, selector=selector) for key in ("zone", HOSTNAME))
    pod = make_pod("new", spec=PodSpec(spread=spread), labels={"app": "web"})
    here, empty = (make_node(name, labels={"zone": "a"}) for name in ("here", "empty"))
    bare = make_node("bare")
    pods_on_nodes = [(pod, here)]

    assert Relations(pod, [here, bare], pods_on_nodes, lambda node: True).allow(here)
    assert not Relations(pod, [here, empty], pods_on_nodes, lambda node: True).allow(here)


@pytest.mark.parametrize(("app", "is_apart"), [("foe", True), ("friend", False)])
def test_anti_affinity_of_either_pod_keeps_them_apart(app: str, is_apart: bool) -> None:
    """Other rules of the pod, which a single host cannot meet, are ignored."""
    foes = LabelSelector((Requirement("app", Operator.IN, ("foe",)),))
    apart = PodAffinity(required=(PodAffinityTerm("zone", foes),), anti_required=(PodAffinityTerm(HOSTNAME, foes),))
    spread = (SpreadConstraint(1, "zone", is_hard=True, selector=foes),)
    ours = make_pod("ours", spec=PodSpec(pod_affinity=apart, spread=spread))
    theirs = make_pod("theirs", labels={"app": app})

    assert keep_apart(ours, theirs) == is_apart
    assert keep_apart(theirs, ours) == is_apart


@pytest.mark.parametrize(("cpu_milli", "fits"), [(500, True), (501, False)])
def test_free_resources_are_allocatable_minus_other_pods(cpu_milli: int, fits: bool) -> None:
    node = make_node("node", cpu_milli=2000)

    assert has_room(make_pod("new", cpu_milli=cpu_milli), node, [make_pod("there", cpu_milli=1500)]) == fits


def test_a_pod_of_several_containers_is_scored_by_what_it_requests() -> None:
    """The requests of all containers are rendered in the first one: the others must not get the defaults of a container without
    requests.
    """
    spec = PodSpec(images=("a", "b"), scoring_cpu_milli=500, scoring_memory_bytes=64 << 20)
    pod = make_pod("p", spec=spec)

    assert asked_scoring_requests(scoring_state(pod).document) == {"cpu": 500, "memory": 64 << 20}
