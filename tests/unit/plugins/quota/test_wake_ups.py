"""Whoever could be placed, or take room back, after something has happened is woken by it; others of the tree sleep on."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.events import (
    ASSIGNED_POD_ADD,
    ASSIGNED_POD_DELETE,
    NODE_ADD,
    Action,
    ClusterEvent,
    EventObject,
    Resource,
)
from multisched.framework.points import EnqueueExtensions
from multisched.framework.registry import implementing
from multisched.model.objects import Pod
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.plugins.quota.quota_ledger import QUOTA
from multisched.queueing.hints import HintTable, Requeue
from multisched.testing.builders import make_node, make_pod
from tests.unit.model.quotas.quota_documents import linked
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.stories import Story, played, stories
from tests.unit.plugins.quota.trees import leaf, node

NOBODY: frozenset[str] = frozenset()


def fail(plugin: str, point: str, error: Exception) -> None:
    raise AssertionError(f"{plugin} failed at {point}") from error


class Sleepers:
    """Pending pods of a cluster, each with the plugins whose events wake it."""

    def __init__(self, cluster: QuotaCluster) -> None:
        self.cluster = cluster
        plugins = implementing([one.plugin for one in cluster.domain.plugins.built], EnqueueExtensions)
        self.hints = HintTable(plugins, fail)
        self.rejectors: dict[str, frozenset[str]] = {}
        for pod in cluster.pending.values():
            result = cluster.domain.schedule(pod)
            assert isinstance(result, Unplaced)
            assert not result.victims
            self.rejectors[pod.uid] = result.rejectors

    def are_woken(self, pod: Pod, event: ClusterEvent, old: EventObject, new: EventObject) -> bool:
        listeners = self.hints.listeners(event, self.rejectors[pod.uid])
        return self.hints.decide(event, listeners, NOBODY, pod, old, new) is not Requeue.SKIP

    def helped(self) -> list[Pod]:
        """Those for whom an attempt would come to something now."""
        found = []
        for pod in self.cluster.pending.values():
            result = self.cluster.domain.schedule(pod)
            if isinstance(result, Placed):
                self.cluster.domain.cache.forget(pod.uid)
            if isinstance(result, Placed) or (isinstance(result, Unplaced) and result.victims):
                found.append(pod)
        return found


@given(stories(), st.integers(0, 99))
def test_deleted_pod_requeues_the_pods_it_helps(story: Story, which: int) -> None:
    sleepers = Sleepers(played(story))
    cache = sleepers.cluster.domain.cache
    standing = sorted(entry.pod.uid for entry in cache)
    if not standing:
        return
    gone = cache.remove(standing[which % len(standing)])
    assert gone is not None
    for pod in sleepers.helped():
        assert sleepers.are_woken(pod, ASSIGNED_POD_DELETE, gone.pod, None), (
            f"{gone.pod.name} leaves, {pod.name} sleeps"
        )


@given(stories(), st.lists(st.integers(0, 99), min_size=2, max_size=4))
def test_pods_deleted_together_requeue_the_pods_they_help_together(story: Story, which: list[int]) -> None:
    """Their events come when all of them have left: while an attempt was under way, or from one list."""
    sleepers = Sleepers(played(story))
    cache = sleepers.cluster.domain.cache
    standing = sorted(entry.pod.uid for entry in cache)
    left = [cache.remove(uid) for uid in sorted({standing[at % len(standing)] for at in which if standing})]
    gone = [one.pod for one in left if one is not None]
    for pod in sleepers.helped():
        are_woken = [sleepers.are_woken(pod, ASSIGNED_POD_DELETE, one, None) for one in gone]
        assert any(are_woken), f"{[one.name for one in gone]} leave, {pod.name} sleeps"


def test_either_of_two_deleted_pods_requeues_a_waiting_pod() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=100_000)], node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 4, 4)))
    for number in range(4):
        cluster.add(f"small-{number}", "a", 1_000, node="n")
    waits = cluster.add("waits", "a", 1_000)
    sleepers = Sleepers(cluster)

    gone = [cluster.domain.cache.remove(f"uid-small-{number}") for number in range(2)]

    assert any(sleepers.are_woken(waits, ASSIGNED_POD_DELETE, one.pod, None) for one in gone if one is not None)


@pytest.mark.parametrize("asked", ["like", "nominated"])
def test_deleted_pod_requeues_equal_pods_whichever_of_them_is_nominated(asked: str) -> None:
    """The hint is called for one of them only. The nomination leaves the other too little of the max, until a pod is deleted."""
    cluster = QuotaCluster([make_node("n", cpu_milli=2_000)], node("root", {"cpu": 3}, {"cpu": 3}, leaf("a", 0, 3)))
    for number in range(2):
        cluster.add(f"old-{number}", "a", 1_000, node="n")
    pods = {name: cluster.add(name, "a", 1_000) for name in ("like", "nominated")}
    cluster.domain.nominator.nominate(pods["nominated"], "n")
    gone = cluster.domain.cache.remove("uid-old-0")
    assert gone is not None
    plugins = implementing([one.plugin for one in cluster.domain.plugins.built], EnqueueExtensions)
    hints = HintTable(plugins, fail)

    listeners = hints.listeners(ASSIGNED_POD_DELETE, {QUOTA})

    assert hints.decide(ASSIGNED_POD_DELETE, listeners, NOBODY, pods[asked], gone.pod, None) is Requeue.AFTER_BACKOFF


@given(stories(), st.integers(0, 99), st.integers(1, 4))
def test_added_pod_requeues_the_pods_it_lends_to(story: Story, which: int, cpu: int) -> None:
    """It is bound by another scheduler, which asks no quota."""
    sleepers = Sleepers(played(story))
    tree = sleepers.cluster.ledger.tree
    assert tree is not None
    namespaces = sorted(tree.leaf_of)
    came = make_pod(
        "came", cpu_milli=cpu * 1000, memory_bytes=1, node="n0", namespace=namespaces[which % len(namespaces)]
    )
    sleepers.cluster.domain.cache.place(msgspec.structs.replace(came, started_s=999.0))
    for pod in sleepers.helped():
        assert sleepers.are_woken(pod, ASSIGNED_POD_ADD, None, came), f"{came.namespace} borrows, {pod.name} sleeps"


@given(stories())
def test_added_node_requeues_the_pods_it_has_room_for(story: Story) -> None:
    sleepers = Sleepers(played(story))
    came = make_node("came", cpu_milli=4_000)
    sleepers.cluster.domain.cache.set_node(came)
    for pod in sleepers.helped():
        assert sleepers.are_woken(pod, NODE_ADD, None, came)


def test_deleted_pod_requeues_only_pods_limited_by_its_levels() -> None:
    least, most = {"cpu": 4}, {"cpu": 40}
    root = node(
        "root",
        most,
        most,
        node("a", least, least, leaf("a1", 2, 2), leaf("a2", 2, 4)),
        node("b", least, least, leaf("b1", 2, 2), leaf("b2", 2, 4)),
    )
    cluster = QuotaCluster([make_node("n", cpu_milli=100_000)], root)
    for name in ("a1", "a2", "b1", "b2"):
        for number in range(2):
            cluster.add(f"{name}-{number}", name, 1_000, node="n")
        cluster.add(f"{name}-waits", name, 1_000)
    sleepers = Sleepers(cluster)
    gone = cluster.domain.cache.remove("uid-a1-0")
    assert gone is not None
    woken = [p.name for p in cluster.pending.values() if sleepers.are_woken(p, ASSIGNED_POD_DELETE, gone.pod, None)]
    assert woken == ["a1-waits", "a2-waits"]


def holding(cluster: QuotaCluster, sleepers: Sleepers, pod: Pod, now: Pod, action: Action) -> bool:
    """Whether the pod is woken when another one, which stands, is as it is `now`."""
    entry = cluster.domain.cache.placed(now.uid)
    assert entry is not None
    before = entry.pod
    cluster.domain.cache.place(now)
    return sleepers.are_woken(pod, ClusterEvent(Resource.ASSIGNED_POD, action, "AssignedPodUpdate"), before, now)


def test_shrunken_pod_requeues_pods_limited_by_its_quota() -> None:
    cluster = QuotaCluster([make_node("n", cpu_milli=100_000)], node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 4, 4)))
    large = cluster.add("large", "a", 4_000, node="n")
    waits = cluster.add("waits", "a", 1_000)
    sleepers = Sleepers(cluster)
    smaller = make_pod("large", namespace="a", cpu_milli=3_000, node="n")
    assert smaller.uid == large.uid
    assert holding(cluster, sleepers, waits, smaller, Action.UPDATE_POD_SCALE_DOWN)


def by_labels(**labels: str) -> tuple[QuotaCluster, Sleepers, Pod]:
    """Leaf `a` of Koordinator is full and holds a pod with these labels back; `b` has room. Pods count for a leaf by label."""
    cluster = QuotaCluster([make_node("n", cpu_milli=100_000)], None)
    cluster.put(linked("a", 0, 2, namespaces=["web"]), linked("b", 0, 9, namespaces=["web"]), linked("c", 0, 9))
    cluster.add("stands", "web", 2_000, node="n")
    waits = cluster.add("waits", "web", 1_000, labels=labels)
    return cluster, Sleepers(cluster), waits


def test_relabelled_pending_pod_is_requeued() -> None:
    cluster, sleepers, waits = by_labels()
    now = msgspec.structs.replace(waits, labels={POD_LABEL: "b"})
    event = ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_LABEL, "TargetPodUpdate")
    assert sleepers.are_woken(waits, event, waits, now)
    assert not sleepers.are_woken(waits, event, waits, msgspec.structs.replace(waits, labels={"else": "b"}))
    assert isinstance(cluster.domain.schedule(now), Placed)


def test_label_changed_after_the_bind_frees_nothing() -> None:
    cluster, _, waits = by_labels()
    moved = make_pod("stands", namespace="web", cpu_milli=2_000, node="n", labels={POD_LABEL: "b", "app": "x"})
    cluster.domain.cache.place(moved)
    entry = cluster.domain.cache.placed(moved.uid)
    assert entry is not None
    assert entry.pod.labels == {"app": "x"}
    assert "quota koordinator-root-quota.a: cpu 2 used" in refusal(cluster, waits)


def test_label_of_a_foreign_quota_is_refused_until_removed() -> None:
    cluster, sleepers, waits = by_labels(**{POD_LABEL: "c"})
    why = refusal(cluster, waits)
    assert f"label {POD_LABEL} names quota c, which does not list namespace web; list web in the annotation" in why
    now = msgspec.structs.replace(waits, labels={})
    event = ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_LABEL, "TargetPodUpdate")
    assert sleepers.are_woken(waits, event, waits, now)
    cluster.put(linked("c", 0, 9, namespaces=["web"]))
    assert isinstance(cluster.domain.schedule(waits), Placed)


def refusal(cluster: QuotaCluster, pod: Pod) -> str:
    result = cluster.domain.schedule(pod)
    assert isinstance(result, Unplaced)
    return result.message
