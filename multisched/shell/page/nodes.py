"""ProgramNodes: the nodes of a running program for its page: totals of all nodes, a list of some, details of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Rows
from multisched.model.objects import CPU, ELASTIC_AMOUNT, MEMORY, PODS, Node, Pod
from multisched.observe.nodes_view import (
    BUCKETS,
    PODS_ON_NODE_MAX,
    TEXT_CHARS_MAX,
    NodeDetail,
    NodeShare,
    NodesQuery,
    NodesView,
    NoNodeError,
    PodOnNode,
    ResourceTotal,
)
from multisched.shell.program import Program
from multisched.shell.telemetry import ProgramQueues
from multisched.state.domain_rows import Use

RESOURCES_MAX: Final = 12
"""Maximum number of resources in a list; cpu, memory and pods are first."""
LABELS_MAX: Final = 200
STEP: Final = 250
"""Number of nodes that are described between two yields to the event loop: half a millisecond."""

_Shares = NDArray[np.float64]


class ProgramNodes:
    """The `observe.nodes_view.NodesSource` of a running program."""

    def __init__(self, program: Program, queues: ProgramQueues) -> None:
        self._program = program
        self._queues = queues
        self._live, self._live_version = np.array([], np.intp), -1
        """Rows of all nodes, and the `nodes_version` at which they were listed."""

    async def nodes(self, query: NodesQuery) -> NodesView:
        """See `NodesSource`. All figures are computed in one step; then the nodes that are sent are described in slices of STEP."""
        rows = self._rows(query.domain)
        resources = self._resources(rows)
        if query.resource not in resources:
            raise NoNodeError(f"no node here has {query.resource[:TEXT_CHARS_MAX]}; there are {', '.join(resources)}")
        shares = {name: self._shares(name, rows) for name in resources}
        chosen = np.argsort(-np.nan_to_num(shares[query.resource], nan=-1.0), kind="stable")
        table = self._program.cache.nodes
        if query.match:
            names = [table.node(row).name for row in rows.tolist()]
            chosen = np.array([at for at in chosen.tolist() if query.match in names[at]], np.intp)
        at = chosen[query.offset : query.offset + query.limit]
        shown = [table.node(row) for row in rows[at].tolist()]
        found, pods = np.round([one[at] for one in shares.values()], 4).T, table.pod_count[rows[at]]
        totals = tuple(self._total(name, rows, shares[name]) for name in resources)
        nodes: list[NodeShare] = []
        for begin in range(0, len(shown), STEP):
            await asyncio.sleep(0)
            part = slice(begin, begin + STEP)
            nodes += map(_share, shown[part], found[part].tolist(), pods[part].tolist())
        return NodesView(
            domain=query.domain or "",
            resources=tuple(resources),
            sorted_by=query.resource,
            count=len(rows),
            totals=totals,
            nodes=tuple(nodes),
            matching=len(chosen),
            offset=query.offset,
        )

    async def node(self, name: str) -> NodeDetail:
        """See `NodesSource`."""
        table = self._program.cache.nodes
        row = table.row_of(name)
        if row is None:
            raise NoNodeError(f"node {name[:TEXT_CHARS_MAX]} is not known here")
        node, pods = table.node(row), table.pods_on(row)
        largest = sorted(pods, key=lambda pod: (-pod.requests.get(CPU, 0), pod.key))
        workers, uses = self._program.router.workers(), self._program.router.uses_of(row)
        return NodeDetail(
            node=node.name,
            domains=tuple(worker.name for worker, use in zip(workers, uses, strict=True) if use is Use.USED),
            is_unschedulable=node.is_unschedulable,
            malformed=_cut(node.malformed),
            taints=tuple(_cut(f"{taint.key}={taint.value}:{taint.effect}") for taint in node.taints),
            labels=_labels(node.labels),
            resources=self._resources_of(node, row),
            pods=tuple(map(_pod, largest[:PODS_ON_NODE_MAX])),
            pods_left_out=max(0, len(pods) - PODS_ON_NODE_MAX),
        )

    def _rows(self, domain: str | None) -> Rows:
        """Returns the rows of a domain, or all. Raises NoDomainError."""
        table = self._program.cache.nodes
        if domain is None:
            if self._live_version != table.nodes_version:
                self._live = np.array([row for row, _ in table.live_rows()], np.intp)
                self._live_version = table.nodes_version
            return self._live
        [worker] = self._queues.workers(domain)
        return self._program.router.rows_of(worker).rows

    def _resources(self, rows: Rows) -> list[str]:
        table = self._program.cache.nodes
        known = [name for name in sorted(table.resources) if name not in (CPU, MEMORY, PODS)]
        return [CPU, MEMORY, PODS, *(name for name in known if table.allocatable(name)[rows].any())][:RESOURCES_MAX]

    def _shares(self, resource: str, rows: Rows) -> _Shares:
        """Returns requested / allocatable per row; NaN if a row has none of the resource or its amount is elastic."""
        table = self._program.cache.nodes
        allocatable = table.allocatable(resource)[rows].astype(np.float64)
        has_any = (allocatable > 0) & (allocatable < ELASTIC_AMOUNT)
        held = self._requested(resource, rows)
        shares: _Shares = np.divide(held, allocatable, out=np.full(len(rows), np.nan), where=has_any)
        return shares

    def _requested(self, resource: str, rows: Rows) -> NDArray[np.int64]:
        table = self._program.cache.nodes
        return (table.pod_count if resource == PODS else table.requested(resource))[rows]

    def _total(self, resource: str, rows: Rows, shares: _Shares) -> ResourceTotal:
        counted = ~np.isnan(shares)
        buckets = np.minimum(np.floor(shares[counted] * 10 + 1e-9), BUCKETS - 1).astype(np.intp)
        buckets[(buckets == BUCKETS - 1) & (shares[counted] <= 1.0)] = BUCKETS - 2  # full, and not over
        return ResourceTotal(
            resource=resource,
            allocatable=int(self._program.cache.nodes.allocatable(resource)[rows][counted].sum()),
            requested=int(self._requested(resource, rows)[counted].sum()),
            histogram=tuple(np.bincount(buckets, minlength=BUCKETS).tolist()),
        )

    def _resources_of(self, node: Node, row: int) -> dict[str, tuple[int, int]]:
        at = np.array([row], np.intp)
        names = [CPU, MEMORY, PODS, *sorted(node.allocatable.keys() - {CPU, MEMORY, PODS})]
        return {name: (int(self._requested(name, at)[0]), node.allocatable.get(name, 0)) for name in names}


def _share(node: Node, shares: Sequence[float], pods: int) -> NodeShare:
    return NodeShare(
        node=node.name,
        shares=tuple(None if share != share else share for share in shares),
        pods=pods,
        is_closed=node.is_unschedulable or bool(node.malformed),
    )


def _pod(pod: Pod) -> PodOnNode:
    return PodOnNode(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        scheduler=pod.spec.scheduler_name,
        priority=pod.spec.priority,
        requests=dict(pod.requests),
        is_leaving=pod.is_leaving,
    )


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {_cut(key): _cut(value) for key, value in sorted(labels.items())[:LABELS_MAX]}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"
