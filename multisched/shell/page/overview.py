"""ProgramOverview: the overview and the latest decisions of a running program.

Called once a second while any number of pages is open. Only the reasons of a few new decisions are written per call, because each
costs up to a millisecond at 5,000 nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from heapq import nsmallest
from itertools import islice
from typing import Final

import numpy as np

from multisched import __version__
from multisched.cycle.attempt_record import AttemptRecords
from multisched.cycle.classes.placement_log import Placement
from multisched.framework.leading import FindLeader, NotLeadingError, led_here
from multisched.framework.registry import implements
from multisched.framework.views import ViewedPlugin
from multisched.model.object_kinds import ObjectKind
from multisched.observe.decision_words import why
from multisched.observe.overview_view import (
    FOUND_SHOWN,
    ApiHealth,
    Decided,
    DecisionList,
    DomainOverview,
    FoundNames,
    Latency,
    Overview,
)
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.shell.telemetry import ProgramQueues, health_of

RATE_WINDOW_S: Final = 10.0
LATENCIES_READ: Final = 2_000
"""Number of latest pods from whose latencies percentiles are computed."""
TOLD: Final = 12
"""Maximum number of decisions in the overview."""
TOLD_PER_CALL: Final = 2
"""Maximum number of new decisions per domain that one call describes; others are skipped."""
REMARKS_KEPT_S: Final = 10.0
STEP: Final = 100
"""Number of decisions that are described between two yields to the event loop: half a millisecond."""
NAMES: Final = 2_000
"""Number of names that are compared between two yields to the event loop: a millisecond if all contain the text."""
STALE_S: Final = 150.0
"""A kind counts as stale after this time without an open watch."""

_Key = tuple[str, int]
"""uid and number of the attempt."""


class ProgramOverview:
    """The `observe.overview_view.OverviewSource` of a running program."""

    def __init__(
        self, program: Program, queues: ProgramQueues, identity: str, find_leader: FindLeader = led_here
    ) -> None:
        self._program = program
        self._queues = queues
        self._identity = identity
        self._find_leader = find_leader
        self._bound: dict[str, deque[tuple[float, int]]] = {}
        """Domain -> time and number of bound pods of earlier calls."""
        self._told: deque[Decided] = deque(maxlen=TOLD)
        """The newest first."""
        self._newest: dict[str, _Key] = {}
        """Domain -> the newest placement that was seen."""
        self._remarks, self._remarks_at_s = "", -REMARKS_KEPT_S
        self._remarks_state: tuple[object, ...] = ()
        """State that most remarks after a start depend on. If it changes, the remarks are read again at once."""
        self._changes = 0
        self._mark: object = None
        """State at the last call. If it differs at the next call, `_changes` is incremented."""

    async def overview(self) -> Overview:
        """See `OverviewSource`."""
        program = self._program
        workers = program.router.workers()
        for worker in workers:
            await self._tell(worker)
        now_s = program.clock.monotonic()
        state = (
            program.is_ready,
            *((worker.is_leading, len(program.router.rows_of(worker).rows) > 0) for worker in workers),
        )
        if state != self._remarks_state or now_s - self._remarks_at_s >= REMARKS_KEPT_S:
            self._remarks, self._remarks_state, self._remarks_at_s = health_of(program), state, now_s
        domains = tuple(self._domain(worker, now_s) for worker in workers)
        return Overview(
            identity=self._identity,
            version=__version__,
            is_ready=program.is_ready,
            remarks=self._remarks,
            api=self._api(),
            domains=domains,
            decisions=tuple(sorted(self._told, key=lambda one: -one.at_seconds)),
            views=self._views(),
            changes=self._count_change(domains),
        )

    async def decisions(self, *, domain: str | None, limit: int) -> DecisionList:
        """See `OverviewSource`."""
        found: list[Decided] = []
        for worker in self._queues.workers(domain):
            if (led := self._find_leader(worker.name)) is not None:
                if domain is not None:
                    raise NotLeadingError(led)
                continue
            for number, placement in enumerate(list(worker.cycle.records.latest(limit))):
                if number % STEP == STEP - 1:
                    await asyncio.sleep(0)
                if (one := self._decided(worker, placement)) is not None:
                    found.append(one)
        found.sort(key=lambda one: -one.at_seconds)
        return DecisionList(decisions=tuple(found[:limit]))

    async def find(self, text: str) -> FoundNames:
        """See `OverviewSource`."""
        program = self._program
        pods, pods_total = await _containing(text, program.pods.keys())
        nodes, nodes_total = await _containing(text, [node.name for _, node in program.cache.nodes.live_rows()])
        return FoundNames(
            pods=tuple(map(_split, pods)), pods_total=pods_total, nodes=tuple(nodes), nodes_total=nodes_total
        )

    # -- decisions -------------------------------------------------------------------------------------------------

    async def _tell(self, worker: DomainWorker) -> None:
        """Describes the newest placements of a domain, with the reason."""
        newest = list(worker.cycle.records.latest(TOLD_PER_CALL))
        before = self._newest.get(worker.name)
        if newest:
            self._newest[worker.name] = (newest[0].uid, newest[0].attempt)
        keys = [(one.uid, one.attempt) for one in newest]
        fresh = newest[: keys.index(before)] if before in keys else newest
        for placement in reversed(fresh):
            decided = self._decided(worker, placement, with_reason=True)
            if decided is not None:
                self._told.appendleft(decided)
            await asyncio.sleep(0)

    def _decided(self, worker: DomainWorker, placement: Placement, *, with_reason: bool = False) -> Decided | None:
        """Returns None if the pod is no longer in the cache."""
        program = self._program
        placed = program.cache.placed(placement.uid)
        if placed is None:
            return None
        ago_s = program.clock.monotonic() - placement.at_s
        return Decided(
            domain=worker.name,
            namespace=placed.pod.namespace,
            name=placed.pod.name,
            node=placement.node,
            attempt=placement.attempt,
            score=placement.total,
            at_seconds=round(program.clock.now().timestamp() - ago_s, 3),
            why=self._why(worker, placement) if with_reason else "",
        )

    def _why(self, worker: DomainWorker, placement: Placement) -> str:
        from multisched.observe.explain_attempt import AttemptReader

        program = self._program
        rows, now_s = program.router.rows_of(worker), program.clock.monotonic()
        reader = AttemptReader(worker.plugins, program.cache.nodes, rows, now_s, names=1)
        return why(reader.attempt(AttemptRecords.record_of(placement)))

    # -- figures ---------------------------------------------------------------------------------------------------

    def _domain(self, worker: DomainWorker, now_s: float) -> DomainOverview:
        led = self._find_leader(worker.name)
        counters, conflicts = worker.counters, worker.cycle.conflicts
        return DomainOverview(
            domain=worker.name,
            scheduler_names=self._program.scheduler_names[worker.name],
            is_leading=worker.is_leading,
            led_elsewhere="" if led is None else str(led),
            nodes=len(self._program.router.rows_of(worker).rows),
            counts=self._queues.counts(worker),
            unschedulable_by_plugin=dict(worker.queue.statistics().unschedulable_by_plugin),
            bound=counters.bound,
            bound_per_second=self._rate(worker.name, now_s, counters.bound),
            attempts=counters.attempts,
            latency=_latency(worker),
            conflicts_true=conflicts.true,
            conflicts_false=conflicts.false,
            binds_in_flight=worker.limit.in_flight,
            bind_limit=worker.limit.width,
        )

    def _rate(self, domain: str, now_s: float, bound: int) -> float | None:
        seen = self._bound.setdefault(domain, deque())
        while seen and now_s - seen[0][0] > RATE_WINDOW_S:
            seen.popleft()
        seen.append((now_s, bound))
        since_s, before = seen[0]
        return round((bound - before) / (now_s - since_s), 1) if now_s - since_s >= 1.0 else None

    def _api(self) -> ApiHealth:
        program = self._program
        reflectors = {
            **program.reflectors,
            **{kind.resource: one for kind, one in program.objects.reflectors.items()},
        }
        counted = [one.statistics() for one in reflectors.values()]
        return ApiHealth(
            throttled=program.limiter.statistics().throttled,
            failed_reads=sum(one.list_failures + one.watch_failures for one in counted),
            stale_kinds=tuple(sorted(name for name, one in reflectors.items() if one.staleness_s() > STALE_S)),
        )

    def _views(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for worker in self._program.router.workers():
            for built in worker.plugins.built:
                plugin = built.plugin
                if implements(plugin, ViewedPlugin) and worker.name not in found.get(plugin.view, ()):
                    found[plugin.view] = (*found.get(plugin.view, ()), worker.name)
        return found

    def _count_change(self, domains: tuple[DomainOverview, ...]) -> int:
        """Returns the number of calls so far at which the state differed from the previous call."""
        cache = self._program.cache
        mark = (
            cache.nodes.row_log.sequence,
            cache.nodes.start_log.sequence,
            cache.objects.versions(*ObjectKind),
            len(self._program.pods.pending),
            tuple((one.attempts, one.bound, one.is_leading, tuple(one.counts.values())) for one in domains),
            tuple(sum(w.queue.statistics().incoming.values()) for w in self._program.router.workers()),
        )
        if mark != self._mark:
            self._mark, self._changes = mark, self._changes + 1
        return self._changes


async def _containing(text: str, names: Sequence[str]) -> tuple[list[str], int]:
    """Returns the first FOUND_SHOWN names that contain the text, and the number of all that do; none for an empty text.

    Sorted; names that end with `/` and the text, or are equal to it, are first. Yields to the event loop after NAMES names.
    """
    first: list[str] = []
    total = 0
    for begin in range(0, len(names) if text else 0, NAMES):
        found = [name for name in names[begin : begin + NAMES] if text in name]
        total += len(found)
        first = nsmallest(FOUND_SHOWN, [*first, *found], lambda name: (not f"/{name}".endswith(f"/{text}"), name))
        await asyncio.sleep(0)
    return first, total


def _split(key: str) -> tuple[str, str]:
    namespace, _, name = key.partition("/")
    return namespace, name


def _latency(worker: DomainWorker) -> Latency | None:
    latest = list(islice(reversed(worker.latencies_s), LATENCIES_READ))
    if not latest:
        return None
    p50, p90, p99 = (round(1000 * float(one), 1) for one in np.percentile(latest, (50, 90, 99)))
    return Latency(pods=len(latest), p50_ms=p50, p90_ms=p90, p99_ms=p99)
