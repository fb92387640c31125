"""Gangs on the core alone: `python -m tests.perf.gang_core_bench [--nodes 5000] [--profile default forecast] [--check]`.

As `core_bench`, on nodes of three sizes that are in use already, without an API server and an event loop. One gang of 5,000
pods that are alike comes first. Then come 3,000 gangs of three: pods of one gang are alike, and no two gangs that follow
one another are. A gang's core time counts its members' way into the queue, and its decision and commit as one step.
CPU time, the best of the rounds. Each round has a cluster of its own; the same pods without gangs are measured beside it.
`--check` holds the figures against the bars and exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from multisched.cycle.results import GangResult, Placed, Result, Unplaced
from multisched.framework.points import QueuedPod
from multisched.model.decode import Decoder
from multisched.model.decode_objects import decode_workload_group
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.shell.garbage import disable_gc
from multisched.shell.ingest.gang_objects import note_gang
from tests.perf import gangs
from tests.perf.core_bench import CLASSES, Core, pending
from tests.perf.shapes import GANG_SIZE, GANGS, LARGE_GANG
from tests.perf.workload import NAMESPACE

LARGE_MAX_S: Final = 1.0
"""A gang of 5,000, from the first member's arrival to the places of all."""
MANY_MAX_MS: Final = 3.0
"""Each of 3,000 gangs of three."""
PLAIN_KIND: Final = 0
"""Of `core_bench.pending`: no rules but its requests."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds of CPU: members' way into the queue, and the decisions."""

    enqueue_s: float
    decide_s: float

    @property
    def core_s(self) -> float:
        return self.enqueue_s + self.decide_s


def members(gang: str, size: int, kind: int, decoder: Decoder, *, are_alone: bool) -> Iterator[Pod]:
    """Alike but for their names and one label, as a controller makes them."""
    for index in range(size):
        found = orjson.loads(pending(kind + CLASSES * index))
        name = f"{gang}-{index:05}"
        found["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        if not are_alone:
            found["spec"]["schedulingGroup"] = {"podGroupName": gang}
        yield decoder.pod(orjson.dumps(found))


def note_group(core: Core, gang: str, size: int) -> None:
    """The PodGroup, as a watch tells it."""
    document = gangs.pod_group_of(gang, size)
    document["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{gang}"}
    note_gang(core.cache.gangs, ObjectKind.WORKLOAD_POD_GROUP, None, decode_workload_group(orjson.dumps(document)))


def enqueue(core: Core, pods: list[Pod]) -> None:
    """As the ingest does for a pod without a node."""
    for pod in pods:
        core.cache.gangs.set(pod)
        core.queue.add(pod, 0.0)


def decide(core: Core) -> int:
    """Pops and decides the next gang, or the next pod alone, as the loop does; how many have a place then."""
    core.queue.regroup(1.0)
    queued = core.queue.pop(1.0)
    if queued is None:
        raise AssertionError("the queue is empty before all is decided")
    try:
        next(core.cycle.attempt(queued))
    except StopIteration as ended:
        result: GangResult | Result = ended.value
    if isinstance(result, GangResult):
        decided: list[Placed | Unplaced] = [*result.placed, *result.unplaced]
        for one in decided:
            core.queue.done(one.pod.uid)
        return len(result.placed)
    assert isinstance(queued, QueuedPod)
    core.queue.done(queued.pod.uid)
    return isinstance(result, Placed)


def measure(profile: str, nodes: int, count: int, size: int, *, are_alone: bool) -> Figures:
    """`count` gangs of `size` on a cluster of their own; `are_alone`: the same pods, and no gangs."""
    decoder = Decoder()
    core = Core(profile, nodes, decoder)
    waiting = []
    for index in range(count):
        name, kind = f"gang-{index:05}", PLAIN_KIND if count == 1 else index % CLASSES
        waiting.append(list(members(name, size, kind, decoder, are_alone=are_alone)))
        if not are_alone:
            note_group(core, name, size)
    gc.collect()
    disable_gc()
    began = time.process_time()
    for pods in waiting:
        enqueue(core, pods)
    enqueued = time.process_time()
    placed = sum(decide(core) for _ in range(count * size if are_alone else count))
    ended = time.process_time()
    gc.unfreeze()
    if placed != count * size:
        raise AssertionError(f"{count * size - placed} of {count * size} pods found no room: the cluster is too small")
    core.cache.validate()
    return Figures(enqueued - began, ended - enqueued)


def rows(profile: str, nodes: int, count: int, size: int, rounds: int) -> tuple[Figures, Figures]:
    """In gangs, and alone, in turn: a machine that slows down slows both. The best of each."""
    found: tuple[list[Figures], list[Figures]] = [], []
    for _ in range(rounds):
        for are_alone, figures in enumerate(found):
            figures.append(measure(profile, nodes, count, size, are_alone=bool(are_alone)))
    in_gangs, alone = (min(figures, key=lambda one: one.core_s) for figures in found)
    return in_gangs, alone


def main() -> int:
    """Prints the table; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--profile", nargs="+", default=["default", "forecast"], help="whose plugins")
    parser.add_argument("--rounds", type=int, default=3, help="the best counts")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    missed = []
    print(
        f"{'profile':>8} {'gangs':>6} {'of':>6} {'enqueue ms':>11} {'decide ms':>10} {'us/pod':>7} {'alone, us/pod':>14}"
    )
    for profile in options.profile:
        for count, size, most_ms in ((1, LARGE_GANG, LARGE_MAX_S * 1e3), (GANGS, GANG_SIZE, MANY_MAX_MS)):
            found, alone = rows(profile, options.nodes, count, size, options.rounds)
            each_ms = [1e3 * seconds / count for seconds in (found.enqueue_s, found.decide_s, found.core_s)]
            per_pod_us = [1e6 * figures.core_s / (count * size) for figures in (found, alone)]
            row = f"{profile:>8} {count:>6} {size:>6} {each_ms[0]:>11.2f} {each_ms[1]:>10.2f}"
            print(f"{row} {per_pod_us[0]:>7.0f} {per_pod_us[1]:>14.0f}", flush=True)
            if each_ms[2] > most_ms:
                missed.append(
                    f"{profile}, {count} gangs of {size}: {each_ms[2]:.1f} ms per gang, the bar is {most_ms:.0f}"
                )
    for problem in missed:
        print(f"MISSED {problem}")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
