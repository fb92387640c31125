"""Whose a node is, and who may use it."""

from __future__ import annotations

import pytest

from multisched import config
from multisched.config_nodes import NodeRouter
from multisched.model.objects import Node
from multisched.model.selectors import Taint

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
LABEL = "multisched.io/domain"


def node(
    labels: dict[str, str] | None = None, *, gpus: int = 0, resource: str = "nvidia.com/gpu", taint: str = ""
) -> Node:
    return Node(
        name="n",
        uid="u",
        version=1,
        labels=labels or {},
        taints=(Taint(taint, "", "NoSchedule"),) if taint else (),
        allocatable={"cpu": 1000, resource: gpus},
    )


def router(domains: str = "") -> NodeRouter:
    return NodeRouter(config.parse(HEAD + domains, "f") if domains else config.default())


@pytest.mark.parametrize(
    ("of", "home"),
    [
        (node(), "forecast"),
        (node(gpus=8), "gpu"),
        (node(gpus=8, resource="amd.com/gpu"), "gpu"),
        (node(gpus=0), "forecast"),
        (node(taint="virtual-kubelet.io/provider"), "job"),
        (node({"type": "virtual-kubelet"}), "job"),
        (node({LABEL: "job"}, gpus=8), "job"),
        (node({LABEL: "forecast", "type": "virtual-kubelet"}), "forecast"),
        (node({LABEL: "somebody-else"}), None),
    ],
)
def test_the_label_comes_first_then_gpus_then_virtual_nodes_then_the_rest(of: Node, home: str | None) -> None:
    assert router().home(of) == home


SELECTING = """\
domains:
  - name: forecast
  - name: gpu
  - name: qos
    nodes: {selector: {matchLabels: {pool: qos}}}
  - name: big
    nodes: {selector: {matchExpressions: [{key: cores, operator: Gt, values: ["64"]}]}}
  - name: job
    loans:
      - from: forecast
        selector: {matchLabels: {lend: "yes"}}
"""


def test_a_selector_comes_before_the_rules() -> None:
    assert router(SELECTING).home(node({"pool": "qos"}, gpus=8)) == "qos"
    assert router(SELECTING).home(node({"cores": "96"})) == "big"
    assert router(SELECTING).home(node({"cores": "64"})) == "forecast"


def test_a_node_of_two_selectors_belongs_to_the_first_and_both_are_named() -> None:
    both = node({"pool": "qos", "cores": "96"})
    assert router(SELECTING).home(both) == "qos"
    assert router(SELECTING).selecting(both) == ["qos", "big"]


def test_a_borrower_may_use_the_lent_nodes_and_the_lender_keeps_them() -> None:
    lent, kept = node({"lend": "yes"}), node()
    routes = router(SELECTING)
    assert routes.home(lent) == "forecast"
    assert routes.usable_by("job")(lent)
    assert routes.usable_by("forecast")(lent)
    assert not routes.usable_by("job")(kept)
    assert routes.lenders("job") == {"forecast"}


def test_only_the_lender_s_own_nodes_are_lent() -> None:
    assert not router(SELECTING).usable_by("job")(node({"lend": "yes"}, gpus=8))


def test_no_domain_uses_a_foreign_node_without_a_loan() -> None:
    routes = router()
    for domain in ("forecast", "job"):
        assert not routes.usable_by(domain)(node(gpus=1))
    assert routes.usable_by("gpu")(node(gpus=1))
