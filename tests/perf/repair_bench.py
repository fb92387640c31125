"""What a repair plan costs: `python -m tests.perf.repair_bench [--nodes 5000] [--pods 100000] [--hot 50] [--fill 0.55]`.

A fleet of services with day curves in five dimensions over the week's 168 hours, spread evenly; then a foreign scheduler puts
too many busy pods on some nodes. Printed: seconds to plan (and how many of them the callable `fits` took), the moves against
the bound below which no plan can be, and the peak of memory the planner allocated. `--tight`: little room anywhere, so that nodes
cannot be mended and the search goes to its end. `--check` exits 1 past the bars.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections import Counter
from typing import Final

import numpy as np

from domains.forecast.repair.case import NO_GANG, Disruptions, Floats, Ints, Mask, Nodes, Pods, RepairCase
from domains.forecast.repair.plan import plan_repair
from domains.forecast.settings.repair_limits import RepairLimits

DIMENSIONS: Final = ("cpu", "memory", "disk", "net", "log")
SLOTS: Final = 168
SERVICES: Final = 400
THRESHOLD: Final = 0.8
CHOICES: Final = 12
PODS_MAX: Final = 110
"""On one node."""
SECONDS_MAX, MEMORY_MIB_MAX = 5.0, 256.0


def make_curves(rng: np.random.Generator, pods: int, nodes: int, fill: float) -> Floats:
    """float64[services, dimensions, slots] in shares of a node, so that the fleet's peak fills so much of it."""
    hours = np.arange(SLOTS)
    phase = rng.choice([13.0, 20.0, 3.0], SERVICES)[:, None, None] + rng.normal(0, 1, (SERVICES, len(DIMENSIONS), 1))
    swing = rng.uniform(0.1, 0.9, (SERVICES, len(DIMENSIONS), 1))
    weekend = np.where(hours >= 120, 0.7, 1.0)
    day = (1 + swing * np.cos((hours - phase) * 2 * np.pi / 24)) * weekend
    size = rng.lognormal(0, 0.8, (SERVICES, len(DIMENSIONS), 1))
    curves: Floats = size * day
    per_service = pods / SERVICES
    total = curves.sum(axis=0).max(axis=1) * per_service
    curves *= (nodes * fill / total)[None, :, None]
    return curves


def make_fleet(nodes: int, pods: int, hot: int, fill: float, seed: int) -> RepairCase:
    rng = np.random.default_rng(seed)
    curves = make_curves(rng, pods, nodes, fill)
    service = rng.integers(0, SERVICES, pods)
    where = _spread(curves, service, nodes, rng)
    heavy = np.argsort(-curves.max(axis=(1, 2)))[: SERVICES // 10]
    loads = _loads(curves, service, where, nodes)
    foreign = rng.permutation(np.flatnonzero(np.isin(service, heavy)))
    for node in rng.choice(nodes, hot, replace=False):  # the foreign scheduler's doing
        while loads[node].max() <= THRESHOLD + 0.1 and len(foreign):
            pod, foreign = int(foreign[0]), foreign[1:]
            loads[where[pod]] -= curves[service[pod]]
            loads[node] += curves[service[pod]]
            where[pod] = node
    loads = _loads(curves, service, where, nodes)
    requests = np.ones((pods, 2), np.int64)
    free = PODS_MAX - np.bincount(where, minlength=nodes)
    members = [np.flatnonzero(service == number) for number in range(SERVICES)]
    return RepairCase(
        dimensions=DIMENSIONS,
        nodes=Nodes(
            names=tuple(f"node-{number}" for number in range(nodes)),
            loads=loads,
            capacity=np.ones((nodes, len(DIMENSIONS))),
            free=np.stack([free, free], axis=1),
        ),
        pods=Pods(
            names=tuple(f"ns/pod-{number}" for number in range(pods)),
            node=where,
            curve=service,
            service=service,
            namespace=service % 50,
            requests=requests,
            gang=np.where(rng.random(pods) < 0.05, 0, NO_GANG),
            fixed=(rng.random(pods) < 0.1).astype(np.uint8),
            cold_start=(service % 3).astype(np.uint8),
        ),
        curves=curves,
        disruptions=tuple(
            Disruptions(f"ns/service-{number}", 1 if number % 7 else 0, tuple(members[number].tolist()))
            for number in range(SERVICES)
        ),
        gang_spare=np.zeros(1, np.int64),
        quota_room=np.full((50, 2), 10, np.int64),
    )


def _spread(curves: Floats, service: Ints, nodes: int, rng: np.random.Generator) -> Ints:
    """The largest first, each on the emptiest of a few nodes: as even as a good scheduler makes it."""
    loads, peaks = np.zeros((nodes, *curves.shape[1:])), curves.max(axis=2)
    where, counts = np.empty(len(service), np.int64), np.zeros(nodes, np.int64)
    order = np.argsort(-peaks[service].max(axis=1), kind="stable")
    choices = rng.integers(0, nodes, (len(service), CHOICES))
    for pod, few in zip(order.tolist(), choices, strict=True):
        fullest = np.where(counts[few] < PODS_MAX - 20, (loads[few] + curves[service[pod]]).max(axis=(1, 2)), np.inf)
        node = few[int(fullest.argmin())]
        where[pod] = node
        counts[node] += 1
        loads[node] += curves[service[pod]]
    return where


def _loads(curves: Floats, service: Ints, where: Ints, nodes: int) -> Floats:
    loads: Floats = np.zeros((nodes, *curves.shape[1:]))
    for start in range(0, len(service), 10_000):
        np.add.at(loads, where[start : start + 10_000], curves[service[start : start + 10_000]])
    return loads


class RulesOfFit:
    """Stands for the filters: nine nodes in ten, another tenth for each service."""

    def __init__(self, case: RepairCase, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._service = case.pods.service
        self._masks = rng.random((SERVICES, len(case.nodes.names))) < 0.9
        self.seconds = 0.0

    def __call__(self, pod: int) -> Mask:
        began = time.perf_counter()
        mask: Mask = self._masks[self._service[pod]].copy()
        self.seconds += time.perf_counter() - began
        return mask


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--hot", type=int, default=50)
    parser.add_argument("--fill", type=float, default=0.5)
    parser.add_argument("--tight", action="store_true", help="the same at a fill where hardly any node has room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    fill = 0.66 if options.tight else options.fill
    case = make_fleet(options.nodes, options.pods, options.hot, fill, options.seed)
    print(
        f"fleet made; the fullest nodes: {np.sort(case.nodes.loads.max(axis=(1, 2)))[::-500].round(2).tolist()}",
        flush=True,
    )
    limits = RepairLimits((THRESHOLD,), moves_per_window=1_000)
    fits = RulesOfFit(case, options.seed)
    began, began_cpu = time.perf_counter(), time.process_time()
    plan = plan_repair(case, limits, fits)
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    tracemalloc.start()
    again = plan_repair(case, limits, fits)
    memory_mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    assert again == plan
    hot = len(plan.repaired) + len(plan.unrepaired)
    print(f"{options.nodes} nodes, {options.pods} pods, {len(DIMENSIONS)} dimensions x {SLOTS} slots, {hot} hot nodes")
    print(f"plan: {wall:.2f} s wall, {cpu:.2f} s CPU, {fits.seconds:.3f} s of it in fits; {memory_mib:.0f} MiB at most")
    print(
        f"moves {len(plan.steps)} (bound {plan.least_moves}); mended {len(plan.repaired)}; pods asked {plan.fits_checked}"
    )
    print(f"worst peak {plan.worst_before.share:.3f} -> {plan.worst_after.share:.3f}")
    for reason, count in Counter(one.why for one in plan.unrepaired).most_common(3):
        print(f"unmended {count}: {reason}")
    if options.check and (wall > SECONDS_MAX or memory_mib > MEMORY_MIB_MAX):
        print(f"past the bars: {SECONDS_MAX} s, {MEMORY_MIB_MAX} MiB")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
