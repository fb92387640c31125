"""Pods that relate to each other, on the core alone: `python -m tests.perf.relations_bench [--nodes 5000] [--pods 2000]`.

The shapes of `make bench`, decided and committed one by one on a cluster that is in use already: CPU time per decision, the
best of the pieces. `plain` is the same pod without any rule, for comparison.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Final

import msgspec
import orjson

from multisched.cycle.scheduling_cycle import Placed
from multisched.framework.plugin import QueuedPod
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from tests.perf.core_bench import Core
from tests.perf.shapes import SHAPES, Shape

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


def named_hosts(core: Core) -> None:
    """Every node gets its hostname label, as kubelets give it, and loses its taints: every node is a choice."""
    nodes = [node for _, node in core.cache.nodes.live_rows()]
    for node in nodes:
        labels = {**node.labels, "kubernetes.io/hostname": node.name}
        core.cache.set_node(msgspec.structs.replace(node, labels=labels, taints=()))


def measure(shape: Shape, nodes: int, pods: int) -> float:
    """Microseconds of CPU per decision."""
    decoder = Decoder()
    core = Core("default", nodes, decoder, pods_before=1)
    named_hosts(core)
    waiting = waiting_pods(shape, pods, decoder)
    gc.collect()
    gc.freeze()
    best = float("inf")
    for start in range(0, pods, PIECE):
        began = time.process_time()
        placed = sum(is_placed(core, one) for one in waiting[start : start + PIECE])
        best = min(best, (time.process_time() - began) / PIECE)
        if placed != PIECE:
            raise AssertionError(f"{shape.name}: {PIECE - placed} pods found no node")
    gc.unfreeze()
    core.cache.validate()
    return best * 1e6


def is_placed(core: Core, waiting: Pod) -> bool:
    try:
        next(core.cycle.attempt(QueuedPod(waiting, 0.0, 1)))
    except StopIteration as ended:
        return isinstance(ended.value, Placed)
    raise AssertionError("a plugin of the default profile asks outside")


def main() -> None:
    """Prints one row per shape."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=2_000, help=f"per shape, in pieces of {PIECE}")
    options = parser.parse_args()
    print(f"{'shape':>20} {'CPU us/decision':>16}")
    for shape in (one for one in SHAPES if one.name in RELATED):
        print(f"{shape.name:>20} {measure(shape, options.nodes, options.pods):>16.0f}", flush=True)


if __name__ == "__main__":
    main()
