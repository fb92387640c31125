"""ReplicaChanges: changes of replica counts on a grid of steps, and the stretches without changes. Pure, for attribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.node_usage import NodeTotals
from multisched.forecasting.slot_grid import Numbers

BLOCK_COUNTS_MAX: Final = 8_000_000
"""Limit of replica counts (stretches x services) in memory at once: 64 MB."""


class ReplicaChanges(msgspec.Struct, frozen=True):
    """Net changes of replica counts, sorted by node, then step. A replica restarted on its node within a step is no change."""

    services: tuple[str, ...]
    node: Numbers
    step: Numbers
    """The step in which the count changes; the total of this step covers both counts. 0: the replicas were there from the start."""
    service: Numbers
    change: Numbers
    """Change of the number of replicas."""
    count: Numbers
    """int64[services]: the larger of arrivals and departures within the window."""


class Stretches(msgspec.Struct, frozen=True):
    """Stretches: intervals without a replica change on a node, for a block of nodes; sorted by node, then time."""

    node: Numbers
    """int64[stretches]: index of the node within the block."""
    replicas: NDArray[np.float64]
    """float64[stretches, services]: number of replicas."""
    of_step: Numbers
    """int64[nodes, steps]: the stretch of each step."""
    is_settled: NDArray[np.bool_]
    """bool[nodes, steps]: whether no replica changed within the step."""


def replica_changes_of(totals: NodeTotals) -> ReplicaChanges:
    """Computes the changes from placement intervals; skips nodes without totals.

    Raises ValueError for invalid intervals or totals.
    """
    _check(totals)
    steps = totals.values.shape[2]
    nodes = {name: number for number, name in enumerate(totals.nodes)}
    services = tuple(sorted({interval.service for interval in totals.placement_intervals}))
    numbers = {name: number for number, name in enumerate(services)}
    end_s = totals.start_s + steps * totals.step_s
    inside = [
        s for s in totals.placement_intervals if s.node in nodes and s.begin_s < end_s and s.end_s > totals.start_s
    ]
    node = np.array([nodes[interval.node] for interval in inside] * 2, np.int64)
    service = np.array([numbers[interval.service] for interval in inside] * 2, np.int64)
    replicas = np.array([interval.replicas for interval in inside], np.int64)
    moment = np.array([interval.begin_s for interval in inside] + [min(interval.end_s, end_s) for interval in inside])
    step = np.clip((moment - totals.start_s) / totals.step_s, 0, steps).astype(np.int64)
    key, index = np.unique(np.stack([node, step, service]), axis=1, return_inverse=True)
    change = np.bincount(index.ravel(), np.concatenate([replicas, -replicas]), key.shape[1]).astype(np.int64)
    node, step, service = key[:, change != 0]
    change = change[change != 0]
    within = (step > 0) & (step < steps)
    arrivals = np.bincount(service[within & (change > 0)], minlength=len(services))
    departures = np.bincount(service[within & (change < 0)], minlength=len(services))
    return ReplicaChanges(services, node, step, service, change, np.maximum(arrivals, departures))


def _check(totals: NodeTotals) -> None:
    shape = (len(totals.nodes), len(totals.dimensions))
    if totals.values.ndim != 3 or totals.values.shape[:2] != shape:
        raise ValueError(f"totals.values: {totals.values.shape} in place of {(*shape, 'steps')}")
    if not totals.step_s > 0 or not math.isfinite(totals.step_s):
        raise ValueError(f"totals.step_s: {totals.step_s} must be more than 0")
    if len(set(totals.nodes)) < len(totals.nodes):
        raise ValueError("totals.nodes: contains a duplicate")
    for interval in totals.placement_intervals:
        if not interval.begin_s <= interval.end_s:
            raise ValueError(
                f"placement of {interval.service} on {interval.node}: end_s {interval.end_s} is before begin_s {interval.begin_s}"
            )
        if interval.replicas < 0:
            raise ValueError(
                f"placement of {interval.service} on {interval.node}: replicas must be >= 0, got {interval.replicas}"
            )


def node_blocks(moves: ReplicaChanges, nodes: int) -> Iterator[slice]:
    """Yields blocks of consecutive nodes, each with at most BLOCK_COUNTS_MAX replica counts or a single node."""
    counts = (np.bincount(moves.node, minlength=nodes) + 1) * max(len(moves.services), 1)
    begin, held = 0, 0
    for node, needed in enumerate(counts.tolist()):
        if held and held + needed > BLOCK_COUNTS_MAX:
            yield slice(begin, node)
            begin, held = node, 0
        held += needed
    if begin < nodes:
        yield slice(begin, nodes)


def stretches_of(moves: ReplicaChanges, nodes: slice, steps: int) -> Stretches:
    """Computes the stretches of a block of nodes."""
    count = nodes.stop - nodes.start
    chosen = slice(*np.searchsorted(moves.node, [nodes.start, nodes.stop]))
    node, step = moves.node[chosen] - nodes.start, moves.step[chosen]
    begins = np.unique(np.concatenate([node * (steps + 1) + step, np.arange(count) * (steps + 1)]))
    changes = np.zeros((len(begins), len(moves.services)))
    at = np.searchsorted(begins, node * (steps + 1) + step)
    np.add.at(changes, (at, moves.service[chosen]), moves.change[chosen])
    # All intervals end at or before the end of the grid, so counts return to zero at the end of each node.
    replicas = np.cumsum(changes, axis=0)
    grid = np.arange(count)[:, None] * (steps + 1) + np.arange(steps)
    is_settled = np.ones((count, steps + 1), np.bool_)
    is_settled[node, step] = step == 0
    return Stretches(
        begins // (steps + 1), replicas, np.searchsorted(begins, grid, side="right") - 1, is_settled[:, :steps]
    )
