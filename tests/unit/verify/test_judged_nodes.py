"""The judge on what pods take of their node, and what the node says of itself. Each case stands beside its opposite."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.verify import Domain
from multisched.verify.placement_rules import ServerlessUnit
from tests.unit.verify.clusters import (
    GPU,
    Told,
    at,
    certain,
    make_node,
    make_pod,
    node_affinity,
    possible,
)

NODE = make_node("n1")


def pod(name: str, second: int = 60, **fields: Any) -> Told:
    return make_pod(name, "n1", second=second, **fields)


def asking(**requests: str) -> dict[str, Any]:
    return {"requests": requests}


def container(cpu: str, **fields: Any) -> dict[str, Any]:
    return {"name": "one", "resources": {"requests": {"cpu": cpu}}, **fields}


@pytest.mark.parametrize(
    ("fields", "cpu_free", "is_over"),
    [
        (asking(cpu="1"), "1", False),
        (asking(cpu="1001m"), "1", True),
        (asking(cpu="1000000001n"), "1", True),
        ({"overhead": {"cpu": "1"}}, "1", False),
        ({**asking(cpu="500m"), "overhead": {"cpu": "501m"}}, "1", True),
        ({**asking(cpu="500m"), "initContainers": [container("1")]}, "1", False),
        ({**asking(cpu="500m"), "initContainers": [container("1001m")]}, "1", True),
        ({**asking(cpu="500m"), "initContainers": [container("501m", restartPolicy="Always")]}, "1", True),
        (
            {**asking(cpu="100m"), "initContainers": [container("500m", restartPolicy="Always"), container("501m")]},
            "1",
            True,
        ),
        (
            {**asking(cpu="100m"), "initContainers": [container("501m"), container("500m", restartPolicy="Always")]},
            "1",
            False,
        ),
        ({**asking(cpu="2"), "resources": {"requests": {"cpu": "1"}}}, "1", False),
        ({**asking(cpu="1"), "resources": {"requests": {"cpu": "2"}}}, "1", True),
        (asking(memory="8Gi"), "1", False),
        (asking(memory="8589934593"), "1", True),
        (asking(**{"example.com/card": "1"}), "1", True),
        (asking(**{"card": "1"}), "1", False),
        (asking(**{"hugepages-2Mi": "2Mi"}), "1", True),
    ],
)
def test_node_resources_are_not_overcommitted(fields: dict[str, Any], cpu_free: str, is_over: bool) -> None:
    node = make_node("n1", cpu=cpu_free)
    assert certain(node, pod("one", **fields)) == ({("one", "resources")} if is_over else set())


def test_latest_pods_of_an_overcommitted_node_are_reported() -> None:
    pods = [
        pod("third", 30, **asking(cpu="2")),
        pod("first", 10, **asking(cpu="2")),
        pod("second", 20, **asking(cpu="2")),
    ]
    assert certain(NODE, *pods) == {("third", "resources")}


def test_pod_that_did_not_fit_does_not_count_against_later_pods() -> None:
    pods = [pod("large", 10, **asking(cpu="5")), pod("small", 20, **asking(cpu="1"))]
    assert certain(NODE, *pods) == {("large", "resources")}


def test_number_of_pods_is_limited() -> None:
    pods = [pod("a", 1), pod("b", 2), pod("c", 3)]
    assert certain(make_node("n1", pods="2"), *pods) == {("c", "resources")}


@pytest.mark.parametrize(
    ("labels", "fields", "is_over"),
    [
        ({"unit": "elastic"}, asking(cpu="9", memory="99Gi"), False),
        ({"unit": "elastic"}, asking(cpu="9", **{"example.com/card": "1"}), True),
        ({"unit": "elastic"}, asking(**{"ephemeral-storage": "9Ei"}), True),
        ({"unit": "limited", "pool": "x"}, asking(cpu="9"), True),
        ({"pool": "x"}, asking(cpu="9"), False),
        ({}, asking(cpu="9"), True),
    ],
)
def test_only_cpu_and_memory_of_elastic_units_are_no_limit(
    labels: dict[str, str], fields: dict[str, Any], is_over: bool
) -> None:
    units = (
        ServerlessUnit((("unit", "elastic"),), is_elastic=True),
        ServerlessUnit((("unit", "limited"),), is_elastic=False),
        ServerlessUnit((("pool", "x"),), is_elastic=True),
    )
    domains = (Domain("job", frozenset({"job-scheduler"}), "rest", units=units),)
    node = make_node("n1", labels=labels, pods="2")
    assert certain(node, pod("one", **fields), domains=domains) == ({("one", "resources")} if is_over else set())
    small = [pod(name, second, **asking(cpu="1")) for second, name in enumerate("abc")]
    assert certain(node, *small, domains=domains) == {("c", "resources")}, "the number of pods"


def test_finished_pods_use_nothing_and_terminating_pods_still_count() -> None:
    late = pod("late", 90, **asking(cpu="2"))
    assert certain(NODE, pod("early", **asking(cpu="4"), phase="Succeeded"), late) == set()
    assert certain(NODE, pod("early", **asking(cpu="4"), is_terminating=True), late) == {("late", "resources")}


def resized(spec: str, allocated: str, *, reason: str = "") -> dict[str, Any]:
    given = {"cpu": allocated}
    status: dict[str, Any] = {
        "containerStatuses": [{"name": "main", "allocatedResources": given, "resources": {"requests": given}}]
    }
    if reason:
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return {"requests": {"cpu": spec}, "status": status}


def test_pending_resize_counts_with_the_larger_size_as_a_possible_violation() -> None:
    assert certain(NODE, pod("one", **resized("5", "5"))) == {("one", "resources")}
    for spec, allocated in (("5", "1"), ("1", "5")):
        assert (
            certain(NODE, pod("one", **resized(spec, allocated))),
            possible(NODE, pod("one", **resized(spec, allocated))),
        ) == (
            set(),
            {("one", "resources")},
        )
    assert possible(NODE, pod("one", **resized("5", "1", reason="Infeasible"))) == set()


def test_failed_devices_give_a_possible_violation() -> None:
    node = make_node("n1", more={"example.com/card": "0"}, capacity={"example.com/card": "2"})
    one = pod("one", **asking(**{"example.com/card": "2"}))
    assert (certain(node, one), possible(node, one)) == (set(), {("one", "resources")})


@pytest.mark.parametrize(
    ("first", "second", "is_taken"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, True),
        ({"hostPort": 80}, {"hostPort": 81}, False),
        ({"containerPort": 80}, {"containerPort": 80}, False),
        ({"hostPort": 80, "protocol": "UDP"}, {"hostPort": 80}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, True),
        ({"hostPort": 80, "hostIP": "0.0.0.0"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
    ],
)
def test_host_port_conflicts_are_violations(first: dict[str, Any], second: dict[str, Any], is_taken: bool) -> None:
    for one, other in ((first, second), (second, first)):
        pods = [pod("early", 10, ports=[one]), pod("late", 20, ports=[other])]
        assert certain(NODE, *pods) == ({("late", "hostPorts")} if is_taken else set())


@pytest.mark.parametrize(
    ("taint", "tolerations", "is_sure", "is_maybe"),
    [
        ({"key": "k", "effect": "NoExecute"}, [], True, False),
        ({"key": "k", "effect": "PreferNoSchedule"}, [], False, False),
        ({"key": "k", "effect": "NoSchedule", "timeAdded": at(59)}, [], True, False),
        ({"key": "k", "effect": "NoSchedule", "timeAdded": at(61)}, [], False, False),
        ({"key": "k", "effect": "NoSchedule", "timeAdded": at(60)}, [], False, True),
        ({"key": "k", "effect": "NoSchedule"}, [], False, True),
        ({"key": "k", "effect": "NoExecute"}, [{"operator": "Exists"}], False, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, [{"key": "k", "value": "v"}], False, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, [{"key": "k", "value": "w"}], True, False),
        (
            {"key": "k", "effect": "NoExecute"},
            [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
            True,
            False,
        ),
        (
            {"key": "k", "value": "9", "effect": "NoExecute"},
            [{"key": "k", "operator": "Gt", "value": "8"}],
            False,
            False,
        ),
        (
            {"key": "k", "value": "7", "effect": "NoExecute"},
            [{"key": "k", "operator": "Gt", "value": "8"}],
            True,
            False,
        ),
    ],
)
def test_untolerated_taints_are_violations(
    taint: dict[str, Any], tolerations: list[dict[str, Any]], is_sure: bool, is_maybe: bool
) -> None:
    cluster = (make_node("n1", taints=[taint]), pod("one", 60, tolerations=tolerations))
    assert certain(*cluster) == ({("one", "taints")} if is_sure else set())
    assert possible(*cluster) == ({("one", "taints")} if is_maybe else set())


def test_cordon_is_a_possible_violation() -> None:
    assert possible(make_node("n1", unschedulable=True), pod("one")) == {("one", "taints")}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("spec", "is_right"),
    [
        ({"nodeSelector": {"gen": "7"}}, True),
        ({"nodeSelector": {"gen": "8"}}, False),
        ({"nodeSelector": {"none": ""}}, False),
        ({"affinity": node_affinity({"matchExpressions": [expression("gen", "Gt", "6")]})}, True),
        ({"affinity": node_affinity({"matchExpressions": [expression("gen", "Lt", "7")]})}, False),
        ({"affinity": node_affinity({"matchExpressions": [expression("gen", "NotIn", "7")]})}, False),
        ({"affinity": node_affinity({"matchExpressions": [expression("none", "DoesNotExist")]})}, True),
        ({"affinity": node_affinity({"matchExpressions": [expression("none", "Exists")]}, {})}, False),
        ({"affinity": node_affinity({})}, False),
        ({"affinity": node_affinity({"matchFields": [expression("metadata.name", "In", "n1")]})}, True),
        ({"affinity": node_affinity({"matchFields": [expression("metadata.name", "NotIn", "n1")]})}, False),
    ],
)
def test_node_selector_and_affinity_are_judged(spec: dict[str, Any], is_right: bool) -> None:
    node = make_node("n1", labels={"gen": "7"})
    assert certain(node, pod("one", **spec)) == (set() if is_right else {("one", "nodeAffinity")})


def test_node_younger_than_its_pod_gives_a_possible_violation() -> None:
    cluster = (make_node("n1", created=at(61)), pod("one", 60, nodeSelector={"gen": "8"}))
    assert (certain(*cluster), possible(*cluster)) == (set(), {("one", "nodeAffinity")})


def test_mirror_pod_is_judged_by_resources_only() -> None:
    mirror: dict[str, Any] = {"annotations": {"kubernetes.io/config.mirror": "x"}, "nodeSelector": {"gen": "8"}}
    assert certain(NODE, pod("one", **mirror)) == set()
    assert certain(NODE, pod("one", **mirror, **asking(cpu="5"))) == {("one", "resources")}


GPUS = {GPU: "2"}
HONOURED = {"multisched.io/gpu-indices": "honoured"}


def sharing(milli: str, devices: str, allocated: str = "") -> dict[str, Any]:
    annotations = {"multisched.io/gpu-milli": milli, "multisched.io/gpu-devices": devices}
    return {"annotations": annotations | ({"multisched.io/gpu-allocated-milli": allocated} if allocated else {})}


def test_device_annotations_of_foreign_pods_are_ignored() -> None:
    node = make_node("n1", more=GPUS)
    stranger = pod("stranger", 10, **sharing("1000", "0"), schedulerName="their-scheduler")
    ours = pod("ours", 20, **sharing("1000", "0"), schedulerName="gpu-scheduler")
    domains = (Domain("gpu", frozenset({"gpu-scheduler"}), "gpu"),)
    assert certain(node, stranger, ours, domains=domains) == set()
    assert certain(node, stranger, ours) == {("ours", "devices")}


def given(milli: str, devices: str, *, asks: str) -> dict[str, Any]:
    """By the scheduler; `asks`: what the author says since."""
    pod = sharing(asks, devices)
    pod["annotations"]["multisched.io/gpu-allocated-milli"] = milli
    if not asks:
        del pod["annotations"]["multisched.io/gpu-milli"]
    return pod


@pytest.mark.parametrize(
    ("first", "second", "labels", "is_wrong"),
    [
        (sharing("500", "0"), sharing("500", "0"), {}, False),
        (sharing("500", "0"), sharing("501", "0"), {}, True),
        (sharing("500", "0"), sharing("501", "1"), {}, False),
        (sharing("500", "0,1"), sharing("501", "1"), {}, True),
        (sharing("500", "0"), sharing("500", "2"), {}, True),
        (given("500", "0", asks="1"), sharing("501", "0"), {}, True),
        (given("500", "0", asks="1000"), sharing("500", "0"), {}, False),
        (given("bad", "0", asks="500"), sharing("501", "0"), {}, True),
        (given("500", "0", asks=""), sharing("501", "0"), {}, True),
        (sharing("500", "0"), sharing("bad", "0"), {}, True),
        (sharing("500", "0"), asking(**{GPU: "1"}), {}, True),
        (asking(**{GPU: "1"}), sharing("500", "1"), {}, True),
        (asking(**{GPU: "1"}), asking(**{GPU: "1"}), {}, False),
        (
            sharing("500", "0"),
            {**asking(**{GPU: "1"}), "annotations": {"multisched.io/gpu-devices": "1"}},
            HONOURED,
            False,
        ),
        (
            sharing("500", "0"),
            {**asking(**{GPU: "1"}), "annotations": {"multisched.io/gpu-devices": "0"}},
            HONOURED,
            True,
        ),
        (sharing("500", "0"), asking(**{GPU: "1"}), HONOURED, False),
        (sharing("500", "0,1"), asking(**{GPU: "1"}), HONOURED, True),
        (asking(**{GPU: "1"}), sharing("500", "0"), HONOURED, False),
        (asking(**{GPU: "2"}), sharing("500", "0"), HONOURED, True),
        (sharing("500", "0"), {"annotations": {"multisched.io/gpu-milli": "1000"}}, {}, False),
        (sharing("1000", "0", "500"), sharing("500", "0", "500"), {}, False),
        (sharing("1", "0", "500"), sharing("1", "0", "501"), {}, True),
        (sharing("500", "0"), sharing("501", "x"), {}, True),
        (sharing("500", "0"), sharing("500", "x"), {}, False),
    ],
)
def test_devices_are_not_overcommitted(
    first: dict[str, Any], second: dict[str, Any], labels: dict[str, str], is_wrong: bool
) -> None:
    node = make_node("n1", labels=labels, more=GPUS)
    pods = [pod("early", 10, **first), pod("late", 20, **second)]
    assert certain(node, *pods) == ({("late", "devices")} if is_wrong else set())
