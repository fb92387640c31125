"""From watch lines to cache and queues: every pod is in exactly one place, whatever the lines say and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import pytest

from multisched.framework.dependency import Dependency
from multisched.framework.events import (
    Action,
    ClusterEvent,
    EventObject,
    EventRegistration,
    Hint,
    QueueingHint,
    Resource,
)
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, Plugin, PostFilterResult, Refusals
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Code, Status
from multisched.model.decode import Decoder
from multisched.model.limited_toleration import LimitedToleration, PodRule
from multisched.model.objects import CPU, HostPort, Pod, PodSpec
from multisched.model.selectors import Toleration
from multisched.queueing.entry import Failure
from multisched.queueing.transitions import QueueState
from multisched.shell.ingest import pods_and_nodes
from multisched.shell.ingest.pods_and_nodes import NodeIngest
from multisched.testing.builders import container, make_pod, pod_document, pop_pod
from multisched.testing.sim_loop import SimLoop
from tests.unit.shell.shell_kit import WorkerHarness, as_served


@pytest.fixture
def harness() -> Iterator[WorkerHarness]:
    """Two nodes, and a domain that is led; nobody at work."""
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", "b")
        harness.worker.lead()
        yield harness


def place_of(harness: WorkerHarness, uid: str) -> QueueState | None:
    return harness.worker.queue.where(uid)


def test_pending_pod_is_queued_in_its_domain_and_a_foreign_one_is_not(harness: WorkerHarness) -> None:
    ours, theirs = harness.see_pod("p"), harness.see_pod("q", scheduler="default-scheduler")
    assert place_of(harness, ours) is QueueState.ACTIVE
    assert place_of(harness, theirs) is None
    assert len(harness.cache) == 0


def test_placed_pod_of_any_scheduler_counts(harness: WorkerHarness) -> None:
    harness.see_pod("p", scheduler="default-scheduler", nodeName="a")
    row = harness.domain.row("a")
    assert harness.cache.nodes.requested(CPU)[row] == 1000


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_terminal_pod_holds_nothing(harness: WorkerHarness, phase: str) -> None:
    harness.see_pod("p", nodeName="a", phase="Running")
    harness.see_pod("p", nodeName="a", phase=phase)
    assert len(harness.cache) == 0
    harness.see_pod("late", nodeName="a", phase=phase)
    assert len(harness.cache) == 0


def test_pod_bound_by_another_scheduler_leaves_the_queue(harness: WorkerHarness) -> None:
    uid = harness.see_pod("p")
    harness.see_pod("p", nodeName="b")
    assert place_of(harness, uid) is None
    assert harness.node_of("p") == "b"


def test_deletion_without_last_state_finds_its_pod_by_name(harness: WorkerHarness) -> None:
    waiting, placed = harness.see_pod("p"), harness.see_pod("q", nodeName="a")
    harness.lose_pod("p")
    harness.lose_pod("q")
    harness.lose_pod("unknown")
    assert place_of(harness, waiting) is None
    assert harness.cache.placed(placed) is None
    assert harness.domain.nominator is not None
    assert len(harness.cache) == 0


def test_recreated_pod_is_another_pod(harness: WorkerHarness) -> None:
    old = harness.see_pod("p", nodeName="a")
    harness.lose_pod("p")
    new = harness.see_pod("p", uid="uid-again")
    assert harness.cache.placed(old) is None
    assert place_of(harness, new) is QueueState.ACTIVE
    harness.lose_pod("p")
    assert place_of(harness, new) is None


def test_stale_pod_does_not_take_the_name_of_its_successor(harness: WorkerHarness) -> None:
    """Its end was missed: when the audit drops it, another one has the name."""
    old, new = harness.see_pod("p", nodeName="a"), harness.see_pod("p", uid="uid-again")
    harness.pods.drop(old)
    assert harness.cache.placed(old) is None
    assert harness.pods.uid_of("default/p") == new
    harness.lose_pod("p")
    assert place_of(harness, new) is None


def test_gated_pod_is_reported_to_its_owner_once(harness: WorkerHarness) -> None:
    uid = harness.see_pod("p", schedulingGates=[{"name": "g"}])
    assert place_of(harness, uid) is QueueState.GATED
    harness.see_pod("p")
    assert place_of(harness, uid) is QueueState.ACTIVE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cpu": "lots"}, "cpu"),
        ({"metadata": {"labels": {f"l{i}": "" for i in range(10_000)}}}, "metadata.labels"),
        ({"tolerations": [{"key": "k"}] * 300}, "spec.tolerations"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_unschedulable_pod_is_reported_once_and_others_continue(
    harness: WorkerHarness, fields: dict[str, Any], words: str
) -> None:
    for version in ("1", "2", "3"):
        metadata = {**fields.get("metadata", {}), "resourceVersion": version}
        uid = harness.see_pod("bad", **{**fields, "metadata": metadata})
    good = harness.see_pod("good")
    (message,) = harness.told("bad")
    assert words in message
    assert [condition.reason for _, condition in harness.desk.conditions] == ["Unschedulable"]
    assert harness.reasons() == ["FailedScheduling"]
    assert (place_of(harness, uid), place_of(harness, good)) == (None, QueueState.ACTIVE)


def test_malformed_pod_leaves_the_queue_and_returns_when_fixed(harness: WorkerHarness) -> None:
    uid = harness.see_pod("p")
    harness.see_pod("p", cpu="lots")
    assert place_of(harness, uid) is None
    harness.see_pod("p")
    assert place_of(harness, uid) is QueueState.ACTIVE
    harness.see_pod("p", cpu="lots")
    assert len(harness.told("p")) == 2


def test_unreadable_bound_pod_still_counts(harness: WorkerHarness) -> None:
    labels = {f"l{i}": "" for i in range(10_000)}
    harness.see_pod("p", nodeName="a", metadata={"labels": labels})
    assert harness.cache.nodes.requested(CPU)[harness.domain.row("a")] == 1000


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[1]", b'{"metadata":{"name":"p"}}', b'{"metadata":{"name":"p"},"spec":7}']
)
def test_line_without_a_pod_is_only_counted(harness: WorkerHarness, raw: bytes) -> None:
    harness.pods.upsert("default/p", msgspec.Raw(raw))
    harness.pods.delete("default/p", msgspec.Raw(raw))
    assert harness.pods.malformed == 2 or raw == b'{"metadata":{"name":"p"}}'
    assert harness.pods.malformed >= 1
    assert len(harness.cache) == len(harness.worker.queue) == 0


def test_pods_without_a_uid_are_not_confused(harness: WorkerHarness) -> None:
    harness.see_pod("p", uid="", nodeName="a")
    harness.see_pod("q", uid="", nodeName="b")
    assert len(harness.cache) == 0
    assert harness.pods.malformed == 2


@pytest.mark.parametrize("cpu", ["-1", "lots", "9E"])
def test_node_with_absurd_capacity_is_reported_once_and_takes_no_pods(harness: WorkerHarness, cpu: str) -> None:
    harness.see_node("bad", cpu=cpu)
    harness.see_node("bad", cpu=cpu)
    assert harness.reasons() == ["MalformedNode"]
    assert "bad" not in {harness.cache.nodes.node(int(row)).name for row in harness.domain.rows.rows}
    harness.see_node("bad")
    harness.see_node("bad", cpu=cpu)
    assert harness.reasons() == ["MalformedNode", "MalformedNode"]
    assert {(event.type, event.regarding.kind, event.regarding.name) for event in harness.desk.events} == {
        ("Warning", "Node", "bad")
    }


def test_new_or_freed_node_requeues_pods_waiting_for_room(harness: WorkerHarness) -> None:
    uid = harness.see_pod("p", cpu="100")
    assert harness.worker.queue.pop(0.0) is not None
    harness.worker.queue.fail(uid, Failure(frozenset({"NodeResourcesFit"})), 0.0)
    assert place_of(harness, uid) is QueueState.UNSCHEDULABLE
    harness.see_node("small")
    assert place_of(harness, uid) is QueueState.UNSCHEDULABLE
    harness.see_node("large", cpu="200")
    assert place_of(harness, uid) in (QueueState.ACTIVE, QueueState.BACKOFF)


def test_shrunken_placed_pod_requeues_pods_waiting_for_room(harness: WorkerHarness) -> None:
    harness.see_pod("standing", cpu="1500m", nodeName="a", phase="Running")
    uid = harness.see_pod("p", cpu="1")
    assert harness.worker.queue.pop(0.0) is not None
    harness.worker.queue.fail(uid, Failure(frozenset({"NodeResourcesFit"})), 0.0)
    harness.see_pod("standing", cpu="1500m", nodeName="a", phase="Running", metadata={"labels": {"a": "b"}})
    assert place_of(harness, uid) is QueueState.UNSCHEDULABLE
    harness.see_pod("standing", cpu="500m", nodeName="a", phase="Running")
    assert place_of(harness, uid) in (QueueState.ACTIVE, QueueState.BACKOFF)


def test_domain_tolerations_are_added_only_in_memory() -> None:
    tolerations = {"ours": (Toleration("virtual", "Exists"),)}
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, tolerations=tolerations)
        harness.see_node("virtual", taints=[{"key": "virtual", "effect": "NoSchedule"}])
        harness.see_pod("p", tolerations=[{"key": "own"}])
        harness.see_pod("other", scheduler="default-scheduler", nodeName="virtual")
    popped, entry = pop_pod(harness.worker.queue, 0.0), harness.cache.placed("uid-other")
    assert popped is not None
    assert [t.key for t in popped.pod.spec.tolerations] == ["own", "virtual"]
    assert entry is not None
    assert entry.pod.spec.tolerations == ()


def test_policy_toleration_follows_the_pod_requirements() -> None:
    limited = LimitedToleration("virtual", "Exists", pods=PodRule(annotations=("needs",)))
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, tolerations={"ours": (limited,)})
        added = []
        for annotations in ({}, {"needs": "1"}, {"needs": "2"}, {}):
            uid = harness.see_pod("p", metadata={"annotations": annotations})
            added.append([t.key for t in harness.pods.pending[uid].spec.tolerations])
    assert added == [[], ["virtual"], ["virtual"], []]


def test_nomination_lasts_while_its_pod_is_pending(harness: WorkerHarness) -> None:
    harness.see_pod("p", status={"nominatedNodeName": "a"})
    assert len(harness.domain.nominator) == 1
    harness.see_pod("p", nodeName="a")
    assert len(harness.domain.nominator) == 0
    harness.see_pod("q", status={"nominatedNodeName": "a"})
    harness.lose_pod("q")
    assert len(harness.domain.nominator) == 0


def test_placed_pod_over_a_limit_blocks_placements_and_a_pending_one_is_reported() -> None:
    """257 tolerations: valid for the API, too many to schedule by. Its port and its anti-affinity stand all the same."""
    term = {"labelSelector": {"matchLabels": {"role": "leader"}}, "topologyKey": "zone"}
    over: dict[str, Any] = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "tolerations": [{"key": f"k{number}"} for number in range(257)],
        "containers": [{"name": "c", "ports": [{"hostPort": 80}]}],
    }
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, filters=("NodePorts", "InterPodAffinity"))
        harness.worker.lead()
        harness.see_node("a", labels={"zone": "z"})
        harness.see_pod("standing", nodeName="a", **over)
        wanted = harness.worker.cycle
        plain, leader = make_pod("plain"), make_pod("leader", labels={"role": "leader"})
        at_port = make_pod("port", spec=PodSpec(host_ports=(HostPort("", "TCP", 80),)))
        assert wanted.refusal_of_move(None, plain, "a") == ""
        assert "InterPodAffinity" in wanted.refusal_of_move(None, leader, "a")
        assert "NodePorts" in wanted.refusal_of_move(None, at_port, "a")
        harness.see_pod("pending", **over)
        assert "spec.tolerations: 257 entries" in harness.told("pending")[0]


def test_unreadable_or_disputed_node_is_reported_once_per_fault() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop)
        claims: dict[str, tuple[str, ...]] = {}
        harness.nodes = NodeIngest(
            harness.cache,
            harness.router,
            Decoder(),
            harness.clock,
            harness.desk,
            "ours",
            disputed=lambda node: claims.get(node.name, ()),
        )
        for _ in range(2):
            harness.see_node("bad", cpu="lots")
        harness.nodes.upsert("odd", msgspec.Raw(b"[]"))
        claims["both"] = ("first", "second", "third")
        for _ in range(2):
            harness.see_node("both")
        claims.clear()
        harness.see_node("both")
        claims["both"] = ("first", "second", "third")
        harness.see_node("both")
        told = [(one.regarding.kind, one.regarding.name, one.type, one.reason) for one in harness.desk.events]
        disputed = ("Node", "both", "Warning", "DisputedNode")
        assert told == [("Node", "bad", "Warning", "MalformedNode"), disputed, disputed]
        assert harness.desk.events[0].note.startswith("No pod is placed here: ")
        assert harness.desk.events[1].note == (
            "The selectors of the domains first, second, third match: it belongs to first, and second, third cannot"
            " use it. Make the selectors disjoint, lend it, or label it multisched.io/domain"
        )
        assert harness.desk.events[1].reporter == "ours"
        assert harness.nodes.malformed == 2
        assert (harness.cache.nodes.row_of("odd"), harness.cache.nodes.node_count) == (None, 2)


class Listens:
    """Refuses all, and remembers what it is told of pods on nodes."""

    name = "Listens"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._no = self.reasons.code(Code.UNSCHEDULABLE, "no")
        self.heard: list[tuple[str, object, object]] = []

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.full(len(rows), self._no, np.uint8)

    def events_to_register(self) -> Sequence[EventRegistration]:
        def hear(kind: str) -> QueueingHint:
            def hint(pod: Pod, old: EventObject, new: EventObject) -> Hint:
                self.heard.append((kind, old, new))
                return Hint.SKIP

            return hint

        kinds = {
            "labels": Action.UPDATE_POD_LABEL,
            "smaller": Action.UPDATE_POD_SCALE_DOWN,
            "going": Action.DELETE,
        }
        return [
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, action, kind), hear(kind))
            for kind, action in kinds.items()
        ]


def test_plugin_gets_the_old_and_new_state_of_a_changed_pod() -> None:
    listens = Listens()
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", plugins=[listens])
        harness.see_pod("stands", cpu="2", nodeName="a", scheduler="other", metadata={"labels": {"color": "red"}})
        waiting = harness.see_pod("waits")
        entry = harness.worker.queue.pop(0.0)
        assert entry is not None
        harness.worker.queue.fail(waiting, Failure(frozenset({"Listens"})), 0.0)
        before = harness.cache.placed("uid-stands")
        assert before is not None
        old = before.pod
        harness.see_pod("stands", nodeName="a", scheduler="other", metadata={"labels": {"color": "blue"}})
        after = harness.cache.placed("uid-stands")
        assert after is not None
        assert sorted(kind for kind, *_ in listens.heard) == ["labels", "smaller"]
        assert all((was, now) == (old, after.pod) for _, was, now in listens.heard)
        harness.lose_pod("stands")
        assert [(kind, was) for kind, was, _ in listens.heard[2:]] == [("going", after.pod)]


def test_deleting_assumed_pod_counts_as_deleting(harness: WorkerHarness) -> None:
    """Spreading does not count pods that go; the watch has told it, though no watch has shown it on its node yet."""
    uid = harness.see_pod("brief")
    harness.cache.assume(harness.pods.pending[uid], harness.domain.row("a"))
    harness.see_pod("brief", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    entry = harness.cache.placed(uid)
    assert entry is not None
    assert entry.pod.is_deleting


def test_matches_cache_is_true_if_the_pod_counts_on_its_node(harness: WorkerHarness) -> None:
    """What a handover asks: nothing is counted of a pod that has ended, and what cannot be read holds nobody up."""

    def on(node: str, phase: str = "Running", uid: str = "uid-p") -> msgspec.Raw:
        return pod_as_served(node=node, phase=phase, metadata={"uid": uid})

    assert not harness.pods.matches_cache(on("a"))
    harness.see_pod("p", nodeName="a", phase="Running")
    assert harness.pods.matches_cache(on("a"))
    assert not harness.pods.matches_cache(on("b"))
    assert not harness.pods.matches_cache(on("a", uid="uid-again"))
    assert harness.pods.matches_cache(on("b", phase="Succeeded"))
    assert harness.pods.matches_cache(msgspec.Raw(b"7"))


def pod_as_served(
    name: str = "p", *, cpu: str = "1", phase: str = "Pending", scheduler: str = "ours", **fields: Any
) -> msgspec.Raw:
    """A pod as a list of the API server has it."""
    document = pod_document(name, container(cpu=cpu), status={"phase": phase}, schedulerName=scheduler, **fields)
    return as_served(document)


def test_policy_specs_are_shared_by_equal_pods_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods_and_nodes, "INTERNED_MAX", 2)
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, tolerations={"ours": (Toleration("virtual", "Exists"),)})
        uids = []
        for number in range(10):
            uids.append(harness.see_pod(f"p-{number}", cpu=str(1 + number // 2)))
            assert 1 <= len(harness.pods._tolerant) <= 2
        specs = [harness.pods.pending[uid].spec for uid in uids]
        assert all([one.key for one in spec.tolerations] == ["virtual"] for spec in specs)
        assert all(first is second for first, second in zip(specs[::2], specs[1::2], strict=True))


def test_ended_nomination_requeues_pods_waiting_for_its_room(harness: WorkerHarness) -> None:
    promised = harness.see_pod("promised", status={"nominatedNodeName": "a"})
    for node in ("a", "b"):
        late = harness.see_pod("late")
        harness.worker.queue.remove(promised)
        assert harness.worker.queue.pop(0.0) is not None
        harness.worker.queue.fail(late, Failure(frozenset({"NodeResourcesFit"})), 0.0)
        harness.see_pod("promised", nodeName=node, status={"nominatedNodeName": "a"})
        assert (place_of(harness, late) is QueueState.UNSCHEDULABLE) == (node == "a")
        harness.lose_pod("promised")
        harness.lose_pod("late")
        promised = harness.see_pod("promised", status={"nominatedNodeName": "a"})


class Ranked:
    """Pods that it nominates keep their place from everybody, as those do that reclaim."""

    name = "Ranked"

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        raise AssertionError("nobody is tried here")

    def nomination_rank(self, pod: Pod) -> int | None:
        return ABOVE_EVERY_PRIORITY - 1


@pytest.mark.parametrize("plugins", [(), (Ranked(),)])
def test_ended_nomination_also_requeues_higher_priority_pods(plugins: Sequence[Plugin]) -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", plugins=plugins)
        harness.worker.lead()
        promised = harness.see_pod("promised", status={"nominatedNodeName": "a"})
        urgent = harness.see_pod("urgent", priority=9)
        harness.worker.queue.remove(promised)
        assert harness.worker.queue.pop(0.0) is not None
        harness.worker.queue.fail(urgent, Failure(frozenset({"NodeResourcesFit"})), 0.0)
        harness.lose_pod("promised")
        assert (place_of(harness, urgent) is QueueState.UNSCHEDULABLE) == (not plugins)


class Quota:
    """A gate that is closed."""

    name = "Quota"

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status.unschedulable("quota is used up")


def test_gated_pod_reports_the_plugin_unless_it_has_its_own_gates() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", plugins=[Quota()])
        harness.worker.lead()
        harness.see_pod("held")
        harness.see_pod("held", metadata={"labels": {"a": "b"}})
        harness.see_pod("gated", schedulingGates=[{"name": "g"}])
    assert [(pod, one.reason, one.message) for pod, one in harness.desk.conditions] == [
        ("held", "SchedulingGated", "quota is used up")
    ]


def test_standby_reports_nothing_and_the_next_leader_reports_all() -> None:
    with closing(SimLoop(seed=1)) as loop:
        harness = WorkerHarness(loop, "a", plugins=[Quota()])
        harness.see_pod("held")
        harness.see_pod("gated", schedulingGates=[{"name": "g"}])
        harness.see_pod("bad", cpu="lots")
        assert not harness.desk.conditions
        harness.worker.lead()
        harness.pods.notify_owners(harness.worker)
    told = {pod: (one.reason, one.message) for pod, one in harness.desk.conditions}
    assert told.keys() == {"held", "bad"}
    assert told["held"] == ("SchedulingGated", "quota is used up")
    assert told["bad"][0] == "Unschedulable"
    assert "cpu" in told["bad"][1]


def test_number_of_remembered_refused_pods_is_limited(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_and_nodes, "REPORTED_MAX", 2)
    uids = [harness.see_pod(f"bad-{number}", cpu="lots") for number in range(4)]
    assert list(harness.pods.refused) == uids[2:]
    assert harness.pods.malformed == 4
    refused = harness.pods.refused[uids[3]]
    assert (refused.pod.name, refused.domain, refused.since_s) == ("bad-3", "ours", 0.0)
    harness.lose_pod("bad-3")
    assert (list(harness.pods.refused), harness.pods.uid_of("default/bad-3")) == (uids[2:3], "")
    assert harness.pods.uid_of("default/bad-2") == uids[2]
