"""Pods that the API server refuses again and again in the same words: set aside, and back on what can help."""

from __future__ import annotations

import pytest

from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    FLUSH,
    NODE_ADD,
    Action,
    ClusterEvent,
    EventObject,
)
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.queueing.entry import Failure, Moved, QueueOutcome
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.quarantine import EQUAL_REFUSALS_MAX, refusal_key
from multisched.queueing.transitions import QueueState
from multisched.testing.builders import make_node
from tests.unit.queueing.builders import ERROR, REFUSED, make_pod, make_queue, pop_uid

NAMESPACE_UPDATE = ClusterEvent(ObjectKind.NAMESPACE, Action.UPDATE, "NamespaceUpdate")
WORDS = 'admission webhook "policy" denied the request: no GPU for team a'
DENIED = Failure(is_error=True, message=WORDS, refusal=WORDS)


def refuse(queue: PodQueue, uid: str, *, times: int, failure: Failure = DENIED, at_s: float = 0.0) -> QueueOutcome:
    """The API server refuses the pod's bind that many times, a minute apart."""
    for attempt in range(times):
        assert pop_uid(queue, at_s + 60 * attempt) == uid
        placed = queue.fail(uid, failure, at_s + 60 * attempt)
    return placed


def test_repeated_equal_api_refusals_quarantine_the_pod() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    assert refuse(queue, "u", times=EQUAL_REFUSALS_MAX - 1).state is QueueState.BACKOFF
    placed = refuse(queue, "u", times=1, at_s=600)

    assert placed.state is QueueState.UNSCHEDULABLE
    assert placed.quarantine_message.startswith(
        "quarantined: the API server has refused this pod 5 times with the same message"
    )
    assert placed.quarantine_message.endswith(WORDS)
    entry = queue.entry("u")
    assert entry is not None
    assert (entry.is_quarantined, entry.plugins, entry.message) == (True, ("APIServer",), placed.quarantine_message)
    assert queue.statistics().unschedulable_by_plugin == {"APIServer": 1}
    assert queue.statistics().quarantines == 1
    assert queue.flush(650) == Moved()


def test_different_message_resets_the_refusal_count() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    refuse(queue, "u", times=4)
    refuse(queue, "u", times=1, at_s=300, failure=Failure(is_error=True, refusal="something else"))
    assert refuse(queue, "u", times=4, at_s=600).state is QueueState.BACKOFF
    pop_uid(queue, 900)
    queue.fail("u", REFUSED, 900)
    queue.activate("u", 900)

    assert refuse(queue, "u", times=1, at_s=1000).quarantine_message


@pytest.mark.parametrize("failure", [ERROR, Failure(is_error=True, message="connection refused")])
def test_other_errors_never_quarantine_a_pod(failure: Failure) -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)

    assert refuse(queue, "u", times=20, failure=failure).state is QueueState.BACKOFF


def quarantined(queue: PodQueue, pod: Pod) -> None:
    queue.add(pod, 0)
    assert refuse(queue, pod.uid, times=EQUAL_REFUSALS_MAX).quarantine_message


@pytest.mark.parametrize(
    ("event", "old", "new", "wakes"),
    [
        (NAMESPACE_UPDATE, ClusterObject(name="default"), ClusterObject(name="default"), True),
        (NAMESPACE_UPDATE, ClusterObject(name="other"), ClusterObject(name="other"), False),
        (NODE_ADD, None, make_node(), False),
        (ASSIGNED_POD_DELETE, make_pod("x", node="n"), None, False),
        (FLUSH, None, None, True),
    ],
)
def test_quarantined_pod_is_released_by_helpful_events(
    event: ClusterEvent, old: EventObject, new: EventObject, wakes: bool
) -> None:
    queue = make_queue()
    quarantined(queue, make_pod("u"))
    moved = queue.on_event(event, old, new, 290)

    assert (moved.active + moved.backoff == 1) is wakes


def test_quarantined_pod_is_released_by_a_change_but_not_of_its_status() -> None:
    queue, pod = make_queue(), make_pod("u")
    quarantined(queue, pod)
    told = make_pod("u", version=2)
    assert queue.update(pod, told, 290) == QueueOutcome(QueueState.UNSCHEDULABLE)

    assert queue.update(told, make_pod("u", labels={"team": "b"}), 291) == QueueOutcome(QueueState.ACTIVE)


def test_quarantined_pod_is_retried_by_the_flush_and_quarantined_again() -> None:
    queue = make_queue()
    quarantined(queue, make_pod("u"))
    assert queue.next_wakeup_s() == 240 + 300
    assert queue.flush(540).active == 1

    assert refuse(queue, "u", times=1, at_s=541).quarantine_message


def test_change_during_the_last_refused_attempt_is_not_lost() -> None:
    queue, pod = make_queue(), make_pod("u")
    queue.add(pod, 0)
    refuse(queue, "u", times=4)
    pop_uid(queue, 300)
    queue.update(pod, make_pod("u", labels={"team": "b"}), 301)

    assert queue.fail("u", DENIED, 302).state is QueueState.BACKOFF


def test_deleted_quarantined_pod_leaves_no_entry() -> None:
    queue = make_queue()
    quarantined(queue, make_pod("u"))
    queue.remove("u")
    queue.validate()

    assert (len(queue), queue.statistics().unschedulable_by_plugin) == (0, {})


def test_refusals_are_equal_for_any_named_node() -> None:
    assert refusal_key("no GPU on n1", "n1") == refusal_key("no GPU on n2", "n2") != refusal_key("no GPU on n2", "n1")
