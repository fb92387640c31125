"""Violations of a queue: a wrong order of pops, a wrong backoff, a false refusal."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.config.schema import Queue
from multisched.framework.points import QueuedPod
from multisched.queueing.pod_queue import PodQueue
from tests.kit.checkers.process.attempts import TURNS_EVERY, AttemptChecker
from tests.unit.queueing.builders import CONFLICT, ERROR, REFUSED, make_pod, make_queue, pop_uid


def checked(queue: PodQueue, *, initial_s: float = 1.0) -> list[str]:
    """Returns the violations."""
    broken: list[str] = []
    AttemptChecker("forecast", queue, Queue(initial_backoff_s=initial_s), broken.append, None).begin()
    return broken


def test_correct_order_and_backoff_are_no_violations() -> None:
    queue = make_queue()
    broken = checked(queue)
    for number in range(3 * TURNS_EVERY):
        queue.add(make_pod(f"p{number}", priority=number % 2), float(number))
    for round_s in (100.0, 200.0, 300.0):
        while (uid := pop_uid(queue, round_s)) is not None:
            queue.fail(uid, (REFUSED, ERROR, CONFLICT)[int(uid[1:]) % 3], round_s)
            if round_s == 100.0 and int(uid[1:]) % 3 == 2:
                queue.remove(uid)
        queue.flush(round_s + 50.0)

    assert broken == []


class LowestPriorityFirst:
    """Sorts the lowest priority first."""

    name = "PrioritySort"

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        return entry.pod.spec.priority, entry.queued_s


def test_pod_popped_out_of_order_is_reported() -> None:
    queue = PodQueue(LowestPriorityFirst(), on_error=lambda plugin, point, error: None)
    broken = checked(queue)
    for number in range(TURNS_EVERY + 1):
        queue.add(make_pod(f"p{number}", priority=number), float(number))
    for _ in range(TURNS_EVERY):
        queue.pop(10.0)

    last, first = TURNS_EVERY - 1, TURNS_EVERY
    assert broken == [f"I3: default/p{last} had its turn before default/p{first}, which was in front of it"]


@pytest.mark.parametrize(("initial_s", "is_reported"), [(1.0, False), (2.0, True)])
def test_wrong_backoff_duration_is_reported(initial_s: float, is_reported: bool) -> None:
    queue = make_queue()
    broken = checked(queue, initial_s=initial_s)
    queue.add(make_pod("a"), 0.0)
    pop_uid(queue, 0.0)
    queue.fail("a", ERROR, 0.0)

    assert broken == (["I3: default/a backs off for 1.00 s after 1 failures, not for 2.00 s"] if is_reported else [])
