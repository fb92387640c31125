"""Very many small services, on the core alone: `python -m tests.perf.services_bench [--services 10000] [--nodes 20000] [--check]`.

10,000 services of three replicas each are placed on 20,000 empty nodes in ten zones. The services come interleaved, so
that no two pods that follow one another are alike. They are more classes than memory is given for
(`cycle.classes.cache.CLASS_BYTES_MAX`). `services` has preferred, `services-hard` required anti-affinity over hosts and
spread over zones, as in `make bench`. The profile is the forecast domain's. All pods wait in the queue before the first
decision, as they do in the program.

One row per shape, each measured in a process of its own: decisions per second of CPU, milliseconds each (all, and the
slowest piece), MiB resident before the first decision and at the peak. `--check` holds them against the bars and exits
1 when one is missed.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Final

import orjson

from multisched.model.decode import Decoder
from multisched.shell.garbage import disable_gc, set_gc_thresholds
from multisched.state.row_check import row_faults
from tests.perf import workload
from tests.perf.core_bench import Core
from tests.perf.shapes import BY_NAME, REPLICAS

SHAPES: Final = ("services", "services-hard")
NODES: Final = 20_000
SERVICES: Final = 10_000
PIECE: Final = 500
"""Decisions timed in one piece."""

RSS_MAX_MIB: Final = 1.2 * 1024
DECISION_MAX_MS: Final = {"services": 2.0, "services-hard": 2.0}
"""The mean, where 20,000 nodes are looked at. Half of it on a machine that nobody else uses."""
KIBIBYTE: Final = 1024


@dataclass(frozen=True, slots=True)
class Figures:
    """What one shape showed. CPU milliseconds."""

    shape: str
    pods: int
    decision_ms: float
    slowest_ms: float
    filled_mib: float
    peak_mib: float


def measure(shape: str, services: int, nodes: int) -> Figures:
    """Places every pod; raises AssertionError for one that finds no node."""
    set_gc_thresholds()
    decoder = Decoder()
    core = Core("forecast", 0, decoder)
    for node in workload.work_nodes(nodes):
        node["metadata"]["uid"] = node["metadata"]["name"]
        core.cache.set_node(decoder.node(orjson.dumps(node)))
    count = services * REPLICAS
    for index, document in enumerate(BY_NAME[shape].pods(count, "forecast-scheduler")):
        document["metadata"] |= {"namespace": workload.NAMESPACE, "uid": f"waiting-{index}"}
        core.queue.add(decoder.pod(orjson.dumps(document)), 0.0)
    disable_gc()
    filled_mib = _peak_mib()
    seconds = []
    for start in range(0, count, PIECE):
        piece = min(PIECE, count - start)
        began = time.process_time()
        placed = core.decide(piece)
        seconds.append((time.process_time() - began) / piece)
        if placed != piece:
            raise AssertionError(f"{shape}: {piece - placed} pods found no node")
    peak_mib = _peak_mib()  # before all is counted anew
    # As the live audit checks: to count every service anew on every node takes minutes.
    faults = row_faults(core.cache.nodes, range(nodes))
    if faults:
        raise AssertionError(f"{shape}: {next(iter(faults.values()))}")
    return Figures(shape, count, 1_000 * sum(seconds) / len(seconds), 1_000 * max(seconds), filled_mib, peak_mib)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIBIBYTE


def missed(figures: Sequence[Figures]) -> list[str]:
    """The bars that were not reached, each as a sentence."""
    found = []
    for one in figures:
        if one.decision_ms > DECISION_MAX_MS[one.shape]:
            found.append(f"{one.shape}: {one.decision_ms:.2f} ms each, the bar is {DECISION_MAX_MS[one.shape]:.2f}")
        if one.peak_mib > RSS_MAX_MIB:
            found.append(f"{one.shape}: {one.peak_mib:.0f} MiB at the peak, the bar is {RSS_MAX_MIB:.0f}")
    return found


def main() -> int:
    """Prints a row per shape; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--services", type=int, default=SERVICES, help=f"of {REPLICAS} replicas each")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    print(
        f"{'shape':>14} {'pods':>7} {'decisions/s':>12} {'ms each':>8} {'slowest':>8} {'MiB before':>11} {'MiB peak':>9}"
    )
    figures = []
    for shape in options.shape:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            one = alone.submit(measure, shape, options.services, options.nodes).result()
        figures.append(one)
        row = f"{one.shape:>14} {one.pods:>7} {1_000 / one.decision_ms:>12.0f} {one.decision_ms:>8.2f} {one.slowest_ms:>8.2f}"
        print(f"{row} {one.filled_mib:>11.0f} {one.peak_mib:>9.0f}", flush=True)
    problems = missed(figures)
    for problem in problems:
        print(f"MISSED {problem}")
    return 1 if problems and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
