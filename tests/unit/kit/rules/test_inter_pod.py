"""Relations of pods in plain arithmetic: ports that two pods cannot both have, and nodes that count for a hard spread."""

from __future__ import annotations

import pytest

from multisched.model.objects import HostPort, Pod, PodSpec
from multisched.model.placement import SpreadConstraint
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.testing.builders import HOSTNAME, make_node, make_pod
from tests.kit.rules.inter_pod import allows, clash


def holder(name: str, ip: str, protocol: str = "TCP", port: int = 80) -> Pod:
    return make_pod(name, spec=PodSpec(host_ports=(HostPort(ip, protocol, port),)))


@pytest.mark.parametrize(
    ("ours", "theirs", "do_clash"),
    [
        (holder("a", ""), holder("b", ""), True),
        (holder("a", ""), holder("b", "10.0.0.1"), True),
        (holder("a", "10.0.0.1"), holder("b", ""), True),
        (holder("a", "10.0.0.1"), holder("b", "10.0.0.1"), True),
        (holder("a", "10.0.0.1"), holder("b", "10.0.0.2"), False),
        (holder("a", "", "UDP"), holder("b", ""), False),
        (holder("a", "", port=81), holder("b", ""), False),
    ],
)
def test_two_pods_want_one_port(ours: Pod, theirs: Pod, do_clash: bool) -> None:
    assert (clash(ours, theirs) is not None) == do_clash


def test_a_node_without_the_label_of_one_constraint_counts_for_none_of_them() -> None:
    selector = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
    spread = tuple(SpreadConstraint(1, key, is_hard=True, selector=selector) for key in ("zone", HOSTNAME))
    pod = make_pod("new", spec=PodSpec(spread=spread), labels={"app": "web"})
    here, empty = (make_node(name, labels={"zone": "a"}) for name in ("here", "empty"))
    bare = make_node("bare")
    standing = [(pod, here)]

    assert allows(pod, here, [here, bare], standing, lambda node: True)
    assert not allows(pod, here, [here, empty], standing, lambda node: True)
