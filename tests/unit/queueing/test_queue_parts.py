"""The queue's parts on their own: backoff, heap, event log, changes of a pod."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.framework.dependency import Dependency
from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    NODE_ADD,
    Action,
    ClusterEvent,
    EventRegistration,
    Resource,
)
from multisched.framework.points import QueuedPod
from multisched.framework.registry import BuiltPlugin, PluginSet, PluginUse
from multisched.framework.step_budget import UnlimitedSteps
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Owner, PodSpec
from multisched.model.selectors import Toleration
from multisched.plugins.default_binder import DefaultBinder
from multisched.queueing.backoff import BackoffPods, BackoffPolicy
from multisched.queueing.entry import Failure
from multisched.queueing.events_in_flight import EventsInFlight
from multisched.queueing.hints import HintTable
from multisched.queueing.pod_changes import own_event
from multisched.queueing.pod_queue import ADDED
from multisched.queueing.requeue_judge import EVENTS_PER_CHECK
from multisched.queueing.transitions import QueueInvariantError, QueueState
from multisched.queueing.uid_heap import GARBAGE_MIN_ITEMS, UidHeap
from multisched.testing.builders import make_node
from tests.unit.queueing.builders import (
    AFFINITY,
    NODE_LABEL,
    REFUSED,
    AffinityHint,
    BySortOfPriority,
    Listening,
    make_pod,
    make_queue,
    pop_uid,
    profile,
)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (BackoffPolicy(1, 10), [0, 1, 2, 4, 8, 10, 10]),
        (BackoffPolicy(2, 3), [0, 2, 3, 3]),
        (BackoffPolicy(5, 3), [0, 3]),
        (BackoffPolicy(1, 0), [0, 0, 0]),
        (BackoffPolicy(0, 10), [0, 0, 0]),
        (BackoffPolicy(1, 8), [0, 1, 2, 4, 8, 8]),
        (BackoffPolicy(0.5, 0.5), [0, 0.5, 0.5]),
    ],
)
def test_backoff_doubles_from_initial_to_max(policy: BackoffPolicy, expected: list[float]) -> None:
    assert [policy.duration_s(failures) for failures in range(len(expected))] == expected


def test_backoff_stays_at_its_maximum_after_any_number_of_failures() -> None:
    assert BackoffPolicy(1, 10).duration_s(100_000) == 10
    assert [BackoffPolicy(1, 2.0**99).duration_s(failures) for failures in (63, 64, 65)] == [2.0**62, 2.0**63, 2.0**99]


@pytest.mark.parametrize(("initial_s", "max_s"), [(-0.001, 10), (1, -0.001)])
def test_negative_backoff_is_refused(initial_s: float, max_s: float) -> None:
    with pytest.raises(ValueError, match=f"^backoff must not be negative: initial_s={initial_s}, max_s={max_s}$"):
        BackoffPolicy(initial_s, max_s)
    assert (BackoffPolicy(0, 0), BackoffPolicy()) == (BackoffPolicy(0.0, 0.0), BackoffPolicy(1.0, 10.0))


def test_early_pops_follow_queue_sort_within_a_second_and_skip_errors() -> None:
    pods = BackoffPods()
    pods.add("later", 2.1, (0,), 1, is_error=False)
    pods.add("low", 1.1, (2,), 2, is_error=False)
    pods.add("high", 1.9, (1,), 3, is_error=False)
    pods.add("error", 0.5, (0,), 4, is_error=True)

    order = []
    while (uid := pods.early_head()) is not None:
        order.append(uid)
        pods.discard(uid)

    assert order == ["high", "low", "later"]
    assert pods.next_expiry_s() == 0.5
    assert pods.pop_expired(0.4) is None
    assert pods.pop_expired(0.5) == "error"


uids = st.integers(0, 9).map(str)


@given(
    st.lists(st.tuples(st.sampled_from(["push", "discard", "pop"]), uids, st.integers(0, 3)), min_size=30, max_size=200)
)
def test_heap_pops_in_sorted_order_with_little_garbage(steps: list[tuple[str, str, int]]) -> None:
    heap, table = UidHeap(), dict[str, tuple[int, int]]()
    for order, (step, uid, key) in enumerate(steps):
        if step == "push":
            heap.push(uid, key, order)
            table[uid] = (key, order)
        elif step == "discard":
            assert heap.discard(uid) == (table.pop(uid, None) is not None)
        else:
            expected = min(table, key=lambda known: table[known], default=None)
            assert heap.pop() == expected
            table.pop(expected or "", None)
        assert set(heap) == table.keys()
        assert heap.items <= 2 * len(heap) + GARBAGE_MIN_ITEMS


def test_heap_keeps_few_dead_items_before_it_is_rebuilt() -> None:
    heap = UidHeap()
    for number in range(GARBAGE_MIN_ITEMS + 1):
        heap.push(f"{number}", -number, number)
    for number in range(GARBAGE_MIN_ITEMS + 1):
        assert heap.items == GARBAGE_MIN_ITEMS + 1, f"{number} dead items were not worth it"
        heap.discard(f"{number}")
    assert heap.items == 0


def test_events_are_kept_for_the_oldest_attempt_only() -> None:
    log = EventsInFlight(limit=10)
    log.record(NODE_ADD, None, None, is_of_interest=True)
    assert log.kept == 0

    log.begin("old")
    log.record(NODE_ADD, None, None, is_of_interest=True)
    log.begin("young")
    log.record(NODE_ADD, None, None, is_of_interest=True)
    assert (len(log.since("old").events), len(log.since("young").events)) == (2, 1)

    log.end("old")
    assert (log.kept, len(log.since("young").events)) == (1, 1)
    log.end("young")
    assert log.kept == 0


def test_attempt_gets_all_events_since_its_pop() -> None:
    log = EventsInFlight()
    for uid in ("first", "second", "third", "last"):
        log.begin(uid)
        for _ in range(2):
            log.record(NODE_ADD, None, None, is_of_interest=True)
    for uid, kept in (("first", 6), ("second", 4), ("third", 2)):
        log.end(uid)
        assert (log.kept, len(log.since("last").events), log.since("last").is_incomplete) == (kept, 2, False)
    log.validate()


def test_full_event_log_is_dropped_and_older_attempts_are_marked_incomplete() -> None:
    log = EventsInFlight(limit=2)
    log.begin("old")
    for _ in range(3):
        log.record(NODE_ADD, None, None, is_of_interest=True)
    log.begin("young")

    assert (log.kept, log.overflows) == (1, 1)
    assert log.since("old").is_incomplete
    assert not log.since("young").is_incomplete
    assert not log.since("young").anything


def test_event_log_overflows_are_counted() -> None:
    log = EventsInFlight(limit=1)
    log.begin("old")
    for happened in range(1, 4):
        log.record(NODE_ADD, None, None, is_of_interest=True)
        assert (log.kept, log.overflows) == (1, happened - 1)
        log.validate()


def test_event_log_without_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^in_flight_events_max must be >= 1, got 0$"):
        EventsInFlight(limit=0)


def test_kept_events_are_counted_by_name() -> None:
    log = EventsInFlight()
    assert log.kept_by_label() == {}
    for uid in ("a", "b"):
        log.begin(uid)
    for event in (NODE_ADD, NODE_ADD, replace(ASSIGNED_POD_DELETE, label="")):
        log.record(event, None, None, is_of_interest=True)
    assert log.kept_by_label() == {NODE_ADD.label: 2, ASSIGNED_POD_DELETE.resource.value: 1, "PodPopped": 2}
    log.end("a")
    log.begin("c")
    log.record(NODE_ADD, None, None, is_of_interest=True)
    log.end("b")
    assert log.kept_by_label() == {NODE_ADD.label: 1, "PodPopped": 1}, "what was before the last attempt is gone"


def test_event_keeps_its_objects_for_its_readers() -> None:
    log, old, new = EventsInFlight(), make_pod("x"), make_pod("y")
    for uid in ("a", "b"):
        log.begin(uid)
    log.record(NODE_ADD, old, new, is_of_interest=True)
    log.record_for("a", ASSIGNED_POD_DELETE, new, None)
    (told, own), (other,) = log.since("a").events, log.since("b").events
    assert (told.event, told.old, told.new) == (other.event, other.old, other.new) == (NODE_ADD, old, new)
    assert (own.event, own.old, own.new, own.uid) == (ASSIGNED_POD_DELETE, new, None, "a")


def test_last_eight_transitions_are_kept_oldest_first() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0.0)
    assert pop_uid(queue, 0.0) == "u"
    for step in range(1, 6):
        queue.remove("u")
        queue.add(make_pod("u"), float(step))
    moves = [(step - (event == "Removed"), event) for step in range(2, 6) for event in ("Removed", ADDED)]
    assert [(at_s, event) for at_s, event, _ in queue.transitions("u")] == moves


def test_unregistered_event_is_counted_and_not_kept() -> None:
    log = EventsInFlight()
    log.begin("u")
    log.record(NODE_ADD, None, None, is_of_interest=False)

    assert log.since("u").anything
    assert log.since("u").events == ()


def test_event_for_one_pod_does_not_affect_another() -> None:
    log = EventsInFlight()
    log.begin("a")
    log.begin("b")
    log.record_for("a", NODE_ADD, None, None)

    assert log.since("a").anything
    assert not log.since("b").anything
    assert log.since("b").events == ()


def test_popping_a_pod_twice_raises() -> None:
    log = EventsInFlight()
    log.begin("u")
    with pytest.raises(QueueInvariantError, match="popped twice"):
        log.begin("u")


BASE = PodSpec(requests={"cpu": 500, "memory": 10})
TOLERANT = PodSpec(requests=BASE.requests, tolerations=(Toleration(key="a"),))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (make_pod("u"), make_pod("u", version=2, phase="Failed", nominated_node="n"), None),
        (make_pod("u"), make_pod("u", labels={"a": "b"}), Action.UPDATE_POD_LABEL),
        (make_pod("u", gates=("g",)), make_pod("u"), Action.UPDATE_POD_GATES),
        (make_pod("u", gates=("g", "h")), make_pod("u", gates=("h",)), Action.UPDATE_POD_OTHER),
        (make_pod("u"), make_pod("u", annotations={"a": "b"}), Action.UPDATE_POD_OTHER),
        (
            make_pod("u"),
            make_pod("u", labels={"a": "b"}, annotations={"a": "b"}),
            Action.UPDATE_POD_LABEL | Action.UPDATE_POD_OTHER,
        ),
        (make_pod("u", spec=BASE), make_pod("u", spec=TOLERANT), Action.UPDATE_POD_TOLERATION),
        (
            make_pod("u", spec=BASE),
            make_pod("u", spec=PodSpec(requests={"cpu": 400, "memory": 10})),
            Action.UPDATE_POD_SCALE_DOWN,
        ),
        (make_pod("u", spec=BASE), make_pod("u", spec=PodSpec(requests={"cpu": 500})), Action.UPDATE_POD_SCALE_DOWN),
        (
            make_pod("u", spec=BASE),
            make_pod("u", spec=PodSpec(requests={"cpu": 900, "memory": 9})),
            Action.UPDATE_POD_SCALE_DOWN | Action.UPDATE_POD_SCALE_UP,
        ),
        (
            make_pod("u", spec=BASE),
            make_pod("u", spec=PodSpec(requests=BASE.requests, priority=1)),
            Action.UPDATE_POD_OTHER,
        ),
    ],
)
def test_update_event_names_the_changed_part(old: object, new: object, expected: Action | None) -> None:
    event = own_event(old, new)  # type: ignore[arg-type]
    assert (event.action if event else None) == expected


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"labels": {"a": "b"}, "annotations": {"a": "b"}}, "UnschedulablePodUpdatePodLabel"),
        ({"spec": PodSpec(requests={"cpu": 400, "memory": 10})}, "UnschedulablePodUpdatePodScaleDown"),
        ({"gates": ()}, "UnschedulablePodUpdatePodSchedulingGatesEliminated"),
        ({"spec": TOLERANT}, "UnschedulablePodUpdatePodToleration"),
        ({"spec": PodSpec(requests={"cpu": 900, "memory": 10})}, "UnschedulablePodUpdate"),
        ({"annotations": {"a": "b"}}, "UnschedulablePodUpdate"),
        ({"owner": Owner("ReplicaSet", "r", "uid-r")}, "UnschedulablePodUpdate"),
        ({"malformed": "odd"}, "UnschedulablePodUpdate"),
    ],
)
def test_update_event_has_the_kube_scheduler_name(changes: dict[str, Any], label: str) -> None:
    old = replace(make_pod("u", spec=BASE), gates=("g",))
    event = own_event(old, replace(old, **changes))
    assert event is not None
    assert (event.resource, event.label) == (Resource.TARGET_POD, label)


class Counting(Listening):
    """A Filter plugin as the queue knows it: it registers deletions, and says what its answers hang on."""

    def __init__(self, name: str, depends_on: Dependency) -> None:
        super().__init__(name, EventRegistration(ASSIGNED_POD_DELETE))
        self.depends_on = depends_on


@pytest.mark.parametrize(
    ("depends_on", "hears"),
    [
        (Dependency.NODE, False),
        (Dependency.ROW, False),
        (Dependency.ROW_AND_CACHE_KEY, True),
        (Dependency.CACHE_KEY, True),
        (Dependency.ATTEMPT, True),
    ],
)
def test_events_of_other_domains_reach_plugins_that_read_beyond_a_row(depends_on: Dependency, hears: bool) -> None:
    table = HintTable([Counting("Count", depends_on)], lambda plugin, point, error: None)
    distant = replace(ASSIGNED_POD_DELETE, resource=Resource.DISTANT_POD)

    assert bool(table.listeners(distant, ["Count"])) is hears
    assert table.is_of_interest(distant) is hears
    assert table.listeners(ASSIGNED_POD_DELETE, ["Count"])
    assert table.listeners(distant, ["nobody has heard of it"])


def test_event_outside_the_wildcard_concerns_only_registered_plugins() -> None:
    quota, volume = (
        ClusterEvent(kind, Action.ADD) for kind in (ObjectKind.RESOURCE_QUOTA, ObjectKind.PERSISTENT_VOLUME)
    )
    anything = ClusterEvent(Resource.WILDCARD, Action.ALL)
    asking = Listening("Asking", EventRegistration(ClusterEvent(ObjectKind.RESOURCE_QUOTA, Action.ALL)))
    names = ["Asking", "Any", "registers nothing"]

    def heard(table: HintTable, event: ClusterEvent) -> list[str]:
        return [name for name, _ in table.listeners(event, names)]

    table = HintTable([Listening("Any", EventRegistration(anything)), asking], lambda plugin, point, error: None)
    assert (table.is_of_interest(quota), heard(table, quota)) == (True, ["Asking"])
    assert heard(table, volume) == ["Any", "registers nothing"]
    table = HintTable([Listening("Any", EventRegistration(anything))], lambda plugin, point, error: None)
    assert not table.is_of_interest(quota)


def test_event_outside_the_wildcard_does_not_affect_rejectors_without_registrations() -> None:
    log = EventsInFlight(2)
    log.begin("p")
    log.record(ClusterEvent(ObjectKind.RESOURCE_QUOTA, Action.ADD), None, None, is_of_interest=True)
    assert (log.since("p").anything, len(log.since("p").events)) == (False, 1)
    log.record(NODE_ADD, None, None, is_of_interest=False)
    assert log.since("p").anything


def test_event_of_a_plugin_that_a_reload_enables_is_not_lost_during_an_attempt() -> None:
    """No plugin had registered this kind before."""
    queue = make_queue(plugins=[])
    queue.add(make_pod("u"), 0)
    pop_uid(queue, 0)
    queue.on_event(NODE_LABEL, make_node(), make_node(), 0)
    queue.fail("u", REFUSED, 0)
    enabled = (BySortOfPriority(), DefaultBinder(), Listening("New", EventRegistration(NODE_LABEL)))
    queue.use(PluginSet(BuiltPlugin(one, PluginUse(one.name)) for one in enabled), 1, retry_refused=True)
    assert pop_uid(queue, 1) == "u"
    queue.on_event(NODE_LABEL, make_node(), make_node(), 1)

    assert queue.fail("u", Failure(rejectors=frozenset({"New"})), 1).state is QueueState.BACKOFF


class SpentSteps(UnlimitedSteps):
    def is_spent(self) -> bool:
        return True


def test_events_that_are_left_when_the_budget_is_spent_count_as_one_that_may_help() -> None:
    hint = AffinityHint()
    queue = make_queue(plugins=profile(hint), in_flight_events_max=1_000)
    for uid in ("limited", "unlimited"):
        queue.add(make_pod(uid, labels={"zone": "a"}), 0)
        pop_uid(queue, 0)
    for _ in range(2 * EVENTS_PER_CHECK):
        queue.on_event(NODE_ADD, None, make_node(labels={"zone": "b"}), 0)

    placements = [
        queue.fail("limited", Failure(rejectors=frozenset({AFFINITY})), 0, SpentSteps()),
        queue.fail("unlimited", Failure(rejectors=frozenset({AFFINITY})), 0),
    ]

    assert [one.state for one in placements] == [QueueState.BACKOFF, QueueState.UNSCHEDULABLE]
    assert hint.asked == EVENTS_PER_CHECK - 1 + 2 * EVENTS_PER_CHECK


def test_pod_of_another_spec_whose_backoff_ended_is_not_popped_as_one_like_the_last() -> None:
    queue, first = make_queue(), make_pod("first", priority=1)
    queue.add(first, 0)
    assert pop_uid(queue, 0) == "first"
    queue.fail("first", Failure(is_error=True), 0)
    second = make_pod("second")
    queue.add(second, 0)
    assert queue.pop(5, second.spec) is None
    assert pop_uid(queue, 5) == "first"
    popped = queue.pop(5, second.spec)
    assert isinstance(popped, QueuedPod)
    assert popped.pod is second
