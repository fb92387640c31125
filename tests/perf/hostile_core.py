"""What a hostile shape costs the core, without an API server: ingest, its own decisions, a victim's decision, and memory.

`Scene` plays one tenant's pods through decoder, queue, cycle and cache as the program does, and then victims' pods, plain ones
with labels of their own. Used by `hostile_fuzz`; alone it prints a row per shape: `python -m tests.perf.hostile_core`.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import orjson

from multisched.cycle.results import GangResult, Pause, Placed, Unplaced
from multisched.framework.events import ASSIGNED_POD_ADD
from multisched.framework.points import Queued
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.queueing.entry import Failure
from multisched.shell.step_clock import StepClock
from tests.perf import workload
from tests.perf.core_bench import Core
from tests.perf.hostile_shapes import SHAPES, PodOf, bare

T = TypeVar("T")

VICTIMS: Final = 20
TENANT, VICTIM = "tenant", "victim"
SCHEDULER: Final = "forecast-scheduler"


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU milliseconds, the mean and the worst of single pods, and bytes kept of each."""

    ingest_ms: float
    decide_ms: float
    decide_max_ms: float
    victim_ms: float
    victim_max_ms: float
    event_max_ms: float
    kept_bytes: float
    placed: int
    step_max_ms: float
    """Of all attempts, between two pauses."""


class Scene:
    """A domain over empty nodes, and what its pods have cost."""

    def __init__(self, nodes: int) -> None:
        self.decoder = Decoder()
        self.clock = StepClock(time.process_time)
        self.step_max_ms = 0.0
        """CPU milliseconds of the longest piece of an attempt between two pauses."""
        self.core = Core("default", 0, self.decoder, budget=self.clock)
        for node in workload.work_nodes(nodes):
            node["metadata"]["uid"] = node["metadata"]["name"]
            self.core.cache.set_node(self.decoder.node(orjson.dumps(node)))
        self.attempts = 0

    def ingest(self, document: dict[str, Any], namespace: str) -> Pod:
        """Decodes a pending pod."""
        document["spec"]["schedulerName"] = SCHEDULER
        document["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{document['metadata']['name']}"}
        line = orjson.dumps(document)
        return self.decoder.pod(line)

    def decide(self, pod: Pod) -> bool:
        """One attempt, of its gang if the pod completes one; True if pods were placed. Refused pods are parked."""
        queue = self.core.queue
        if pod.malformed or pod.gates:
            return False
        self.core.cache.gangs.set(pod)
        queue.add(pod, float(self.attempts))
        queue.regroup(float(self.attempts))
        queued = queue.pop(float(self.attempts))
        if queued is None:
            return False
        self.attempts += 1
        result = self._result(queued)
        results = [*result.placed, *result.unplaced] if isinstance(result, GangResult) else [result]
        for one in results:
            if isinstance(one, Placed):
                queue.done(one.pod.uid)
            else:
                assert isinstance(one, Unplaced)
                failure = Failure(one.rejectors, one.pending, message=one.message)
                queue.fail(one.pod.uid, failure, float(self.attempts))
        return any(isinstance(one, Placed) for one in results)

    def _result(self, queued: Queued) -> object:
        running = self.core.cycle.attempt(queued)
        try:
            while True:
                self.clock.begin()
                began = time.process_time()
                try:
                    paused = next(running)
                finally:
                    self.step_max_ms = max(self.step_max_ms, 1_000 * (time.process_time() - began))
                assert isinstance(paused, Pause), "a plugin of the default profile asks outside"
        except StopIteration as ended:
            return ended.value

    def tell(self, pod: Pod) -> None:
        """A placed pod is news to those that were refused."""
        placed = self.core.cache.placed(pod.uid)
        if placed is not None:
            there = msgspec.structs.replace(pod, node=placed.node)
            self.core.queue.on_event(ASSIGNED_POD_ADD, None, there, float(self.attempts))


def victim(number: int) -> dict[str, Any]:
    """A plain pod with a label of its own, as the pods of a job have."""
    pod = bare(number)
    pod["metadata"] |= {"name": f"victim-{number:05}", "labels": {"app": "victim", "n": f"w{number}"}}
    return pod


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """What came of it, and CPU milliseconds."""
    began = time.process_time()
    found = run()
    return found, 1_000 * (time.process_time() - began)


def measure(pod_of: PodOf, pods: int, nodes: int) -> Cost:
    """Plays `pods` of the shape, then victims, each told to those that wait."""
    scene = Scene(nodes)
    for number in range(VICTIMS):
        scene.decide(scene.ingest(victim(100_000 + number), VICTIM))
    gc.collect()
    before = _rss_bytes()
    ingests, decisions, placed = [], [], 0
    for number in range(pods):
        document = pod_of(number)
        pod, ingest_ms = timed(partial(scene.ingest, document, TENANT))
        is_placed, decide_ms = timed(partial(scene.decide, pod))
        ingests.append(ingest_ms)
        decisions.append(decide_ms)
        placed += is_placed
    victims, events = [], []
    for number in range(VICTIMS):
        pod = scene.ingest(victim(number), VICTIM)
        victims.append(timed(partial(scene.decide, pod))[1])
        events.append(timed(partial(scene.tell, pod))[1])
    gc.collect()
    kept = (_rss_bytes() - before) / pods
    return Cost(
        sum(ingests) / pods,
        sum(decisions) / pods,
        max(decisions),
        sum(victims) / VICTIMS,
        max(victims),
        max(events),
        kept,
        placed,
        scene.step_max_ms,
    )


def _rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> int:
    """Prints a row per shape."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=[shape.name for shape in SHAPES])
    parser.add_argument("--pods", type=int, default=1_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    options = parser.parse_args()
    print(
        f"{'CPU ms':>12} {'ingest':>8} {'decide':>8} {'max':>8} {'victim':>8} {'max':>8} {'event':>8} {'KiB kept':>9}"
        f" {'placed':>7} {'step':>8}"
    )
    rows: list[tuple[str, PodOf]] = [
        ("plain", bare),
        *((s.name, s.pod) for s in SHAPES if options.shape is None or s.name in options.shape),
    ]
    for name, pod_of in rows:
        cost = measure(pod_of, options.pods, options.nodes)
        row = f"{name:>12} {cost.ingest_ms:>8.3f} {cost.decide_ms:>8.3f} {cost.decide_max_ms:>8.1f} {cost.victim_ms:>8.3f}"
        row += f" {cost.victim_max_ms:>8.1f} {cost.event_max_ms:>8.1f} {cost.kept_bytes / 1024:>9.1f} {cost.placed:>7}"
        row += f" {cost.step_max_ms:>8.1f}"
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
