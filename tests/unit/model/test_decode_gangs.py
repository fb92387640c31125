"""PodGroups of three groups, read from what their users write, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.model.cluster_objects import PodGroup
from multisched.model.gang import KOORDINATOR, TIMEOUT_S, TOPOLOGY_ANNOTATION, GangSpec, TopologyLevel
from multisched.model.object_kinds import ObjectKind

OURS, SIGS, WORKLOADS = ObjectKind.POD_GROUP, ObjectKind.SIGS_POD_GROUP, ObjectKind.WORKLOAD_POD_GROUP


def read(kind: ObjectKind, spec: Any, **annotations: str) -> PodGroup:
    document = {"metadata": {"namespace": "team", "name": "g", "uid": "u", "annotations": annotations}, "spec": spec}
    group = kind.definition.decode(orjson.dumps(document))
    assert isinstance(group, PodGroup)
    return group


@pytest.mark.parametrize(
    ("kind", "spec", "annotations", "found"),
    [
        (OURS, {"minMember": 3}, {}, GangSpec(3)),
        (OURS, {"minMember": 3, "scheduleTimeoutSeconds": 10}, {}, GangSpec(3, 10.0)),
        (OURS, {"minMember": 1}, {TOPOLOGY_ANNOTATION: "rack"}, GangSpec(1, topology=(TopologyLevel("rack"),))),
        (SIGS, {"minMember": 2}, {}, GangSpec(2, is_once=True)),
        (SIGS, {"minMember": 2}, {f"{KOORDINATOR}match-policy": "waiting-and-running"}, GangSpec(2)),
        (
            SIGS,
            {"minMember": 2},
            {f"{KOORDINATOR}groups": '["team/h"]'},
            GangSpec(2, TIMEOUT_S, ("team/g", "team/h"), is_once=True),
        ),
        (WORKLOADS, {"schedulingPolicy": {"gang": {"minCount": 4}}}, {}, GangSpec(4)),
        (WORKLOADS, {"schedulingPolicy": {"basic": {}}}, {}, GangSpec(0)),
        (
            WORKLOADS,
            {
                "schedulingPolicy": {"gang": {"minCount": 1}},
                "schedulingConstraints": {"topology": [{"key": "rack"}]},
            },
            {},
            GangSpec(1, topology=(TopologyLevel("rack", is_required=True),)),
        ),
    ],
)
def test_each_group_kind_is_decoded(kind: ObjectKind, spec: Any, annotations: Any, found: GangSpec) -> None:
    group = read(kind, spec, **annotations)
    assert (group.spec, group.problem, group.malformed) == (found, "", "")


@pytest.mark.parametrize(
    ("kind", "spec", "annotations", "words"),
    [
        (OURS, {"minMember": 0}, {}, "spec.minMember is 0; write how many members start together"),
        (OURS, None, {}, "spec.minMember is missing; write how many members start together"),
        (OURS, {"minMember": 0}, {}, "spec.minMember is 0; write"),
        (OURS, {"minMember": 2, "scheduleTimeoutSeconds": -5}, {}, "spec.scheduleTimeoutSeconds is -5; write seconds"),
        (OURS, {"minMember": 10**6}, {}, "1 to 20000"),
        (OURS, {"minMember": 1}, {TOPOLOGY_ANNOTATION: "rack:always"}, "write KEY or KEY:required"),
        (SIGS, {"minMember": 1}, {f"{KOORDINATOR}groups": "h"}, "write a list"),
        (WORKLOADS, {"schedulingPolicy": {"gang": {"minCount": 0}}}, {}, "minCount is 0"),
        (WORKLOADS, {"schedulingPolicy": {"gang": {}}}, {}, "spec.schedulingPolicy.gang.minCount is missing; write"),
        (WORKLOADS, {"schedulingPolicy": {"lottery": {"minCount": 2}}}, {}, "has neither basic nor gang"),
        (WORKLOADS, {}, {}, "has neither basic nor gang"),
        (SIGS, {"minMember": 1}, {f"{KOORDINATOR}match-policy": "always"}, "or only-waiting"),
        (
            WORKLOADS,
            {"schedulingPolicy": {"gang": {"minCount": 1}}, "schedulingConstraints": {"topology": [{}]}},
            {},
            "write the key of each topology constraint",
        ),
    ],
)
def test_group_problem_names_the_fix(kind: ObjectKind, spec: Any, annotations: Any, words: str) -> None:
    group = read(kind, spec, **annotations)
    assert group.spec is None
    assert words in group.problem


def test_group_with_wrong_types_is_malformed() -> None:
    assert "spec.minMember" in read(OURS, {"minMember": "three"}).malformed
