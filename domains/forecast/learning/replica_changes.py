"""ReplicaChanges: stays as changes of replica counts on a grid of steps, and the stretches between them. Pure, for attribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import Numbers
from domains.forecast.curves.usage import NodeTotals

BLOCK_COUNTS_MAX: Final = 8_000_000
"""Replica counts (stretches x services) that are held at once: 64 MB."""


class ReplicaChanges(msgspec.Struct, frozen=True):
    """Net changes: a replica that restarts on its node within one step has not moved. Sorted by node, then step."""

    services: tuple[str, ...]
    node: Numbers
    step: Numbers
    """The step in which it happened, so that its total is mixed; 0: from the start."""
    service: Numbers
    change: Numbers
    """Of replicas."""
    count: Numbers
    """int64[services]: arrivals or departures within the window, whichever are more."""


class Stretches(msgspec.Struct, frozen=True):
    """Times without a move on each node of a block, sorted by node, then time."""

    node: Numbers
    """int64[stretches]: place within the block."""
    replicas: NDArray[np.float64]
    """float64[stretches, services]"""
    of_step: Numbers
    """int64[nodes, steps]"""
    is_settled: NDArray[np.bool_]
    """bool[nodes, steps]: no move happened within the step."""


def replica_changes_of(totals: NodeTotals) -> ReplicaChanges:
    """Placement intervals on nodes without totals are left out.

    Raises ValueError for intervals or totals that cannot be.
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
    key, place = np.unique(np.stack([node, step, service]), axis=1, return_inverse=True)
    change = np.bincount(place.ravel(), np.concatenate([replicas, -replicas]), key.shape[1]).astype(np.int64)
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
        raise ValueError("totals.nodes: a node is named twice")
    for interval in totals.placement_intervals:
        if not interval.begin_s <= interval.end_s:
            raise ValueError(
                f"stay of {interval.service} on {interval.node}: ends at {interval.end_s}, before {interval.begin_s}"
            )
        if interval.replicas < 0:
            raise ValueError(f"stay of {interval.service} on {interval.node}: {interval.replicas} replicas")


def node_blocks(moves: ReplicaChanges, nodes: int) -> Iterator[slice]:
    """Runs of nodes whose replica counts fit into BLOCK_COUNTS_MAX; one node at least."""
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
    """Of a block of nodes."""
    count = nodes.stop - nodes.start
    chosen = slice(*np.searchsorted(moves.node, [nodes.start, nodes.stop]))
    node, step = moves.node[chosen] - nodes.start, moves.step[chosen]
    begins = np.unique(np.concatenate([node * (steps + 1) + step, np.arange(count) * (steps + 1)]))
    changes = np.zeros((len(begins), len(moves.services)))
    at = np.searchsorted(begins, node * (steps + 1) + step)
    np.add.at(changes, (at, moves.service[chosen]), moves.change[chosen])
    # Every stay ends within the grid or with it, so each node ends with no replicas and the next begins from none.
    replicas = np.cumsum(changes, axis=0)
    grid = np.arange(count)[:, None] * (steps + 1) + np.arange(steps)
    is_settled = np.ones((count, steps + 1), np.bool_)
    is_settled[node, step] = step == 0
    return Stretches(
        begins // (steps + 1), replicas, np.searchsorted(begins, grid, side="right") - 1, is_settled[:, :steps]
    )
