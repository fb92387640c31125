"""Hints of single plugins, asked directly: spread rules, features, neighbours, added affinity and labels of namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from multisched.framework.events import EventObject, EventResource, Hint, QueueingHint, Resource
from multisched.framework.points import EnqueueExtensions
from multisched.framework.registry import PluginUse, Registry
from multisched.model.cluster_objects import ClusterObject, Namespace
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins import IN_TREE
from multisched.state.object_store import ObjectStore
from tests.unit.plugins.scenes import context_of, put
from tests.unit.plugins.test_queueing_hints import CLAIMANT, csi, node, plugin_of, pod, thing


def hints() -> list[tuple[str, EventResource, str, QueueingHint]]:
    """Of every plugin: whose, of which kind of thing and under which label."""
    found = []
    for name in sorted(IN_TREE):
        plugin = plugin_of(name)
        if isinstance(plugin, EnqueueExtensions):
            found += [
                (name, one.event.resource, one.event.label, one.hint)
                for one in plugin.events_to_register()
                if one.hint is not None and name != "SchedulingGates"  # which reads the pod alone
            ]
    return found


def hint_of(plugin: object, label: str) -> QueueingHint:
    assert isinstance(plugin, EnqueueExtensions)
    (hint,) = {one.hint for one in plugin.events_to_register() if one.event.label == label}
    assert hint is not None
    return hint


CONSTRAINT = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}


def spread(match: list[str] | None = None, **labels: str) -> Pod:
    constraint = {**CONSTRAINT, "matchLabelKeys": match} if match else CONSTRAINT
    return pod(labels=labels, topologySpreadConstraints=[constraint])


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (spread(app="web"), spread(app="web"), Hint.SKIP),
        (spread(["team"], team="a"), spread(["team"], team="b"), Hint.QUEUE),
        (spread(["team"], team="a"), spread(["team"], team="a"), Hint.SKIP),
        (spread(app="web"), pod(), Hint.QUEUE),
    ],
)
def test_pod_with_changed_spread_constraints_is_requeued(old: Pod, new: Pod, hint: Hint) -> None:
    assert hint_of(plugin_of("PodTopologySpread"), "TargetPod")(new, old, new) is hint


@pytest.mark.parametrize(("before", "after", "hint"), [({"A"}, {"A"}, Hint.SKIP), ({"A"}, {"B"}, Hint.QUEUE)])
def test_pod_with_changed_required_features_is_requeued(before: set[str], after: set[str], hint: Hint) -> None:
    def needing(features: set[str]) -> Pod:
        one = pod()
        spec = msgspec.structs.replace(one.spec, required_features=frozenset(features))
        return msgspec.structs.replace(one, spec=spec)

    old, new = needing(before), needing(after)
    assert hint_of(plugin_of("NodeDeclaredFeatures"), "PodUpdate")(new, old, new) is hint


def term(app: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}


def test_pod_without_node_or_nomination_is_ignored_by_hints() -> None:
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term("web")]}}
    waiting = pod(affinity=affinity)
    hint = hint_of(plugin_of("InterPodAffinity"), "AssignedPod")
    for place, expected in (({}, Hint.SKIP), ({"node": "n"}, Hint.QUEUE), ({"nominated": "n"}, Hint.QUEUE)):
        assert hint(waiting, None, pod("x", labels={"app": "web"}, **place)) is expected
    assert hint(waiting, None, pod("x", labels={"app": "db"}, node="n")) is Hint.SKIP


def test_node_excluded_by_added_affinity_requeues_no_pod() -> None:
    expression = {"key": "disk", "operator": "In", "values": ["ssd"]}
    added = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }
    objects, registry = ObjectStore(), Registry()
    put(objects, ObjectKind.NAMESPACE, {"metadata": {"name": "default", "labels": {}}})
    registry.add_all(IN_TREE, "in-tree")
    use = PluginUse("NodeAffinity", args={"addedAffinity": added})
    hint = hint_of(registry.build(use, context_of(objects=objects)), "NodeAddOrLabel")
    plain, ssd = node(), node(labels={"disk": "ssd"})
    assert hint(pod(), None, plain) is Hint.SKIP
    assert hint(pod(), None, ssd) is Hint.QUEUE
    assert hint(pod(), plain, ssd) is Hint.QUEUE
    assert hint(pod(), ssd, node(labels={"disk": "ssd", "a": "b"})) is Hint.SKIP
    assert hint(pod(nodeSelector={"a": "b"}), plain, ssd) is Hint.SKIP


@pytest.mark.parametrize(("before", "after", "hint"), [({}, {"loud": "yes"}, Hint.QUEUE), ({}, {}, Hint.SKIP)])
def test_namespace_labels_requeue_pods_refused_by_affinity(
    before: dict[str, str], after: dict[str, str], hint: Hint
) -> None:
    old, new = (Namespace(name="team", labels=labels) for labels in (before, after))
    (found,) = [one for name, kind, _, one in hints() if (name, kind) == ("InterPodAffinity", ObjectKind.NAMESPACE)]
    assert found(pod("p"), old, new) is hint


def service(app: str, namespace: str = "default") -> ClusterObject:
    return thing(
        ObjectKind.SERVICE,
        {"metadata": {"name": "web", "namespace": namespace}, "spec": {"selector": {"app": app}}},
    )


@pytest.mark.parametrize(
    ("waiting", "old", "new", "hint"),
    [
        (pod(labels={"app": "web"}), None, service("web"), Hint.QUEUE),
        (pod(labels={"app": "web"}), service("web"), None, Hint.QUEUE),
        (pod(labels={"app": "web"}), service("web"), service("db"), Hint.QUEUE),
        (pod(labels={"app": "web"}), service("web"), service("web"), Hint.SKIP),
        (pod(labels={"app": "web"}), None, service("web", "other"), Hint.SKIP),
        (spread(app="web"), None, service("web"), Hint.SKIP),
    ],
)
@pytest.mark.parametrize("is_hard", [True, False])
def test_service_requeues_pods_refused_by_default_constraints(
    waiting: Pod, old: EventObject, new: EventObject, hint: Hint, *, is_hard: bool
) -> None:
    when = "DoNotSchedule" if is_hard else "ScheduleAnyway"
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when}
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    use = PluginUse("PodTopologySpread", args={"defaultingType": "List", "defaultConstraints": [constraint]})
    plugin = registry.build(use, context_of(objects=ObjectStore()))
    assert hint_of(plugin, "Service")(waiting, old, new) is (hint if is_hard else Hint.SKIP)


CAUTIOUS = {
    ("NodeDeclaredFeatures", "PodUpdate"),
    ("NodeResourcesFit", "AssignedPodFrees"),
    ("NodeResourcesFit", "TargetPodScaleDown"),
    ("NodeVolumeLimits", "CSINodeUpdate"),
}
"""Hints that try a pod again when they do not know what happened."""

THINGS: Mapping[EventResource, EventObject] = {
    Resource.NODE: node(),
    Resource.ASSIGNED_POD: pod("x", node="n"),
    ObjectKind.CSI_NODE: csi(1),
}


def test_hint_without_objects_skips_or_is_listed_as_cautious() -> None:
    queued = {(name, label) for name, _, label, hint in hints() if hint(CLAIMANT, None, None) is Hint.QUEUE}
    assert queued == CAUTIOUS


@pytest.mark.parametrize("kind", THINGS, ids=lambda kind: kind.value)
def test_hint_with_an_object_of_another_kind_acts_as_without_objects(kind: EventResource) -> None:
    other, pods = THINGS[kind], (Resource.ASSIGNED_POD, Resource.TARGET_POD, Resource.UNSCHEDULED_POD)
    nodes = (Resource.NODE, Resource.DISTANT_NODE)
    for name, resource, label, hint in hints():
        if resource is kind or (kind in pods and resource in pods) or (kind in nodes and resource in nodes):
            continue
        for old, new in ((None, other), (other, None), (other, other)):
            assert hint(CLAIMANT, old, new) is hint(CLAIMANT, None, None), (name, label)
