"""How long pods wait beside hopeless ones: `python -m tests.perf.fairness_bench [--hopeless 5000] [--nodes 1000]`.

Hopeless pods of high priority, refused before and active again as soon as they are refused, share the domain with pods of
the namespace "quiet". A row per scene: attempts and CPU milliseconds from a quiet pod's arrival to its own attempt, and the
bound of `queueing/active_pods.py` in units of attempts. The first scene has all pods in one namespace, where QueueSort alone
decides and the quiet pod starves: what there would be without shares. Exits 1 when a bound is broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from multisched.cycle.results import Placed
from multisched.framework.points import QueuedPod
from multisched.model.decode import Decoder
from multisched.model.objects import CPU, Pod, PodSpec
from multisched.queueing.active_pods import COST_UNITS_MAX, LEAD_UNITS
from multisched.queueing.entry import Failure
from multisched.testing.builders import pop_pod
from tests.perf.core_bench import Core, pending

HOPELESS = PodSpec(requests={CPU: 10**9}, priority=1_000, can_preempt=False, scheduler_name="forecast-scheduler")
ROUNDS = 200
GIVE_UP_ATTEMPTS = 5_000
"""A pod that has waited for so many is said to starve."""
BURST = 50
"""Quiet pods that arrive at once."""


@dataclass
class Wait:
    """What quiet pods waited in one scene."""

    attempts: list[int]
    milliseconds: list[float]
    units: list[float]


class Scene:
    """A cluster in use, and hopeless pods in so many namespaces that have been refused once."""

    def __init__(self, nodes: int, hopeless: int, namespaces: list[str]) -> None:
        self.decoder = Decoder()
        self.core = Core("default", nodes, self.decoder)
        self.numbers = iter(range(1 << 30))
        for number in range(hopeless):
            pod = Pod(namespaces[number % len(namespaces)], f"h-{number}", f"h-{number}", 1, HOPELESS)
            self.core.queue.add(pod, 0.0)
        for _ in range(hopeless):
            self.attempt()

    def attempt(self) -> tuple[Pod, float]:
        """One pod is popped and tried; a hopeless one is active again at once. Returns it and the CPU seconds."""
        queue = self.core.queue
        began = time.process_time()
        entry = pop_pod(queue, 1.0)
        assert entry is not None
        self._decide(entry, began)
        return entry.pod, time.process_time() - began

    def _decide(self, entry: QueuedPod, began: float) -> None:
        queue, uid = self.core.queue, entry.pod.uid
        try:
            next(self.core.cycle.attempt(entry))
        except StopIteration as ended:
            result = ended.value
        queue.charge_attempt(uid, time.process_time() - began)
        if isinstance(result, Placed):
            queue.done(uid)
            self.core.cache.remove(uid)
            return
        queue.fail(uid, Failure(result.rejectors, result.pending, message=result.message), 1.0)
        queue.activate(uid, 1.0)

    def arrive(self, namespace: str) -> str:
        pod = self.decoder.pod(pending(next(self.numbers)))
        self.core.queue.add(msgspec.structs.replace(pod, namespace=namespace), 1.0)
        return pod.uid

    def retry(self, namespace: str) -> str:
        """A quiet pod that was refused by something that has gone since."""
        uid = self.arrive(namespace)
        while True:
            entry = pop_pod(self.core.queue, 1.0)
            assert entry is not None
            self.core.queue.fail(entry.pod.uid, Failure(rejectors=frozenset({"NodeResourcesFit"})), 1.0)
            self.core.queue.activate(entry.pod.uid, 1.0)
            if entry.pod.uid == uid:
                return uid

    def wait_for(self, uid: str, found: Wait) -> None:
        attempts, seconds, units = 0, 0.0, 0.0
        while True:
            pod, took_s = self.attempt()
            attempts, seconds = attempts + 1, seconds + took_s
            units += min(max(1.0, took_s * 1000), COST_UNITS_MAX)
            if pod.uid == uid or attempts == GIVE_UP_ATTEMPTS:
                found.attempts.append(attempts)
                found.milliseconds.append(seconds * 1000)
                found.units.append(units)
                return


def scenes(nodes: int, hopeless: int) -> Iterator[tuple[str, Wait, float | None]]:
    """Name, what was waited, and the bound in units."""
    alone = Wait([], [], [])
    scene = Scene(nodes, hopeless, ["quiet"])
    scene.wait_for(scene.arrive("quiet"), alone)
    yield "a first attempt, all in one namespace", alone, None
    one = Wait([], [], [])
    scene = Scene(nodes, hopeless, ["noisy"])
    for _ in range(ROUNDS):
        scene.wait_for(scene.arrive("quiet"), one)
    yield "a first attempt beside one noisy namespace", one, 2 + LEAD_UNITS
    burst = Wait([], [], [])
    for _ in range(ROUNDS // 10):
        *_, last = [scene.arrive("quiet") for _ in range(BURST)]
        scene.wait_for(last, burst)
    yield f"the last of {BURST} first attempts", burst, 2 * BURST + LEAD_UNITS
    retries = Wait([], [], [])
    for _ in range(ROUNDS):
        scene.wait_for(scene.retry("quiet"), retries)
    yield "a retry beside one noisy namespace", retries, 2 * 2 + 2 * LEAD_UNITS
    many = Wait([], [], [])
    scene = Scene(nodes, hopeless, [f"noisy-{number}" for number in range(100)])
    for _ in range(ROUNDS):
        scene.wait_for(scene.arrive("quiet"), many)
    yield "a first attempt beside 100 noisy namespaces", many, 2 + LEAD_UNITS
    shared = Wait([], [], [])
    for _ in range(ROUNDS):
        scene.wait_for(scene.retry("quiet"), shared)
    yield "a retry beside 100 noisy namespaces", shared, 101 * 2 + 2 * LEAD_UNITS


def main() -> int:
    """Prints the table; 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--hopeless", type=int, default=5_000)
    options = parser.parse_args()
    print(f"Waits from arrival to the pod's own attempt; {GIVE_UP_ATTEMPTS} attempts: it starves.")
    print(f"{'scene':<46} {'attempts p50':>12} {'max':>6} {'ms p50':>8} {'p99':>8} {'units max':>10} {'bound':>6}")
    is_broken = False
    for name, wait, bound in scenes(options.nodes, options.hopeless):
        milliseconds = np.percentile(wait.milliseconds, [50, 99])
        units = max(wait.units)
        is_broken |= bound is not None and units > bound + COST_UNITS_MAX
        row = f"{name:<46} {int(np.median(wait.attempts)):>12} {max(wait.attempts):>6} {milliseconds[0]:>8.2f}"
        print(
            f"{row} {milliseconds[1]:>8.2f} {units:>10.1f} {'none' if bound is None else round(bound):>6}", flush=True
        )
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main())
