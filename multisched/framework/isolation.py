"""Isolated plugins: plugins whose Filter and Score run in their own thread or process.

So code that hangs costs its pod one attempt and never blocks the loop.

An isolated plugin is wrapped as a `RemotePlugin`. The cycle yields a frozen `IsolatedRequest`: the pod, and what the
plugin declares to read of the nodes. The loop continues with other pods until the `IsolatedResponse` is there and
checked. PreFilter, Filter, PreScore, Score and NormalizeScore run in one call in the worker, with their own cycle
state. Every other point of the plugin runs inline, in the instance the profile built. A plugin with `reads_objects`
reads, in its thread, the live view it was built with. Each look-up is atomic, but a collection may change during
iteration; copy it. Two things differ from an inline plugin. A PreFilter rejection counts as a refusal of each row.
NormalizeScore gets the rows that passed this plugin, before other remote plugins have filtered theirs.

Owns the snapshots; `shell.workers` owns threads and processes and runs `run_isolated` in them. Called by `registry`
when it builds a profile, and by the cycle.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from multisched.framework.cycle_state import CycleState
from multisched.framework.dependency import Dependency, Isolation, dependency_of
from multisched.framework.frozen_nodes import FrozenNodes, RowRecord
from multisched.framework.ledger import ChoosingPlugin
from multisched.framework.node_view import Codes, NodeView, Rows, Scores
from multisched.framework.points import (
    CycleView,
    FilterPlugin,
    NormalizeScorePlugin,
    Plugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
)
from multisched.framework.reasons import ReasonTable
from multisched.framework.registry import EXTENSION_POINTS, Factory, PluginSetupError, PluginUse
from multisched.framework.remote import RemotePlugin
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.framework.traits import Traits, traits_of
from multisched.model.objects import Pod

WAIT_IN_LINE_MAX_S = 30.0
"""Longest wait for a free thread or process, in addition to the timeout of the call itself."""

_INLINE = (
    "pre_enqueue",
    "sort_key",
    "post_filter",
    "reserve",
    "unreserve",
    "permit",
    "pre_bind",
    "pre_bind_pre_flight",
    "bind",
    "post_bind",
    "events_to_register",
)
_ELSEWHERE = frozenset({"PreFilter", "Filter", "PreScore", "Score", "NormalizeScore"})


class IsolatedError(Exception):
    """An isolated plugin failed: it raised, returned an invalid result, or timed out."""

    def __init__(self, point: str, text: str) -> None:
        super().__init__(f"{point}: {text}")
        self.point = point
        self.text = text


class IsolatedRequest(msgspec.Struct, frozen=True):
    """One attempt's input for the worker; self-contained and picklable."""

    pod: Pod
    attempt: int
    rows: Rows
    records: Sequence[RowRecord]
    """The requested rows; for a plugin that depends on all nodes, every other row too."""
    node_count: int
    nodes_version: int


class IsolatedResponse(msgspec.Struct, frozen=True):
    """The plugin's results for `IsolatedRequest.rows`, in the same order. Picklable."""

    codes: Codes
    statuses: Mapping[int, tuple[Code, tuple[str, ...]]]
    """Code -> status, for the codes other than 0."""
    scores: Scores
    """0..MAX_SCORE; 0 if Filter refused the row."""
    failed_at: str = ""
    """The extension point that failed; empty if none did."""
    failure: str = ""

    @staticmethod
    def failed(point: str, text: str) -> IsolatedResponse:
        return IsolatedResponse(np.zeros(0, np.uint8), {}, np.zeros(0, np.int64), point, text)


class Worker(Protocol):
    """Runs one plugin's requests outside the loop."""

    async def run(self, request: IsolatedRequest) -> IsolatedResponse:
        """Runs the request within the plugin's timeout. Raises IsolatedError."""
        ...


class WorkerFactory(Protocol):
    """Creates the workers of a program.

    A Protocol with two implementations: `PluginWorkers` of the shell, and one for simulations.
    """

    def worker(self, plugin: Plugin, use: PluginUse) -> Worker: ...

    async def close(self) -> None:
        """Ends all threads and processes."""
        ...


class Isolator:
    """Wraps the isolated plugins of a profile; `registry.build_profile` calls it."""

    def __init__(self, worker_factory: WorkerFactory) -> None:
        self._worker_factory = worker_factory

    def __call__(self, plugin: Plugin, use: PluginUse, factory: Factory) -> Plugin:
        """Returns the wrapped plugin. Raises PluginSetupError if it cannot be isolated as configured."""
        refusal = _refusal(plugin, use, factory)
        if refusal:
            raise PluginSetupError(f"plugin {use.name}: isolation {use.isolation.value}: {refusal}")
        return IsolatedPlugin(plugin, use, self._worker_factory.worker(plugin, use))


def _refusal(plugin: Plugin, use: PluginUse, factory: Factory) -> str:
    if not isinstance(plugin, FilterPlugin | ScorePlugin):
        return "only Filter and Score can be isolated, and it has neither; remove the isolation"
    if isinstance(plugin, RemotePlugin):
        return "it awaits its response and does not block the loop; remove the isolation"
    if isinstance(plugin, PreFilterExtensions):
        return "AddPod and RemovePod change what Filter reads in the middle of a cycle; run it inline"
    if isinstance(plugin, ChoosingPlugin):
        return "its choice is taken in the same step; run it inline"
    if use.isolation is Isolation.THREAD:
        return ""
    others = [p for p, protocol in EXTENSION_POINTS.items() if p not in _ELSEWHERE and isinstance(plugin, protocol)]
    if others:
        return f"{', '.join(others)} would run in another instance than Filter and Score; use thread"
    if "context" in inspect.signature(factory).parameters:
        return "it takes a context, which does not exist in another process; use thread"
    if traits_of(plugin).reads_objects:
        return "it reads objects, which do not exist in another process; use thread"
    return ""


class IsolatedPlugin:
    """A `RemotePlugin` with the wrapped plugin's name, extension points and reasons."""

    depends_on = Dependency.ATTEMPT

    def __init__(self, wrapped: Plugin, use: PluginUse, worker: Worker) -> None:
        self.name = wrapped.name
        self.reasons = ReasonTable(wrapped.name)
        self.response_timeout_s = use.timeout_s + WAIT_IN_LINE_MAX_S
        self.wrapped = wrapped
        own = traits_of(wrapped)
        # Filter and Score results are not cached, so their traits do not apply; traits of inline points are copied.
        self.traits = Traits(
            signs_spec_only=True,
            pre_filter_reads_pods=own.pre_filter_reads_pods,
            pre_bind_timeout_s=own.pre_bind_timeout_s,
            keeps_deadline=own.keeps_deadline,
            reads_objects=own.reads_objects,
        )
        self._reads = _dependencies(wrapped)
        self._records: dict[int, RowRecord] = {}
        self._worker = worker
        self._moved = self.reasons.code(Code.UNSCHEDULABLE, "node(s) changed while the plugin was asked")
        # The framework detects extension points by attributes, so only points that the plugin implements are set.
        if isinstance(wrapped, FilterPlugin):
            self.filter, self.recheck = self._filter, self._recheck
        if isinstance(wrapped, ScorePlugin):
            self.score = self._score
        for point in _INLINE:
            if hasattr(wrapped, point):
                setattr(self, point, getattr(wrapped, point))

    def sign(self, pod: Pod) -> str:
        """Returns an empty fragment: this plugin's results are valid for one attempt and never cached."""
        return ""

    # -- the request ----------------------------------------------------------------------------------------------

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        """Returns a frozen copy of what the plugin reads; rows unchanged since the last request are not copied again."""
        nodes = cycle.nodes
        wanted = _live_rows(nodes) if any(d.reads_all_nodes for d in self._reads) else rows.tolist()
        with_pods = any(d.reads_pods for d in self._reads)
        records = [self._record(nodes, row, with_pods=with_pods) for row in wanted]
        return IsolatedRequest(pod, cycle.attempt, rows.copy(), records, nodes.node_count, nodes.nodes_version)

    def _record(self, nodes: NodeView, row: int, *, with_pods: bool) -> RowRecord:
        known, node = self._records.get(row), nodes.node(row)
        if known is not None and known.node is node and (not with_pods or known.version == nodes.version(row)):
            return known
        pods = tuple(nodes.pods_on(row)) if with_pods else None
        record = self._records[row] = RowRecord(row, nodes.version(row), node, pods)
        return record

    async def response(self, request: object) -> object:
        """Returns the checked response of the worker. Raises IsolatedError for any failure there."""
        assert isinstance(request, IsolatedRequest)
        found = await self._worker.run(request)
        if not isinstance(found, IsolatedResponse):
            raise IsolatedError("Filter", f"the worker returned {type(found).__name__}")
        if found.failed_at:
            raise IsolatedError(found.failed_at, found.failure)
        _check(request, found)
        own = np.zeros(256, np.uint8)
        for code, (status, reasons) in found.statuses.items():
            own[code] = self.reasons.code(status, *reasons)
        return _Settled(request, own[found.codes], found.scores)

    # -- the response, read in the cycle ---------------------------------------------------------------------------

    def _filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: the worker's codes."""
        settled = self._settled(cycle)
        return settled.codes[settled.positions(rows)]

    def _recheck(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: the worker's code if nothing that it read for the row has changed, else a refusal.

        A preemption may check rows that were not in the request, because the pod did not fit there. They pass here: the
        attempt that uses the row will request it.
        """
        settled = self._settled(cycle)
        codes, asked = np.zeros(len(rows), np.uint8), np.isin(rows, settled.request.rows)
        codes[asked] = self._filter(cycle, pod, rows[asked])
        seen = {record.row: record for record in settled.request.records}
        for at in np.flatnonzero(asked & (codes == 0)).tolist():
            if self._has_moved(cycle.nodes, seen[rows.item(at)], settled.request):
                codes[at] = self._moved
        return codes

    def _has_moved(self, nodes: NodeView, record: RowRecord, request: IsolatedRequest) -> bool:
        if any(d.reads_pods for d in self._reads) and nodes.version(record.row) != record.version:
            return True
        if any(d.reads_all_nodes for d in self._reads) and nodes.nodes_version != request.nodes_version:
            return True
        return nodes.node(record.row) is not record.node

    def _score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..MAX_SCORE: the worker's scores."""
        settled = self._settled(cycle)
        return settled.scores[settled.positions(rows)]

    def _settled(self, cycle: CycleView) -> _Settled:
        settled = cycle.responses[self.name]
        assert isinstance(settled, _Settled)
        return settled


class _Settled(msgspec.Struct, frozen=True):
    request: IsolatedRequest
    codes: Codes
    scores: Scores

    def positions(self, rows: Rows) -> Rows:
        at = np.searchsorted(self.request.rows, rows)
        if len(rows) and not np.array_equal(self.request.rows[np.minimum(at, len(self.request.rows) - 1)], rows):
            raise LookupError("asked about rows that were not in the request")
        return np.asarray(at, np.intp)


def _dependencies(plugin: Plugin) -> list[Dependency]:
    """Returns what the plugin reads; a plugin without a declaration, or with ATTEMPT, may read anything."""
    declared = dependency_of(plugin)
    return [declared] if declared is not Dependency.ATTEMPT else [Dependency.ATTEMPT, Dependency.CLUSTER]


def _live_rows(nodes: NodeView) -> list[int]:
    """Returns every row with a node, ascending."""
    live = []
    for row in range(len(nodes.pod_count)):
        try:
            nodes.node(row)
        except LookupError:
            continue
        live.append(row)
    return live


def _check(request: IsolatedRequest, answer: IsolatedResponse) -> None:
    """Checks shapes, types, ranges and statuses on this side too, because a process responds with raw bytes."""
    count = len(request.rows)
    for point, found, dtype in (("Filter", answer.codes, np.uint8), ("Score", answer.scores, np.int64)):
        if not isinstance(found, np.ndarray) or found.dtype != dtype or found.shape != (count,):
            raise IsolatedError(point, f"the worker's answer is not {dtype.__name__}[{count}]")
    unknown = set(np.unique(answer.codes).tolist()) - answer.statuses.keys() - {0}
    if unknown:
        raise IsolatedError("Filter", f"codes {sorted(unknown)} have no status")


# -- in the worker -----------------------------------------------------------------------------------------------------


def run_isolated(plugin: Plugin, request: IsolatedRequest) -> IsolatedResponse:
    """Runs the plugin's Filter and Score, and their Pre points, for a request. Never raises an Exception.

    Called in the worker; it touches only the request and the plugin.
    """
    hearing = _PluginEvents()
    runner = Runner(hearing, lambda: 0.0)
    nodes = FrozenNodes(request.records, request.node_count, request.nodes_version)
    view = CycleView(nodes, CycleState(), request.attempt)
    try:
        codes, statuses = _filtered(runner, plugin, view, request)
        scores = _scored(runner, plugin, view, request, codes)
    except PluginFailure as failure:
        return IsolatedResponse.failed(hearing.point or "Filter", hearing.text or failure.status.message)
    return IsolatedResponse(codes, statuses, scores)


class _PluginEvents:
    """A PluginObserver that stores the failure for the response."""

    def __init__(self) -> None:
        self.point = ""
        self.text = ""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Does nothing: the requesting side times the whole call."""

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        self.point = point
        self.text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"


Statuses = dict[int, tuple[Code, tuple[str, ...]]]


def _filtered(runner: Runner, plugin: Plugin, view: CycleView, request: IsolatedRequest) -> tuple[Codes, Statuses]:
    rows, everywhere = request.rows, np.ones(len(request.rows), np.uint8)
    outside = np.zeros(len(rows), np.bool_)
    if isinstance(plugin, PreFilterPlugin):
        result = runner.pre_filter(plugin, view, request.pod)
        if result.status.code is Code.SKIP:
            return np.zeros(len(rows), np.uint8), {}
        if not result.status.is_success:
            return everywhere, {1: _outcome(runner, plugin, "PreFilter", result.status)}
        if result.nodes is not None:
            wanted = result.nodes
            outside = np.fromiter((view.nodes.node(row).name not in wanted for row in rows.tolist()), np.bool_)
    if not isinstance(plugin, FilterPlugin):
        codes, statuses = np.zeros(len(rows), np.uint8), {}
    else:
        codes = np.array(runner.filter(plugin, view, request.pod, rows))
        found = (int(code) for code in np.unique(codes) if code)
        statuses = {code: _outcome(runner, plugin, "Filter", plugin.reasons.status(code)) for code in found}
    if outside.any():
        free = next(code for code in range(1, 256) if code not in statuses)
        codes[outside & (codes == 0)] = free
        reason = f"node(s) didn't satisfy plugin(s) [{plugin.name}]"
        statuses[free] = (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, (reason,))
    return codes, statuses


def _outcome(runner: Runner, plugin: Plugin, point: str, status: Status) -> tuple[Code, tuple[str, ...]]:
    if status.code.is_rejection:
        return status.code, status.reasons
    raise runner.failure(plugin, point, status.message or f"answered {status.code.value}")


def _scored(runner: Runner, plugin: Plugin, view: CycleView, request: IsolatedRequest, codes: Codes) -> Scores:
    """Returns the final scores of the rows that passed; 0 for the others and if the plugin skips."""
    scores, at = np.zeros(len(codes), np.int64), np.flatnonzero(codes == 0)
    if not len(at) or not isinstance(plugin, ScorePlugin):
        return scores
    rows, pod = request.rows[at], request.pod
    if isinstance(plugin, PreScorePlugin) and runner.pre_score(plugin, view, pod, rows).code is Code.SKIP:
        return scores
    raw = runner.score(plugin, view, pod, rows)
    normalizer = traits_of(plugin).normalizer
    if normalizer is not None:
        raw = normalizer.apply(raw, max(0, int(raw.max())))
    elif isinstance(plugin, NormalizeScorePlugin):
        raw = runner.normalize(plugin, view, pod, raw)
    else:
        runner.check_range(plugin, raw)
    scores[at] = raw
    return scores
