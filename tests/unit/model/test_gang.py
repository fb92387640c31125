"""Gangs as four APIs say them of a pod, and what is wrong with what it says."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.gang import (
    ACK_MIN,
    ACK_NAME,
    ACK_TOPOLOGY,
    KOORDINATOR,
    KOORDINATOR_TOPOLOGY,
    SIGS_LABEL,
    SP_LABEL,
    TIMEOUT_S,
    TOPOLOGY_ANNOTATION,
    GangApi,
    GangSpec,
    Membership,
    TopologyLevel,
    membership_of,
    topology_of,
)
from multisched.model.objects import Pod, PodSpec


def pod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, group: str = "") -> Pod:
    spec = PodSpec(pod_group=group)
    return Pod("team", "p", "uid-p", 1, spec, labels=labels or {}, annotations=annotations or {})


def koordinator(**fields: str) -> dict[str, str]:
    return {f"{KOORDINATOR}{key.replace('_', '-')}": text for key, text in fields.items()}


ACK = {ACK_NAME: "g", ACK_MIN: "3"}


@pytest.mark.parametrize(
    ("labels", "annotations", "group", "found"),
    [
        ({}, {}, "", None),
        ({"app": "x"}, {"note": "y"}, "", None),
        ({}, {}, "g", Membership(GangApi.KUBERNETES, "g")),
        ({SP_LABEL: "g"}, {}, "", Membership(GangApi.SCHEDULER_PLUGINS, "g")),
        (ACK, {}, "", Membership(GangApi.ACK, "g", GangSpec(3))),
        (
            ACK,
            {TOPOLOGY_ANNOTATION: "zone:required,rack"},
            "",
            Membership(GangApi.ACK, "g", GangSpec(3, topology=(TopologyLevel("zone", True), TopologyLevel("rack")))),
        ),
        (
            {},
            koordinator(name="g", min_available="2", waiting_time="90s", match_policy="waiting-and-running"),
            "",
            Membership(GangApi.KOORDINATOR, "g", GangSpec(2, 90.0)),
        ),
        (
            {},
            koordinator(name="a", min_available="2", groups='["team/b", "a"]'),
            "",
            Membership(GangApi.KOORDINATOR, "a", GangSpec(2, TIMEOUT_S, ("team/a", "team/b"), is_once=True)),
        ),
        ({SP_LABEL: "g"}, koordinator(name="g", min_available="2"), "", None),
    ],
)
def test_gang_of_each_api_is_read(labels: Any, annotations: Any, group: str, found: Membership | None) -> None:
    membership = membership_of(pod(labels, annotations, group))
    if found is None and labels.get(SP_LABEL):
        assert membership is not None
        assert membership.spec is not None, "two that agree are one; who says more counts"
        assert membership.problem == ""
    else:
        assert membership == found


@pytest.mark.parametrize(
    ("labels", "annotations", "words"),
    [
        ({ACK_NAME: "g"}, {}, ACK_MIN),
        ({ACK_NAME: "g", ACK_MIN: "0"}, {}, "1 to"),
        ({ACK_NAME: "g", ACK_MIN: "-1"}, {}, "'-1'"),
        ({ACK_NAME: "g", ACK_MIN: "99999999999"}, {}, "how many members"),
        ({ACK_NAME: "g", ACK_MIN: "2", SP_LABEL: "other"}, {}, "'other' (scheduling.x-k8s.io)"),
        (ACK, {TOPOLOGY_ANNOTATION: "zone:always"}, "KEY:required"),
        (ACK, {TOPOLOGY_ANNOTATION: "a b"}, "KEY:required"),
        (ACK, {TOPOLOGY_ANNOTATION: ",".join("abcdefghi")}, "9 levels"),
        ({}, koordinator(name="g", min_available="two"), "'two'"),
        ({}, koordinator(name="g", min_available="2", groups="all"), "write a list"),
        (
            {},
            koordinator(name="g", min_available="2", match_policy="ever"),
            "match-policy is 'ever'; write once-satisfied, ",
        ),
        ({ACK_NAME: "", ACK_MIN: "2"}, {}, f"label {ACK_NAME} is ''; write the name of a gang"),
        ({SP_LABEL: ""}, {}, f"label {SP_LABEL} is ''"),
        ({SIGS_LABEL: ""}, {}, f"label {SIGS_LABEL} is ''"),
        ({SP_LABEL: "", ACK_NAME: "g", ACK_MIN: "2"}, {}, f"label {SP_LABEL} is ''"),
        ({}, koordinator(name="", min_available="2"), f"annotation {KOORDINATOR}name is ''"),
    ],
)
def test_gang_problem_names_the_fix(labels: Any, annotations: Any, words: str) -> None:
    membership = membership_of(pod(labels, annotations))
    assert membership is not None
    assert words in membership.problem


@pytest.mark.parametrize("text", ["soon", "10", "10 s", "10S", "-5s", "0"])
@pytest.mark.parametrize("key", ["waiting_time", "timeout"])
def test_invalid_waiting_time_is_reported(key: str, text: str) -> None:
    membership = membership_of(pod({}, koordinator(name="g", min_available="2", **{key: text})))
    assert membership is not None
    field = f"annotation {KOORDINATOR}{key.replace('_', '-')}"
    assert membership.problem == f"{field} is {text!r}; write a duration with its unit, for example 90s or 10m"


@pytest.mark.parametrize(
    ("labels", "annotations", "words"),
    [
        ({ACK_NAME: "g"}, {}, f"label {ACK_MIN} is missing; "),
        ({ACK_NAME: "g", ACK_MIN: ""}, {}, f"label {ACK_MIN} is ''; "),
        ({}, koordinator(name="g"), f"annotation {KOORDINATOR}min-available is missing; "),
        ({}, koordinator(name="g", min_available=""), f"annotation {KOORDINATOR}min-available is ''; "),
    ],
)
def test_missing_and_empty_minimum_have_different_messages(labels: Any, annotations: Any, words: str) -> None:
    membership = membership_of(pod(labels, annotations))
    assert membership is not None
    assert membership.problem.startswith(words)


def test_no_annotations_give_no_topology_levels() -> None:
    assert topology_of({}) == ((), "")


def gather(*layers: tuple[str, str]) -> str:
    listed = ", ".join(f'{{"layer": "{layer}", "strategy": "{strategy}"}}' for layer, strategy in layers)
    return f'{{"gatherStrategy": [{listed}]}}'


@pytest.mark.parametrize(
    ("key", "text", "levels"),
    [
        (TOPOLOGY_ANNOTATION, "zone:required, rack", (TopologyLevel("zone", True), TopologyLevel("rack"))),
        (ACK_TOPOLOGY, '{"name": "x", "required": {"topologies": [{"key": "rack"}]}}', (TopologyLevel("rack", True),)),
        (
            KOORDINATOR_TOPOLOGY,
            gather(("spine", "MustGather"), ("block", "PreferGather")),
            (TopologyLevel("spine", True), TopologyLevel("block")),
        ),
    ],
)
def test_topology_is_read_from_each_annotation(key: str, text: str, levels: Any) -> None:
    assert topology_of({key: text}) == (levels, "")


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        (ACK_TOPOLOGY, "rack", "cannot be read; write"),
        (ACK_TOPOLOGY, '{"required": {"topologies": [{"key": "a b"}]}}', "'a b' is not a label key"),
        (ACK_TOPOLOGY, '{"required": {"topologies": [], "nodeSelectors": [{}]}}', "node affinity"),
        (KOORDINATOR_TOPOLOGY, gather(("spine", "Maybe")), "MustGather or PreferGather"),
        (KOORDINATOR_TOPOLOGY, "[]", "cannot be read; write"),
        (KOORDINATOR_TOPOLOGY, '{"GatherStrategy": [{"layer": "spine"}]}', "names no layer; write"),
        (ACK_TOPOLOGY, '{"Required": {"topologies": [{"key": "rack"}]}}', "names no topology; write"),
        (ACK_TOPOLOGY, '{"required": {}}', "names no topology; write"),
    ],
)
def test_unsupported_topology_is_reported(key: str, text: str, words: str) -> None:
    levels, problem = topology_of({key: text})
    assert levels == ()
    assert problem.startswith(f"annotation {key}: ")
    assert words in problem
