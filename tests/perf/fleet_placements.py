"""Where a fleet's pods go, by the product and by plain sums, and how even the nodes are afterwards.

The product places as `multisched simulate` has it: the whole program, on the profile as it ships, pod by pod in a drawn
order. The plain sums are what anybody would write in ten lines. Both place the same pods in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multisched.config.document import Document
from multisched.config.structure import from_plain
from multisched.simulate.contribution import RunExtensions, run_extensions
from multisched.simulate.policies import read_policy
from multisched.simulate.recorded_run import run_policy
from multisched.simulate.scenario import NodeSpec, Policy, Scenario, Service
from multisched.simulate.scenario_schema import PolicyEntry
from multisched.simulate.usage_table import UsageTable
from tests.perf.fleet_kinds import STEPS_PER_DAY, Fleet, Floats

PEAK_FILLS, REQUESTS_FILL = 0.6, 0.75
"""What the fleet's peak takes of all nodes, and what its requests take."""
BUSY_STEPS: Final = 8
"""Of each day: two hours."""
BEGIN_S: Final = 1_767_571_200
"""Monday, 2026-01-05."""
STEP_S: Final = 86_400 // STEPS_PER_DAY
PERCENTILE: Final = 0.95

Nodes = NDArray[np.int64]
"""int64[pods]: where each pod of an order went."""


class Evenness(NamedTuple):
    """Means over dimensions of the judged days; lower is better."""

    peak_cv: float
    """Standard deviation over mean of the nodes' highest loads."""
    peak_ratio: float
    """The highest of them over their mean."""
    busy_cv: float
    """Standard deviation over mean of the nodes' loads in the two busiest hours of each day."""
    busy_ratio: float
    """The highest of those over their mean."""


def policy(name: str, profile: Mapping[str, Any] | None = None) -> Policy:
    """A policy of a scenario: `peak-forecast` is the forecast domain as it ships."""
    entry: dict[str, Any] = {"name": name} if profile is None else {"name": name, "profile": profile}
    document = Document("bench", {"policies": [entry]})
    found = read_policy(document, 0, from_plain(entry, PolicyEntry), Path())
    assert found is not None, document.problems
    return found


def capacities(fleet: Fleet) -> Floats:
    """float64[nodes, dimensions]: in proportion to the sizes of the nodes."""
    peak = np.einsum("s,sdt->dt", fleet.replicas, fleet.use[:, :, : fleet.known]).max(axis=1)
    found: Floats = peak * fleet.sizes[:, None] / fleet.sizes.sum() / PEAK_FILLS
    return found


def room(fleet: Fleet) -> Floats:
    """float64[nodes]: cores that may be requested."""
    found: Floats = (fleet.replicas * fleet.asked).sum() * fleet.sizes / fleet.sizes.sum() / REQUESTS_FILL
    return found


def order_of(fleet: Fleet, seed: int) -> Nodes:
    """int64[pods]: of which service each pod is; as a scenario draws it."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(fleet.replicas)), fleet.replicas))


def scenario_of(fleet: Fleet) -> Scenario:
    """All pods come where the known part ends. Of its policies the bench makes no use."""
    dimensions = ("cpu", "log", "net")[: fleet.use.shape[1]]
    names = tuple(f"service-{number}" for number in range(len(fleet.replicas)))
    usage = UsageTable(BEGIN_S, STEP_S, names, (), dimensions, fleet.use)
    nodes = tuple(
        NodeSpec(f"node-{number}", {"cpu": f"{cores * 1000:.0f}m", "memory": "1Pi", "pods": "1000"}, {}, tuple(has))
        for number, (cores, has) in enumerate(zip(room(fleet).tolist(), capacities(fleet).tolist(), strict=True))
    )
    known_s = BEGIN_S + fleet.known * STEP_S
    return Scenario(
        name="fleet",
        usage=usage,
        services=tuple(
            Service(name, int(replicas), {"cpu": f"{asked * 1000:.0f}m", "memory": "1Gi"})
            for name, replicas, asked in zip(names, fleet.replicas, fleet.asked.tolist(), strict=True)
        ),
        nodes=nodes,
        events=(),
        policies=(),
        seeds=(0,),
        order="random",
        create_s=known_s,
        known_until_s=known_s,
        judged_from_s=known_s,
        judged_to_s=usage.end_s,
        series=tuple((number,) * int(replicas) for number, replicas in enumerate(fleet.replicas)),
    )


def place_by_product(scenario: Scenario, policy: Policy, seed: int, extensions: RunExtensions) -> tuple[Nodes, Nodes]:
    """Services, and nodes, of all pods. Every pod must find a node."""
    result = run_policy(scenario, policy, seed, extensions)
    assert not result.unplaced, result.unplaced
    assert not result.failures, result.failures
    stays = [(stay.series, stay.node) for stay in result.placement_intervals]
    services, nodes = np.array(stays, np.int64).T
    return services, nodes


def place_by_sums(fleet: Fleet, counted: Floats, order: Nodes) -> Nodes:
    """Each pod goes where the sum of `counted`, float64[services, dimensions], stays lowest in its fullest dimension."""
    has, cores = capacities(fleet), room(fleet)
    sums, asked = np.zeros_like(has), np.zeros(len(cores))
    where = np.empty(len(order), np.int64)
    for pod, service in enumerate(order.tolist()):
        load = ((sums + counted[service]) / has).max(axis=1)
        node = int(np.where(asked + fleet.asked[service] <= cores + 1e-9, load, np.inf).argmin())
        where[pod] = node
        sums[node] += counted[service]
        asked[node] += fleet.asked[service]
    return where


def plain_sums(fleet: Fleet) -> dict[str, Floats]:
    """What the plain sums go by, by name."""
    known = fleet.use[:, :, : fleet.known]
    requests = np.repeat(fleet.asked[:, None], known.shape[1], axis=1)
    return {"p95 sum": np.quantile(known, PERCENTILE, axis=2), "mean sum": known.mean(axis=2), "requests": requests}


def evenness(fleet: Fleet, services: Nodes, nodes: Nodes) -> Evenness:
    """Of the judged days."""
    use = fleet.use[:, :, fleet.known :]
    count = np.zeros((len(fleet.sizes), len(use)))
    np.add.at(count, (nodes, services), 1)
    has = capacities(fleet)
    found = []
    for dimension in range(use.shape[1]):
        used = count @ use[:, dimension]
        load = used / has[:, dimension, None]
        days = used.sum(axis=0).reshape(-1, STEPS_PER_DAY)
        busy = np.argsort(-days, axis=1, kind="stable")[:, :BUSY_STEPS] + STEPS_PER_DAY * np.arange(len(days))[:, None]
        peak, then = load.max(axis=1), load[:, busy.ravel()]
        mean = then.mean(axis=0)
        found.append(
            (
                peak.std() / peak.mean(),
                peak.max() / peak.mean(),
                (then.std(axis=0) / mean).mean(),
                (then.max(axis=0) / mean).mean(),
            )
        )
    return Evenness(*(float(value) for value in np.mean(found, axis=0)))


def all_figures(fleet: Fleet, policies: Sequence[Policy], orders: Sequence[int]) -> dict[str, list[Evenness]]:
    """By name of the policy or the plain sum: the figures of each order."""
    scenario = scenario_of(fleet)
    extensions = run_extensions(scenario)

    def place(order: Nodes, seed: int) -> Iterator[tuple[str, Nodes, Nodes]]:
        for one in policies:
            yield one.name, *place_by_product(scenario, one, seed, extensions)

    return beside_sums(fleet, orders, place)


def beside_sums(
    fleet: Fleet, orders: Sequence[int], place: Callable[[Nodes, int], Iterable[tuple[str, Nodes, Nodes]]]
) -> dict[str, list[Evenness]]:
    """The same of whatever places: by an order and its seed the name, services and nodes of each way to."""
    sums = plain_sums(fleet)
    found: dict[str, list[Evenness]] = {}
    for seed in orders:
        order = order_of(fleet, seed)
        for name, services, nodes in place(order, seed):
            found.setdefault(name, []).append(evenness(fleet, services, nodes))
        for name, counted in sums.items():
            found.setdefault(name, []).append(evenness(fleet, order, place_by_sums(fleet, counted, order)))
    return found
