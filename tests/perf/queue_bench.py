"""Costs of the pod queue in microseconds: `python -m tests.perf.queue_bench [--pods 20000] [--parked 10000]`.

Prints one row per measurement, the best of three runs each. Exits 1 when add, pop and done cost more than
BUDGET_US per operation, so that CI can call it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable

from multisched.framework.events import NODE_ADD, Action, ClusterEvent, Resource
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.entry import Failure
from multisched.queueing.pod_queue import PodQueue
from multisched.testing.builders import make_node, pop_pod
from tests.unit.queueing.builders import AFFINITY, FIT, NODE_LABEL, make_pod, make_queue

BUDGET_US = 10.0
RUNS = 7
ASSIGNED_POD_ADD = ClusterEvent(Resource.ASSIGNED_POD, Action.ADD, "AssignedPodAdd")


def _pods(count: int) -> list[Pod]:
    specs, labels = [PodSpec(priority=p) for p in range(4)], {"zone": "a"}
    return [make_pod(f"u{n}", spec=specs[n * 7 % 4], labels=labels) for n in range(count)]


def _parked(count: int, plugin: str) -> PodQueue:
    queue = make_queue()
    for pod in _pods(count):
        queue.add(pod, 0.0)
    while (popped := pop_pod(queue, 0.0)) is not None:
        queue.fail(popped.pod.uid, Failure(rejectors=frozenset({plugin})), 0.0)
    return queue


def _life(pods: list[Pod]) -> int:
    queue = make_queue()
    for number, pod in enumerate(pods):
        queue.add(pod, number * 1e-4)
    while (popped := pop_pod(queue, 9.0)) is not None:
        queue.done(popped.pod.uid)
    return 3 * len(pods)


def _in_flight_together(pods: list[Pod]) -> int:
    """All popped before the first is done, an event after each pop: the log at its worst."""
    queue = make_queue(in_flight_events_max=len(pods))
    for pod in pods:
        queue.add(pod, 0.0)
    popped = []
    while (head := pop_pod(queue, 9.0)) is not None:
        popped.append(head)
        queue.on_event(NODE_ADD, None, None, 9.0)
    for head in popped:
        queue.done(head.pod.uid)
    return 4 * len(pods)


def _failures(pods: list[Pod]) -> int:
    queue = make_queue()
    for pod in pods:
        queue.add(pod, 0.0)
    while (popped := pop_pod(queue, 0.0)) is not None:
        queue.fail(popped.pod.uid, Failure(rejectors=frozenset({FIT})), 0.0)
    queue.on_event(NODE_ADD, None, make_node(), 0.5)
    queue.flush(1.5)
    return 5 * len(pods)


def _best_us(work: Callable[[], int]) -> float:
    """Microseconds per operation, the best of RUNS."""
    best = float("inf")
    for _ in range(RUNS):
        gc.collect()
        start_s = time.process_time()
        operations = work()
        best = min(best, (time.process_time() - start_s) / operations * 1e6)
    return best


def _event_us(queue: PodQueue, event: ClusterEvent, zone: str) -> float:
    node = make_node(labels={"zone": zone})

    def work() -> int:
        for _ in range(100):
            queue.on_event(event, None, node, 1.0)
        return 100

    return _best_us(work)


def main() -> int:
    """Measures, prints, and compares the life of a pod with its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--parked", type=int, default=10_000)
    arguments = parser.parse_args()
    pods = _pods(arguments.pods)
    life_us = _best_us(lambda: _life(pods))
    rows = [
        (f"add + pop + done, {len(pods)} pods, per operation", life_us),
        ("all in flight at once, an event per pop", _best_us(lambda: _in_flight_together(pods))),
        ("add + pop + fail + wake + flush", _best_us(lambda: _failures(pods))),
    ]
    fit, affinity = _parked(arguments.parked, FIT), _parked(arguments.parked, AFFINITY)
    rows += [
        (f"event that no refuser of {len(fit)} parked pods hears", _event_us(fit, NODE_LABEL, "b")),
        ("event of a kind nobody registered", _event_us(fit, ASSIGNED_POD_ADD, "b")),
        (f"event whose hint skips all {len(affinity)} pods (4 classes)", _event_us(affinity, NODE_ADD, "b")),
    ]
    for name, cost_us in rows:
        print(f"{name:<66} {cost_us:8.2f} us")
    return 0 if life_us <= BUDGET_US else 1


if __name__ == "__main__":
    sys.exit(main())
