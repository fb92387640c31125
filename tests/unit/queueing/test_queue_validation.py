"""Where two indices of the queue disagree, `validate` says which and about whom: simulated runs stop there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multisched.framework.events import NODE_ADD
from multisched.framework.points import QueuedPod
from multisched.framework.status import Status
from multisched.model.objects import NodeAffinity, Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm, SpreadConstraint
from multisched.model.selectors import NodeSelector, NodeTerm
from multisched.queueing.active_pods import MARKS_MAX, ActivePods
from multisched.queueing.entry import Entry
from multisched.queueing.events_in_flight import EventsInFlight
from multisched.queueing.parked_pods import ParkedPods, hint_cost
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueInvariantError, QueueState, check
from tests.unit.queueing.builders import ClosedGates, Errors, make_pod, make_queue, pop_uid


def two_namespaces() -> ActivePods:
    active = ActivePods()
    for order, (uid, namespace) in enumerate([("a-1", "a"), ("a-2", "a"), ("b-1", "b")]):
        active.push_retry(uid, namespace, (0,), order)
    active.push_first("c-1", "c", (0,), 9)
    active.validate()
    return active


def forget_home(active: ActivePods) -> None:
    del active._home["a-1"]


def keep_an_empty_heap(active: ActivePods) -> None:
    active._retries["a"].discard("a-1")
    active._retries["a"].discard("a-2")
    del active._home["a-1"], active._home["a-2"]


def miscount_a_namespace(active: ActivePods) -> None:
    active._tenants["a"] = 3


def count_a_namespace_without_pods(active: ActivePods) -> None:
    active._tenants["d"] = 0


def hold_a_namespace_twice(active: ActivePods) -> None:
    active._ahead.push("a", 1.0, 0)


def leave_a_namespace_out(active: ActivePods) -> None:
    active._behind.discard("b")


def name_another_first(active: ActivePods) -> None:
    active._best["a"] = "a-2"


def keep_too_many_shares(active: ActivePods) -> None:
    active._marks |= {f"gone-{number}": 0.0 for number in range(MARKS_MAX + 1)}


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (forget_home, "2 retries known, 3 indexed"),
        (keep_an_empty_heap, "1 retries known, 1 indexed"),
        (miscount_a_namespace, "4 pods active, 5 counted by namespace"),
        (count_a_namespace_without_pods, "4 pods active, 4 counted by namespace"),
        (hold_a_namespace_twice, "a namespace with retries is not in exactly one of due and ahead"),
        (leave_a_namespace_out, "a namespace with retries is not in exactly one of due and ahead"),
        (name_another_first, "the first retry of namespace a is not a-2"),
        (keep_too_many_shares, f"{MARKS_MAX + 3} shares kept (I10)"),
    ],
)
def test_inconsistent_active_pods_are_reported(break_it: Callable[[ActivePods], None], words: str) -> None:
    active = two_namespaces()
    break_it(active)
    with pytest.raises(QueueInvariantError) as told:
        active.validate()
    assert str(told.value) == words


def test_number_of_kept_shares_is_limited() -> None:
    active = two_namespaces()
    active._marks |= {f"gone-{number}": 0.0 for number in range(MARKS_MAX)}
    active.validate()


def one_parked() -> tuple[ParkedPods, Entry]:
    parked = ParkedPods()
    pod = make_pod("p")
    entry = Entry(pod.uid, pod, 1, 0.0, 0.0)
    entry.state = QueueState.UNSCHEDULABLE
    parked.add(entry, 10.0)
    parked.validate()
    return parked, entry


def test_inconsistent_parked_pods_are_reported() -> None:
    parked, entry = one_parked()
    entry.state = QueueState.GATED
    with pytest.raises(QueueInvariantError, match=rf"^pod {entry.uid} is indexed under "):
        parked.validate()

    parked, entry = one_parked()
    del parked._deadlines[entry.uid]
    with pytest.raises(QueueInvariantError, match=r"^1 pods parked, 1 keys, 0 deadlines$"):
        parked.validate()

    parked, entry = one_parked()
    (classes,) = (classes for namespaces in parked._groups.values() for classes in namespaces.values())
    next(iter(classes.values())).clear()
    with pytest.raises(QueueInvariantError, match=rf"^an empty class is kept under .* of {entry.pod.namespace}$"):
        parked.validate()


def test_events_beyond_the_limit_or_without_readers_are_reported() -> None:
    with pytest.raises(ValueError, match="in_flight_events_max must be >= 1, got 0"):
        EventsInFlight(0)
    events = EventsInFlight(2)
    events.begin("p")
    for _ in range(2):
        events.record(NODE_ADD, None, None, is_of_interest=True)
    events.validate()
    events._limit = 1
    with pytest.raises(QueueInvariantError, match=r"^2 events kept, at most 1 may be \(I10\)$"):
        events.validate()
    events._limit = 2
    attempt = events.attempts.pop("p")
    with pytest.raises(QueueInvariantError, match=r"^2 events kept for no attempt$"):
        events.validate()
    events.attempts["p"] = attempt
    attempt.position += 1
    with pytest.raises(QueueInvariantError, match=r"^events since 0 kept, needed since 1$"):
        events.validate()


def forget_the_place(queue: PodQueue, entry: Entry) -> None:
    entry.state = QueueState.BACKOFF


def close_the_gate(queue: PodQueue, entry: Entry) -> None:
    entry.gate = Status.unschedulable("quota is used up")


def forget_the_pod(queue: PodQueue, entry: Entry) -> None:
    del queue._states.entries[entry.uid]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (forget_the_place, r"^pod p is backoff, found in \[<.*ActivePods.*>\] \["),
        (close_the_gate, r"^pod p is active, its gate says .*quota is used up"),
        (forget_the_pod, r"^\[1, 0, 0, 0, 0\] pods indexed, 0 known$"),
    ],
)
def test_pod_in_a_wrong_index_is_reported(break_it: Callable[[PodQueue, Entry], None], words: str) -> None:
    queue = make_queue()
    queue.add(make_pod("p"), 0.0)
    queue.validate()
    (entry,) = queue._entries.values()
    break_it(queue, entry)
    with pytest.raises(QueueInvariantError, match=words):
        queue.validate()


class Sorts:
    """A QueueSort plugin that gives each pod the key of its annotations' place in a table."""

    name = "Sorts"

    def __init__(self, keys: dict[str, Any]) -> None:
        self._keys = keys

    def sort_key(self, entry: QueuedPod) -> Any:
        return self._keys[entry.pod.name]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ([1], "sort_key returned list, not a tuple"),
        ((None,), "sort_key returned (None,), which cannot be compared with the others"),
        (("text",), "sort_key returned ('text',), which cannot be compared with the others"),
        ((1, 2), "sort_key returned (1, 2), which cannot be compared with the others"),
    ],
)
def test_incomparable_sort_key_is_reported(key: Any, words: str) -> None:
    heard = Errors()
    queue = PodQueue(Sorts({"first": (5,), "odd": key, "float": (0.5,)}), [], [], on_error=heard)
    for name in ("first", "odd", "float"):
        queue.add(make_pod(name), 0.0)
    assert heard.heard == [("Sorts", "QueueSort", words)]
    assert [pop_uid(queue, 0.0) for _ in range(3)] == ["odd", "float", "first"]


def test_gate_without_a_status_holds_its_pod_and_is_reported() -> None:
    class Odd:
        name = "Odd"

        def pre_enqueue(self, pod: Pod) -> Any:
            return True

    heard = Errors()
    gate: Any = Odd()
    queue = make_queue(gates=[gate], errors=heard)
    placement = queue.add(make_pod("p"), 0.0)
    assert placement.state is QueueState.GATED
    assert heard.heard == [("Odd", "PreEnqueue", "returned bool, not Status")]


def test_never_active_pod_was_schedulable_since_it_was_added() -> None:
    queue = make_queue(gates=[ClosedGates()])
    queue.add(make_pod("p", gates=("quota",)), 7.0)
    assert queue.where("p") is QueueState.GATED
    assert queue.schedulable_since_s("p") == 7.0


def test_unknown_pod_has_no_details() -> None:
    queue = make_queue()
    assert queue.activate("nobody", 0.0) is None
    assert queue.schedulable_since_s("nobody") is None
    assert (queue.where("nobody"), queue.pod("nobody"), queue.entry("nobody"), queue.remove("nobody")) == (None,) * 4
    assert list(queue.transitions("nobody")) == []


def test_hint_cost_counts_each_term() -> None:
    term = PodAffinityTerm("zone", None)
    near = PodAffinity(required=(term,), anti_required=(term, term))
    terms = (NodeTerm(), NodeTerm(), NodeTerm())
    assert hint_cost(PodSpec()) == 1
    assert hint_cost(PodSpec(spread=(SpreadConstraint(1, "zone", is_hard=True),) * 2)) == 3
    assert hint_cost(PodSpec(pod_affinity=near)) == 4
    assert hint_cost(PodSpec(affinity=NodeAffinity(required=NodeSelector(terms)))) == 4
    assert hint_cost(PodSpec(pod_affinity=near, affinity=NodeAffinity(required=NodeSelector(terms)))) == 7


def test_forbidden_transition_is_reported_with_the_history() -> None:
    with pytest.raises(QueueInvariantError) as told:
        check("p", QueueState.GATED, QueueState.IN_FLIGHT, ["0.000s Added → gated"])
    assert str(told.value) == "pod p: gated → in-flight: a gated pod is never scheduled (I7) [0.000s Added → gated]"
    with pytest.raises(QueueInvariantError, match=r"\[unknown to this queue\]$"):
        check("p", QueueState.ABSENT, QueueState.LEAVING)
    check("p", QueueState.ACTIVE, QueueState.IN_FLIGHT)
