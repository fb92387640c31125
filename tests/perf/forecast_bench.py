"""PeakForecast by profiles: `python -m tests.perf.forecast_bench [--nodes 5000] [--check]`.

So many nodes with 20 pods each, 5 dimensions, 168 slots, 300 services. Printed, in CPU time, the best of the rounds: what
the score and the filter take for a class of pods nobody has seen, over all rows; what they take for the next pod, when
one row changed; a whole decision of the domain's profile for a next pod; what it costs to adopt new profiles (the call, the
first slice, all slices); what the plugin's metrics take at a scrape, on the loop, at rest and with every row changed since the last
look; and the memory of the curves. `--check` holds those with a bar against it and exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from domains.forecast.forecast import Forecast
from multisched.config.plugins import base_profile, plugin_registry
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.forecasting.profiles import Profiles
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import CycleState
from multisched.framework.points import CycleView, QueuedPod
from multisched.framework.registry import build_profile
from multisched.framework.runner import Runner
from multisched.model.objects import CPU, MEMORY, PODS, Node, Pod, PodSpec
from multisched.shell.garbage import disable_gc
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from tests.perf.core_bench import NobodyWatches

DIMENSIONS: Final = ("cpu", "disk", "log", "memory", "net")
SLOTS: Final = 168
SERVICES: Final = 300
PODS_PER_NODE: Final = 20
ROUNDS: Final = 40
CLASS_MAX_MS: Final = 6.0
NEXT_MAX_US: Final = 100.0
CHUNK: Final = 50
SCRAPE_MAX_MS: Final = 20.0
SCRAPED_S: Final = 1_800_000_000.0


def profiles(version: int) -> Profiles:
    """Use that swings through the day, each service at its own hour."""
    rng = np.random.default_rng(version)
    hours = np.arange(SLOTS) % 24
    swing = 1.2 + np.cos((hours - rng.uniform(0, 24, (SERVICES, 1, 1))) * np.pi / 12)
    scale = rng.lognormal(0, 0.5, (SERVICES, len(DIMENSIONS), 1)) * np.array([0.2, 1e5, 1e5, 2e8, 1e6])[None, :, None]
    peak = (swing * scale).astype(np.float32)
    flat = np.zeros(peak.shape[:2], np.float32)
    names = tuple(f"bench/service-{number}" for number in range(SERVICES))
    return Profiles(version, 0.0, 0.0, names, DIMENSIONS, peak, peak, peak, flat.astype(np.uint8), flat)


def pod(index: int, node: str = "") -> Pod:
    """Of service `index % SERVICES`."""
    return Pod("bench", f"p-{index}", f"p-{index}", 1, SPEC, LABELS[index % SERVICES], node=node)


SPEC: Final = PodSpec(
    requests={CPU: 100, MEMORY: 2**27}, scoring_cpu_milli=100, scoring_memory_bytes=2**27, scheduler_name="forecast"
)
LABELS: Final = [{"app": f"service-{number}"} for number in range(SERVICES)]


class Bench:
    """A cluster in use, with the whole profile of the domain; PeakForecast scores and filters."""

    def __init__(self, nodes: int) -> None:
        self.cache = ClusterCache()
        self.rows = DomainRows("forecast", lambda node: True)
        self.cache.add_domain(self.rows)
        context = PluginContext("forecast", self.cache.nodes, WaitingPodTable(), self.cache.ledgers, self.cache.objects)
        args = {"capacities": {"disk": 1e8, "log": 1e8, "net": 1e9}, "mode": "both", "thresholdPercent": 100}
        whole = base_profile("forecast")
        uses = tuple(replace(use, args=args) if use.name == "PeakForecast" else use for use in whole.plugins)
        self.plugins = build_profile(replace(whole, plugins=uses), plugin_registry(), context)
        (found,) = (built.plugin for built in self.plugins.built if isinstance(built.plugin, Forecast))
        self.plugin: Any = found
        runner = Runner(NobodyWatches(), lambda: 0.0)
        self.cycle = SchedulingCycle(self.plugins, runner, self.cache, self.rows, Nominator())
        room = {CPU: 32_000, MEMORY: 2**37, PODS: 110}
        for number in range(nodes):
            self.cache.set_node(Node(name=f"node-{number}", uid=f"n-{number}", version=1, allocatable=room))
        for number in range(nodes * PODS_PER_NODE):
            self.cache.place(pod(number * 7, f"node-{number % nodes}"))
        self.pods = nodes * PODS_PER_NODE * 7

    def asked(self, one: Pod, row: int | None = None) -> None:
        """Filter and Score about all rows, or one, for a class that has no state yet."""
        view = CycleView(self.cache.nodes, CycleState())
        rows = self.rows.rows if row is None else np.array([row], np.intp)
        self.plugin.sign(one)
        if self.plugin.filter(view, one, rows).any():
            raise AssertionError("the cluster is too full to measure what scoring takes")
        self.plugin.score(view, one, rows)

    def next_pod(self, one: Pod) -> float:
        """CPU seconds of filter and score about the one row that changed."""
        self.pods += 1
        row = self.pods % len(self.rows.rows)
        self.cache.assume(pod(self.pods), row)
        return _cpu_s(lambda: self.asked(one, row))

    def decide(self) -> float:
        """CPU seconds of a whole decision, over a chunk of pods of one class."""
        made = [QueuedPod(pod(SERVICES * (self.pods + number)), 0.0, 1) for number in range(CHUNK)]
        self.pods += CHUNK
        return _cpu_s(lambda: [next(self.cycle.attempt(one), None) for one in made]) / CHUNK


def _cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> int:
    """Prints the figures; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    bench = Bench(options.nodes)
    disable_gc()
    first = _cpu_s(lambda: bench.plugin.adopt(profiles(1)))
    while bench.plugin.catch_up():
        pass
    bench.asked(pod(0))
    class_ms = min(_cpu_s(lambda number=number: bench.asked(pod(number))) for number in range(1, ROUNDS)) * 1e3  # type: ignore[misc]
    next_us = min(bench.next_pod(pod(0)) for _ in range(10 * ROUNDS)) * 1e6
    bench.decide()
    decision_us = min(bench.decide() for _ in range(10)) * 1e6
    adopt_ms = min(first, _cpu_s(lambda: bench.plugin.adopt(profiles(2)))) * 1e3
    first_ms = _cpu_s(bench.plugin.catch_up) * 1e3
    rest_ms = _cpu_s(lambda: [None for _ in iter(bench.plugin.catch_up, False)]) * 1e3
    scrape_all_ms = _cpu_s(lambda: bench.plugin.metrics(SCRAPED_S)) * 1e3
    bench.asked(pod(0))
    scrape_ms = min(_cpu_s(lambda: bench.plugin.metrics(SCRAPED_S)) for _ in range(ROUNDS)) * 1e3
    curves_mb = bench.plugin.statistics().curve_bytes / 1e6
    print(f"{options.nodes} nodes, {options.nodes * PODS_PER_NODE} pods, {len(DIMENSIONS)} dimensions, {SLOTS} slots")
    print(f"new class, filter and score   {class_ms:8.2f} ms   (bar {CLASS_MAX_MS})")
    print(f"next pod, filter and score    {next_us:8.0f} µs   (bar {NEXT_MAX_US:.0f})")
    print(f"next pod, whole decision      {decision_us:8.0f} µs")
    print(
        f"adopting profiles             {adopt_ms:8.1f} ms, first slice {first_ms:.1f} ms, all others {rest_ms:.0f} ms"
    )
    print(
        f"metrics at a scrape           {scrape_ms:8.1f} ms, all rows changed {scrape_all_ms:.1f} ms   (bar {SCRAPE_MAX_MS:.0f})"
    )
    print(f"curves                        {curves_mb:8.1f} MB")
    is_missed = class_ms > CLASS_MAX_MS or next_us > NEXT_MAX_US or scrape_all_ms > SCRAPE_MAX_MS
    return 1 if is_missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
