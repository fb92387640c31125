"""Ports of a host that two pods cannot both have: the same number and protocol, on one address that both want."""

from __future__ import annotations

import pytest

from multisched.model.objects import HostPort, Pod, PodSpec
from multisched.testing.relations import clash


def holder(name: str, ip: str, protocol: str = "TCP", port: int = 80) -> Pod:
    return Pod("default", name, name, 1, PodSpec(host_ports=(HostPort(ip, protocol, port),)))


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
