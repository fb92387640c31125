"""Whose a node is, and who may use it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.config import loading
from multisched.config.nodes import NodeRouter, NodeSelection, surely_share
from multisched.model.objects import Node
from multisched.model.selectors import LabelSelector, Operator, Requirement, Taint
from multisched.testing.builders import make_node

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
LABEL = "multisched.io/domain"


def node(
    labels: dict[str, str] | None = None, *, gpus: int = 0, resource: str = "nvidia.com/gpu", taint: str = ""
) -> Node:
    taints = (Taint(taint, "", "NoSchedule"),) if taint else ()
    return make_node("n", extra={resource: gpus}, labels=labels or {}, taints=taints)


def router(domains: str = "") -> NodeRouter:
    return NodeRouter(loading.parse(HEAD + domains, "f") if domains else loading.default())


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
def test_label_precedes_gpus_virtual_nodes_and_the_rest(of: Node, home: str | None) -> None:
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


def test_selector_precedes_the_built_in_rules() -> None:
    assert router(SELECTING).home(node({"pool": "qos"}, gpus=8)) == "qos"
    assert router(SELECTING).home(node({"cores": "96"})) == "big"
    assert router(SELECTING).home(node({"cores": "64"})) == "forecast"


def test_node_with_two_selectors_belongs_to_the_first_and_both_are_named() -> None:
    both = node({"pool": "qos", "cores": "96"})
    assert router(SELECTING).home(both) == "qos"
    assert router(SELECTING).selecting(both) == ["qos", "big"]


def test_node_with_two_selectors_is_disputed_unless_lent_or_labelled() -> None:
    both = node({"pool": "qos", "cores": "96"})
    lent = router(SELECTING.replace("  - name: big\n", "  - name: big\n    loans: [{from: qos}]\n"))
    assert router(SELECTING).disputed(both) == ["qos", "big"]
    assert router(SELECTING).disputed(node({"pool": "qos"})) == []
    assert router(SELECTING).disputed(node({"pool": "qos", "cores": "96", LABEL: "big"})) == []
    assert lent.disputed(both) == []


def selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, Operator.IN, tuple(value.split())) for key, value in labels.items()))


def more(key: str, operator: Operator, *values: str) -> LabelSelector:
    return LabelSelector((Requirement(key, operator, values),))


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (selector(pool="a"), selector(pool="b"), False),
        (selector(pool="a b"), selector(pool="b c"), True),
        (selector(pool="a"), selector(pool="a", disk="ssd"), True),
        (selector(pool="a", disk="hdd"), selector(pool="a", disk="ssd"), False),
        (selector(pool="a"), selector(disk="ssd"), False),
        (selector(pool="a"), more("pool", Operator.NOT_IN, "a"), False),
        (selector(pool="a"), more("pool", Operator.NOT_IN, "b"), True),
        (selector(pool="a"), more("pool", Operator.EXISTS), True),
        (selector(pool="a"), more("pool", Operator.DOES_NOT_EXIST), False),
        (more("pool", Operator.NOT_IN, "a"), more("pool", Operator.DOES_NOT_EXIST), True),
        (more("cores", Operator.GT, "64"), more("cores", Operator.LT, "66"), True),
        (more("cores", Operator.GT, "64"), more("cores", Operator.LT, "65"), False),
    ],
)
def test_selectors_over_the_same_labels_are_distinguished(
    one: LabelSelector, other: LabelSelector, shared: bool
) -> None:
    assert surely_share(one, other) is shared
    assert surely_share(other, one) is shared


_values = st.sampled_from(["a", "b", "5", "6", "7"])
_requirements = st.one_of(
    st.builds(Requirement, st.just("k"), st.sampled_from([Operator.IN, Operator.NOT_IN]), st.tuples(_values, _values)),
    st.builds(Requirement, st.just("k"), st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]), st.just(())),
    st.builds(
        Requirement, st.just("k"), st.sampled_from([Operator.GT, Operator.LT]), st.tuples(st.sampled_from("567"))
    ),
)
_selectors = st.lists(_requirements, min_size=1, max_size=3).map(lambda found: LabelSelector(tuple(found)))


@given(_selectors, _selectors)
def test_selectors_of_one_label_overlap_exactly_if_a_value_matches_both(
    one: LabelSelector, other: LabelSelector
) -> None:
    candidates: list[dict[str, str]] = [{}, *({"k": value} for value in ["a", "b", "z", *map(str, range(3, 10))])]
    assert surely_share(one, other) is any(one.matches(c) and other.matches(c) for c in candidates)


def test_borrower_may_use_lent_nodes_and_the_lender_keeps_them() -> None:
    lent, kept = node({"lend": "yes"}), node()
    routes = router(SELECTING)
    assert routes.home(lent) == "forecast"
    assert routes.usable_by("job")(lent)
    assert routes.usable_by("forecast")(lent)
    assert not routes.usable_by("job")(kept)
    assert routes.lenders("job") == {"forecast"}


def test_only_nodes_of_the_lender_are_lent() -> None:
    assert not router(SELECTING).usable_by("job")(node({"lend": "yes"}, gpus=8))


def test_foreign_node_is_unusable_without_a_loan() -> None:
    routes = router()
    for domain in ("forecast", "job"):
        assert not routes.usable_by(domain)(node(gpus=1))
    assert routes.usable_by("gpu")(node(gpus=1))


@pytest.mark.parametrize(
    ("of", "text", "why"),
    [
        (
            node(gpus=1),
            "",
            (
                "it has GPUs, and such nodes belong to domain gpu; label it multisched.io/domain=own,"
                " or let own borrow it (loans: [{from: gpu}])"
            ),
        ),
        (node({"type": "virtual-kubelet"}), "", "it is virtual, and such nodes belong to domain job; label it"),
        (node(), "", "it belongs to domain forecast, which has all nodes that no other domain claims; label it"),
        (
            node({"multisched.io/domain": "gpu"}),
            "",
            "its label multisched.io/domain=gpu assigns it to domain gpu; label it",
        ),
        (
            node({"multisched.io/domain": "gone"}),
            "",
            "its label multisched.io/domain=gone assigns it to no configured domain; label it",
        ),
        (
            node(gpus=1),
            "loans: [{from: gpu, selector: {matchLabels: {lend: 'yes'}}}]",
            "it has GPUs, and such nodes belong to domain gpu, and no loan of own from gpu selects it; widen the loan's selector",
        ),
    ],
)
def test_unusable_node_is_explained_by_rule_and_fix(of: Node, text: str, why: str) -> None:
    domains = [
        "{name: forecast}",
        "{name: gpu}",
        "{name: job}",
        f"{{name: own, nodes: {{rule: labelled}}{', ' if text else ''}{text}}}",
    ]
    routes = router(f"domains: [{', '.join(domains)}]")
    assert not routes.usable_by("own")(of)
    assert routes.why_not("own")(of).startswith(why)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"domains": [], "weights": {}}',
        '{"domains": [{"name": 1}]}',
        '{"domains": [{"name": "a", "nodes": {"selector": {"matchExpressions": [{"key": "k", "operator": "Gt"}]}}}]}',
    ],
)
def test_selection_of_another_version_is_ignored(text: str) -> None:
    assert NodeSelection.read(text) is None


def test_selection_round_trips_with_selectors_and_loans() -> None:
    domains = """\
domains:
  - {name: a, nodes: {selector: {matchLabels: {pool: x}}}}
  - {name: b, loans: [{from: a, selector: {matchExpressions: [{key: n, operator: Gt, values: ["3"]}]}}]}
"""
    selection = NodeSelection.of(loading.parse(HEAD + domains, "f"))
    assert NodeSelection.read(selection.written()) == selection
    assert selection.written() == (
        '{"domains":[{"name":"a","nodes":{"selector":{"matchLabels":{"pool":"x"}}}},'
        '{"name":"b","nodes":{"rule":"labelled"},"loans":[{"from":"a","selector":'
        '{"matchExpressions":[{"key":"n","operator":"Gt","values":["3"]}]}}]}],"perDomain":false}'
    )
