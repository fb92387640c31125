"""How even PeakForecast keeps a fleet at its worst moments: `python -m tests.perf.placement_quality [--seeds 10] [--fleet DIR ...]`.

Places a fleet's replicas one by one, in random order, through the real scheduling cycle, with profiles that CSV history of
the first KNOWN_DAYS gives, and judges by the days after: per dimension the coefficient of variation of the nodes' load in
the two busiest hours of each day (CV), and the highest load of any node in any quarter hour, over its capacity (top).
Capacity is such that the fleet's peak fills 60 % of it, requests fill 75 % of allocatable CPU; memory is ample. `--fleet` takes directories
with `services.csv` (service,replicas,cpu_request,memory_request_gib) and `usage.csv` (timestamp,service,dimension,value, every
quarter of an hour for 28 days, beginning on a Monday); without it fleets are made, and are not those of the bars. `--profile
peak` runs PeakForecast alone beside the filters; `forecast` the whole profile of the domain. `--check` exits 1 when a mean is
beyond its bar.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from domains.forecast.history_file import Samples, Series
from domains.forecast.history_profiles import slot_profiles
from domains.forecast.peak_forecast import PeakForecast
from domains.forecast.profiles import Profiles
from multisched.config_plugins import base_profile, plugin_registry
from multisched.cycle.scheduling_cycle import Placed, SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.plugin import PluginContext, QueuedPod
from multisched.framework.registry import PluginUse, Profile, build_profile
from multisched.framework.runner import Runner
from multisched.model.objects import CPU, MEMORY, PODS, Node, Owner, Pod, PodSpec
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from tests.perf.core_bench import NobodyWatches

STEPS_PER_DAY: Final = 96
DAYS: Final = 28
KNOWN_DAYS: Final = 19
NODES: Final = 40
MONDAY_S: Final = 4 * 86_400
PEAK_FILLS, REQUESTS_FILL = 0.6, 0.75
BARS: Final = {
    "cpu CV": 0.172, "cpu top": 0.945, "log CV": 0.255, "log top": 1.18, "net CV": 0.222, "net top": 1.04,
}  # fmt: skip
PERCENTILE: Final = 95.0

Floats = NDArray[np.float64]


class Fleet(NamedTuple):
    """Services with what each replica asks for and uses."""

    services: Sequence[str]
    replicas: NDArray[np.int64]
    cpu_request: Floats
    memory_gib: Floats
    dimensions: Sequence[str]
    usage: Floats
    """float64[services, dimensions, DAYS * STEPS_PER_DAY]"""


def read_fleet(directory: Path) -> Fleet:
    """From the two CSV files."""
    with (directory / "services.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    services = [row["service"] for row in rows]
    numbers = {name: number for number, name in enumerate(services)}
    series: dict[tuple[int, str], list[float]] = {}
    with (directory / "usage.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            series.setdefault((numbers[row["service"]], row["dimension"]), []).append(float(row["value"]))
    dimensions = list(dict.fromkeys(name for _, name in series))
    usage = np.array([[series[number, name] for name in dimensions] for number in range(len(services))])
    if usage.shape[2] != DAYS * STEPS_PER_DAY:
        raise SystemExit(f"{directory}: {usage.shape[2]} samples per series in place of {DAYS * STEPS_PER_DAY}")
    return Fleet(
        services,
        np.array([int(row["replicas"]) for row in rows]),
        np.array([float(row["cpu_request"]) for row in rows]),
        np.array([float(row["memory_request_gib"]) for row in rows]),
        dimensions,
        usage,
    )


def make_fleet(seed: int, services: int = 60) -> Fleet:
    """Services that peak in the evening, at midday, at night or never, with weekends, noise that lasts, and growth."""
    rng = np.random.default_rng(seed)
    hours = np.arange(DAYS * STEPS_PER_DAY) * 24 / STEPS_PER_DAY
    weekend = (hours // 24 % 7 >= 5).astype(np.float64)
    usage = []
    for _ in range(services):
        peak, width = rng.choice([20.5, 12.5, 3.0, -1.0], p=[0.45, 0.2, 0.2, 0.15]), rng.uniform(2, 5)
        away = (hours - peak - rng.normal(0, 0.7) + 12) % 24 - 12
        shape = np.full(len(hours), 0.5) if peak < 0 else np.exp(-((away / width) ** 2))
        shape = shape * (1 - weekend * rng.uniform(-0.2, 0.6)) * (1 + rng.choice([0, 0, 0.1]) * hours / hours[-1])
        noise = np.zeros(len(hours))
        steps = rng.normal(0, 0.05, len(hours))
        for at in range(1, len(hours)):
            noise[at] = 0.8 * noise[at - 1] + steps[at]
        shape = np.maximum(shape * (1 + noise), 0.01)
        usage.append([
            rng.lognormal(0, 0.6) * (0.06 + shape),
            rng.lognormal(-1, 1.3) * (0.1 + shape) * (1 + np.abs(rng.normal(0, 0.1, len(hours)))),
            rng.lognormal(1, 0.9) * (0.05 + shape),
        ])  # fmt: skip
    return Fleet(
        [f"service-{number:02}" for number in range(services)],
        rng.integers(3, 16, services),
        rng.choice([0.5, 1, 1, 2, 2, 4], services),
        rng.choice([1.0, 2, 4, 8], services),
        ("cpu", "log", "net"),
        np.array(usage),
    )


def profiles_of(fleet: Fleet) -> Profiles:
    """As CSV history of the known days gives them."""
    known = KNOWN_DAYS * STEPS_PER_DAY
    seconds = MONDAY_S + np.arange(known) * 86_400.0 / STEPS_PER_DAY
    samples = Samples(newest_s=float(seconds[-1]))
    for number, service in enumerate(fleet.services):
        for dimension, name in enumerate(fleet.dimensions):
            series = samples.series[service, name] = Series()
            series.seconds.extend(seconds.tolist())
            series.values.extend(fleet.usage[number, dimension, :known].tolist())
    return slot_profiles(samples, percentile=PERCENTILE, window_days=DAYS)


class Cluster:
    """NODES equal nodes and one domain."""

    def __init__(self, fleet: Fleet, capacity: Floats, profile: Profile) -> None:
        self.cache = ClusterCache()
        rows = DomainRows("forecast", lambda node: True)
        self.cache.add_domain(rows)
        context = PluginContext("forecast", self.cache.nodes, WaitingPodTable(), self.cache.ledgers, self.cache.objects)
        args = {
            "dimensions": list(fleet.dimensions),
            "capacities": {name: float(one) for name, one in zip(fleet.dimensions, capacity, strict=True)},
        }
        uses = tuple(replace(use, args=args) if use.name == PeakForecast.name else use for use in profile.plugins)
        self.plugins = build_profile(replace(profile, plugins=uses), plugin_registry(), context)
        (self.forecast,) = (b.plugin for b in self.plugins.built if isinstance(b.plugin, PeakForecast))
        runner = Runner(NobodyWatches(), lambda: 0.0)
        self.cycle = SchedulingCycle(self.plugins, runner, self.cache, rows, Nominator())
        cpu = (fleet.replicas * fleet.cpu_request).sum() / NODES / REQUESTS_FILL
        room = {CPU: round(cpu * 1000), MEMORY: 1 << 50, PODS: 1_000}
        for number in range(NODES):
            self.cache.set_node(Node(name=f"n{number}", uid=f"u{number}", version=1, allocatable=room))

    def place(self, pod: Pod) -> int:
        """The row that takes the pod."""
        attempt = self.cycle.attempt(QueuedPod(pod, 0.0, 1))
        try:
            next(attempt)
        except StopIteration as ended:
            if isinstance(ended.value, Placed):
                row = self.cache.nodes.row_of(ended.value.node)
                assert row is not None
                return row
        raise AssertionError(f"{pod.name} found no node")


def pods_of(fleet: Fleet) -> list[list[Pod]]:
    """The replicas of each service, as a Deployment makes them."""
    made = []
    for number, service in enumerate(fleet.services):
        cpu, memory = round(fleet.cpu_request[number] * 1000), round(fleet.memory_gib[number] * 2**30)
        spec = PodSpec(requests={CPU: cpu, MEMORY: memory}, scoring_cpu_milli=cpu, scoring_memory_bytes=memory)
        owner, labels = Owner("StatefulSet", service, f"o-{number}"), {"app": service}
        made.append([
            Pod("default", f"{service}-{n}", f"{service}-{n}", 1, spec=spec, labels=labels, owner=owner)
            for n in range(int(fleet.replicas[number]))
        ])  # fmt: skip
    return made


def judged(fleet: Fleet, seed: int, profile: Profile) -> list[float]:
    """The six figures."""
    truth = fleet.usage[:, :, KNOWN_DAYS * STEPS_PER_DAY :]
    capacity = np.einsum("s,sdt->dt", fleet.replicas, truth).max(axis=1) / NODES / PEAK_FILLS
    cluster = Cluster(fleet, capacity, profile)
    cluster.forecast.adopt(profiles_of(fleet))
    pods = pods_of(fleet)
    owners = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(pods)), fleet.replicas))
    load = np.zeros((NODES, *truth.shape[1:]))
    for owner in owners.tolist():
        load[cluster.place(pods[owner].pop())] += truth[owner]
    return [figure for at in range(len(fleet.dimensions)) for figure in figures(load[:, at], capacity.item(at))]


def figures(load: Floats, capacity: float) -> tuple[float, float]:
    """(CV, top) of one dimension; load: [nodes, steps]."""
    total = load.mean(axis=0).reshape(-1, STEPS_PER_DAY)
    busiest = np.concatenate([np.argsort(day)[-8:] + at * STEPS_PER_DAY for at, day in enumerate(total)])
    found = load[:, busiest]
    return float((found.std(axis=0) / found.mean(axis=0)).mean()), float(load.max() / capacity)


def chosen_profile(name: str) -> Profile:
    """`peak`: nothing scores but PeakForecast."""
    whole = base_profile("forecast")
    if name == "forecast":
        return whole
    needed = ("SchedulingGates", "QOSSort", "NodeUnschedulable", "PeakForecast", "DefaultBinder")
    uses = [use for use in whole.plugins if use.name in needed]
    return Profile(plugins=(*uses, PluginUse("NodeResourcesFit", weight=0)))


def main() -> int:
    """Prints the figures; 1 if a mean is beyond its bar and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many fleets are made, and orders of placing")
    parser.add_argument("--fleet", type=Path, nargs="+", default=[], help="directories, one for each seed from 0 on")
    parser.add_argument("--profile", choices=["peak", "forecast"], nargs="+", default=["peak", "forecast"])
    parser.add_argument("--orders", type=int, default=1, help="orders of placing per fleet; the means are over all")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    fleets = [read_fleet(one) for one in options.fleet] or [make_fleet(seed) for seed in range(options.seeds)]
    names = [f"{name} {what}" for name in fleets[0].dimensions for what in ("CV", "top")]
    print(f"{'':>10}" + "".join(f"{name:>9}" for name in names))
    if all(name in BARS for name in names):
        print(f"{'bar':>10}" + "".join(f"{BARS[name]:>9.3f}" for name in names))
    is_missed = False
    for profile in options.profile:
        found = np.array([
            judged(fleet, seed + 1_000 * order, chosen_profile(profile))
            for order in range(options.orders)
            for seed, fleet in enumerate(fleets)
        ])  # fmt: skip
        means = found.mean(axis=0)
        is_missed |= any(mean > BARS.get(name, np.inf) for name, mean in zip(names, means.tolist(), strict=True))
        print(f"{profile:>10}" + "".join(f"{mean:>9.3f}" for mean in means), flush=True)
    return 1 if is_missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
