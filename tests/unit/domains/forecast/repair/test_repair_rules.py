"""Which pods may be moved: a table of what is written on them, on their node and on their volumes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from domains.forecast.repair import rules
from domains.forecast.repair.rules import group_of, why_fixed
from multisched.model.cluster_objects import PersistentVolume, PersistentVolumeClaim
from multisched.model.gang import ACK_MIN, ACK_NAME, KOORDINATOR_NAME
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Owner, Pod
from multisched.model.selectors import NodeSelector, NodeTerm, Operator, Requirement, Taint
from multisched.model.volumes import LocalVolume, PodVolume
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import make_node, make_pod

OURS = frozenset({"ours"})
WEB = Owner("ReplicaSet", "web-7d9", "rs")
GOOD = make_pod("web-0", scheduler="ours", owner=WEB, node="n", is_ready=True)
NODE = make_node("n")
SCRATCH, LOGS = LocalVolume("scratch"), LocalVolume("logs", is_host_path=True)


def pod(**changes: Any) -> Pod:
    return msgspec.structs.replace(GOOD, **changes)


def with_spec(annotations: dict[str, str] | None = None, **changes: Any) -> Pod:
    return pod(spec=msgspec.structs.replace(GOOD.spec, **changes), annotations=annotations or {})


def annotated(name: str, value: str) -> Pod:
    return pod(annotations={name: value})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (pod(), ""),
        (pod(owner=Owner("StatefulSet", "db", "s")), ""),
        (pod(is_deleting=True), rules.GOING),
        (pod(is_preempted=True), rules.GOING),
        (pod(malformed="spec.affinity: nonsense"), rules.UNREADABLE),
        (with_spec(unsupported=("resource claims",)), rules.UNSUPPORTED),
        (pod(is_ready=False), rules.NOT_READY),
        (pod(owner=None), rules.ALONE),
        (pod(owner=Owner("DaemonSet", "agent", "d")), rules.DAEMON),
        (pod(owner=Owner("Job", "report-1", "j")), rules.JOB),
        (pod(owner=Owner("Node", "n", "n")), rules.STATIC),
        (annotated(rules.MIRROR, "hash"), rules.STATIC),
        (with_spec(scheduler_name="default-scheduler"), rules.FOREIGN),
        (with_spec(priority=2_000_000_000), rules.CRITICAL),
        (annotated(rules.REPAIR_ANNOTATION, "false"), rules.forbidden_by(rules.REPAIR_ANNOTATION)),
        (annotated(rules.SAFE_TO_EVICT, "false"), rules.forbidden_by(rules.SAFE_TO_EVICT)),
        (annotated(rules.SAFE_TO_EVICT, "true"), ""),
        (annotated(rules.EVICT, "false"), rules.forbidden_by(rules.EVICT)),
        (annotated(rules.PREFER_NO_EVICTION, "true"), rules.forbidden_by(rules.PREFER_NO_EVICTION)),
        (annotated(rules.PREFER_NO_EVICTION, "false"), ""),
        (with_spec(local_volumes=(SCRATCH,)), rules.EMPTY_DIR),
        (with_spec(local_volumes=(SCRATCH, LOGS)), rules.HOST_PATH),
        (with_spec({rules.SAFE_TO_EVICT: "true"}, local_volumes=(SCRATCH, LOGS)), ""),
        (with_spec({rules.EVICT: "true"}, local_volumes=(SCRATCH,)), ""),
        (with_spec({rules.REPAIR_ANNOTATION: "true"}, local_volumes=(SCRATCH,)), ""),
        (with_spec({rules.SAFE_VOLUMES: "tmp, scratch"}, local_volumes=(SCRATCH,)), ""),
        (with_spec({rules.SAFE_VOLUMES: "scratch"}, local_volumes=(SCRATCH, LOGS)), rules.HOST_PATH),
        (with_spec({rules.SAFE_VOLUMES: "tmp"}, local_volumes=(SCRATCH,)), rules.EMPTY_DIR),
    ],
)
def test_annotation_of_a_pod_decides_first(given: Pod, why: str) -> None:
    assert why_fixed(given, NODE, ObjectStore(), OURS) == why


@pytest.mark.parametrize("name", rules.CONSENTS)
@pytest.mark.parametrize("value", ["False", "no", "0", "", "TRUE", "true "])
def test_unclear_consent_annotation_keeps_the_pod(name: str, value: str) -> None:
    for volumes in ((), (SCRATCH,)):
        given = with_spec({name: value}, local_volumes=volumes)
        assert why_fixed(given, NODE, ObjectStore(), OURS) == f'its annotation {name} is neither "true" nor "false"'


def test_pods_of_other_schedulers_may_move_if_configured() -> None:
    assert why_fixed(with_spec(scheduler_name="default-scheduler"), NODE, ObjectStore(), None) == ""


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (make_node(is_unschedulable=True), rules.CORDONED),
        (make_node(taints=(Taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule"),)), rules.CORDONED),
        (make_node(taints=(Taint("node.kubernetes.io/not-ready", "", "NoExecute"),)), rules.NODE_SICK),
        (make_node(taints=(Taint("team", "search", "NoSchedule"),)), ""),
    ],
)
def test_cordoned_or_unready_nodes_are_left_alone(node: Node, why: str) -> None:
    assert why_fixed(GOOD, node, ObjectStore(), OURS) == why


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ((), ""),
        ((NodeTerm((Requirement("kubernetes.io/hostname", Operator.IN, ("n",)),)),), rules.LOCAL_VOLUME),
        ((NodeTerm((), (Requirement("metadata.name", Operator.IN, ("n",)),)),), rules.LOCAL_VOLUME),
        ((NodeTerm((Requirement("topology.kubernetes.io/zone", Operator.IN, ("z",)),)),), ""),
    ],
)
def test_node_local_volume_keeps_its_pod(terms: tuple[NodeTerm, ...], why: str) -> None:
    store = ObjectStore()
    affinity = NodeSelector(terms) if terms else None
    store.set(ObjectKind.PERSISTENT_VOLUME, PersistentVolume(name="v", node_affinity=affinity))
    store.set(ObjectKind.PERSISTENT_VOLUME_CLAIM, PersistentVolumeClaim(name="data", namespace="default", volume="v"))
    assert why_fixed(with_spec(volumes=(PodVolume(claim="data"),)), NODE, store, OURS) == why
    assert why_fixed(with_spec(volumes=(PodVolume(claim="unknown"),)), NODE, store, OURS) == ""


@pytest.mark.parametrize(
    ("given", "group"),
    [
        (pod(), ""),
        (pod(labels={"scheduling.x-k8s.io/pod-group": "training"}), "training"),
        (pod(labels={"pod-group.scheduling.sigs.k8s.io": "old"}), "old"),
        (pod(annotations={"scheduling.k8s.io/group-name": "volcano"}), "volcano"),
        (with_spec(pod_group="native"), "native"),
        (pod(labels={ACK_NAME: "ack", ACK_MIN: "2"}), "ack"),
        (pod(annotations={KOORDINATOR_NAME: "koordinator"}), "koordinator"),
    ],
)
def test_gang_is_recognized_by_its_labels(given: Pod, group: str) -> None:
    assert group_of(given) == group
