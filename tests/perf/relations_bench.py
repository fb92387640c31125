"""Pods that relate to each other, on the core alone: `python -m tests.perf.relations_bench [--nodes 5000] [--pods 2000]`.

The shapes of `make bench`, decided and committed as a domain's worker does: on nodes of many sizes that are in use already,
and on empty nodes that are alike, as `make bench` has them. CPU time per decision, the best of the pieces. `plain` is the same
pod without any rule, for comparison.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from typing import Final

import msgspec
import orjson

from multisched.cycle.results import Placed
from multisched.framework.points import QueuedPod
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from tests.perf.core_bench import Core
from tests.perf.shapes import HOSTNAME, SHAPES, ZONE, Shape
from tests.perf.workload import ZONES

PIECE: Final = 200
"""Decisions timed in one piece."""

RELATED: Final = ("plain", "anti-affinity", "zone-affinity", "spread-hard", "spread-soft", "preferred-affinity")
"""Of `tests.perf.shapes`."""


def waiting_pods(shape: Shape, count: int, decoder: Decoder) -> list[Pod]:
    """The shape's pods, as the watch brings them."""
    found = []
    for index, document in enumerate(shape.pods(count, "forecast-scheduler")):
        document["metadata"] |= {"namespace": "bench", "uid": f"waiting-{index}"}
        found.append(decoder.pod(orjson.dumps(document)))
    return found


def free_hosts(core: Core, *, alike: bool) -> None:
    """Every node gets its hostname label, as kubelets give it, and loses its taints: every node is a choice."""
    nodes = [node for _, node in core.cache.nodes.live_rows()]
    for number, node in enumerate(nodes):
        labels = {**node.labels, HOSTNAME: node.name}
        size = nodes[0].allocatable if alike else node.allocatable
        if alike:
            labels = {HOSTNAME: node.name, ZONE: f"zone-{number % ZONES}"}
        core.cache.set_node(msgspec.structs.replace(node, labels=labels, allocatable=size, taints=()))


def measure(shape: Shape, nodes: int, pods: int, *, alike: bool) -> float:
    """Microseconds of CPU per decision. `alike`: on empty nodes of one size in ten zones."""
    decoder = Decoder()
    core = Core("default", nodes, decoder, pods_before=0 if alike else 1)
    free_hosts(core, alike=alike)
    waiting = waiting_pods(shape, pods, decoder)
    gc.collect()
    gc.freeze()
    best = float("inf")
    for start in range(0, pods, PIECE):
        began = time.process_time()
        placed = decide(core, waiting[start : start + PIECE])
        best = min(best, (time.process_time() - began) / PIECE)
        if placed != PIECE:
            raise AssertionError(f"{shape.name}: {PIECE - placed} pods found no node")
    gc.unfreeze()
    core.cache.validate()
    return best * 1e6


def decide(core: Core, waiting: Sequence[Pod]) -> int:
    """How many were placed."""
    return sum(is_placed(core, QueuedPod(pod, 0.0, 1)) for pod in waiting)


def is_placed(core: Core, entry: QueuedPod) -> bool:
    try:
        next(core.cycle.attempt(entry))
    except StopIteration as ended:
        return isinstance(ended.value, Placed)
    raise AssertionError("a plugin of the default profile asks outside")


def main() -> None:
    """Prints one row per shape."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=2_000, help=f"per shape, in pieces of {PIECE}")
    options = parser.parse_args()
    print(f"{'CPU us/decision':>20} {'nodes in use':>14} {'alike nodes':>13}")
    for shape in (one for one in SHAPES if one.name in RELATED):
        found = [measure(shape, options.nodes, options.pods, alike=alike) for alike in (False, True)]
        print(f"{shape.name:>20} {found[0]:>14.0f} {found[1]:>13.0f}", flush=True)


if __name__ == "__main__":
    main()
