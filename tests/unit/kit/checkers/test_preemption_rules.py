"""Violations of preemptions that do not help: the rules of the preemptor, on a node without its victims."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from multisched.model.cluster_objects import PersistentVolume, PersistentVolumeClaim
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import HostPort, Node, Pod
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint
from multisched.model.selectors import LabelSelector, NodeSelector, NodeTerm, Operator, Requirement
from multisched.model.volumes import PodVolume
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import make_node, make_pod
from tests.kit.checkers.preemption_rules import fault_of_preemption

ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


def node(name: str, zone: str = "z0") -> Node:
    return make_node(name, cpu_milli=2000, labels={ZONE: zone} if zone else {})


def pod(name: str, cpu_milli: int = 1000, *, app: str = "any", **spec: Any) -> Pod:
    made = make_pod(name, cpu_milli=cpu_milli, labels={"app": app})
    return replace(made, spec=replace(made.spec, **spec))


def with_claim(one: Pod) -> Pod:
    volumes = (PodVolume(claim="data"),)
    return replace(one, spec=replace(one.spec, volumes=volumes))


PORT = HostPort("", "TCP", 80)
AWAY = PodAffinity(anti_required=(PodAffinityTerm(ZONE, LabelSelector((Requirement("app", Operator.IN, ("foe",)),))),))
HERE, THERE = node("here"), node("there")
VICTIM = pod("victim", 2000)


def fault(preemptor: Pod, *others: tuple[Pod, Node], volume: dict[str, Any] | None = None, **claim: Any) -> str:
    """Returns the fault of evicting the victim, which fills the node."""
    objects = ObjectStore()
    bound_to = "disk" if volume is not None else ""
    objects.set(
        ObjectKind.PERSISTENT_VOLUME_CLAIM,
        PersistentVolumeClaim(name="data", namespace="default", volume=bound_to, **claim),
    )
    objects.set(ObjectKind.PERSISTENT_VOLUME, PersistentVolume(name="disk", **(volume or {})))
    pods_on_nodes = [(VICTIM, HERE), *others]
    return fault_of_preemption(preemptor, HERE, [VICTIM], [HERE, THERE], pods_on_nodes, lambda node: True, objects)


@pytest.mark.parametrize(
    ("preemptor", "others", "expected"),
    [
        (pod("p", 2000), (), ""),
        (pod("p", 2001), (), "it has no room"),
        (pod("p"), ((pod("other", 1001), HERE),), "it has no room"),
        (pod("p"), ((pod("other", 2000), THERE),), ""),
        (pod("p", host_ports=(PORT,)), ((pod("other", 1, host_ports=(PORT,)), HERE),), "somebody has its port"),
        (pod("p", host_ports=(PORT,)), ((pod("other", 1, host_ports=(PORT,)), THERE),), ""),
        (pod("p", pod_affinity=AWAY), ((pod("other", 1, app="foe"), THERE),), "a rule about other pods forbids it"),
        (pod("p", pod_affinity=AWAY), ((pod("other", 1), THERE),), ""),
    ],
)
def test_pod_must_pass_all_filters_after_its_victims_are_removed(
    preemptor: Pod, others: tuple[tuple[Pod, Node], ...], expected: str
) -> None:
    assert fault(preemptor, *others) == expected


@pytest.mark.parametrize(
    ("victim", "expected"),
    [
        (replace(VICTIM, is_deleting=True), ""),
        (VICTIM, "a rule about other pods forbids it"),
        (replace(VICTIM, is_deleting=True, labels={"app": "foe"}), "a rule about other pods forbids it"),
        (replace(VICTIM, is_deleting=True, namespace="else"), "a rule about other pods forbids it"),
    ],
    ids=["counted twice", "stays counted once", "not of the constraint", "of another namespace"],
)
def test_terminating_victim_counts_twice_for_topology_spread(victim: Pod, expected: str) -> None:
    apart = SpreadConstraint(
        1, "kubernetes.io/hostname", True, LabelSelector((Requirement("app", Operator.IN, ("any",)),))
    )
    pods_on_nodes = [(victim, HERE), (pod("other", 1), HERE)]
    preemptor = pod("p", spread=(apart,))
    assert (
        fault_of_preemption(preemptor, HERE, [victim], [HERE, THERE], pods_on_nodes, lambda node: True, ObjectStore())
        == expected
    )


def affine(zone: str) -> NodeSelector:
    return NodeSelector((NodeTerm((Requirement(ZONE, Operator.IN, (zone,)),)),))


@pytest.mark.parametrize(
    ("volume", "is_reached"),
    [
        ({}, True),
        ({"labels": {ZONE: "z0"}}, True),
        ({"labels": {ZONE: "z1"}}, False),
        ({"labels": {ZONE: "z1__z0"}}, True),
        ({"labels": {OLD_ZONE: "z0"}}, True),
        ({"labels": {OLD_ZONE: "z1"}}, False),
        ({"node_affinity": affine("z0")}, True),
        ({"node_affinity": affine("z1")}, False),
    ],
)
def test_bound_volumes_must_be_reachable_from_the_node(volume: dict[str, Any], is_reached: bool) -> None:
    assert fault(with_claim(pod("p")), volume=volume) == ("" if is_reached else "its volume disk is out of reach")


def test_read_write_once_pod_claim_is_free_if_its_user_is_a_victim() -> None:
    user = with_claim(pod("user", 1))
    sole = "its claim data is for one pod alone"
    assert fault(with_claim(pod("p")), (user, THERE), access_modes=("ReadWriteOncePod",)) == sole
    assert fault(with_claim(pod("p")), (user, THERE), access_modes=("ReadWriteOnce",)) == ""
    assert fault(with_claim(pod("p")), (pod("other", 1), THERE), access_modes=("ReadWriteOncePod",)) == ""


def test_node_without_a_zone_label_passes_the_zone_check() -> None:
    nowhere = node("nowhere", zone="")
    objects = ObjectStore()
    objects.set(
        ObjectKind.PERSISTENT_VOLUME_CLAIM, PersistentVolumeClaim(name="data", namespace="default", volume="disk")
    )
    objects.set(ObjectKind.PERSISTENT_VOLUME, PersistentVolume(name="disk", labels={ZONE: "z1"}))
    expected = fault_of_preemption(with_claim(pod("p")), nowhere, [], [nowhere], [], lambda node: True, objects)
    assert expected == ""
