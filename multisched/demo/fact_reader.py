"""Reads the facts of a running demo: most of them at each call of `facts`, the slow ones (forecast, fix) in separate refreshes."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

import msgspec
import orjson

from multisched.demo.decisions import decision_of
from multisched.demo.facts import (
    Decision,
    DomainProgress,
    Facts,
    Forecast,
    Gang,
    Loan,
    Quota,
    Refused,
    ServicePeak,
    quantile,
)
from multisched.demo.placements import Placements
from multisched.demo.world import (
    BORROWER,
    GANG,
    IMAGE_CPU,
    IMAGES,
    NAMESPACE,
    OWNER,
    POD_CPU,
    REFUSED,
    World,
    gang_pods,
)
from multisched.framework.views import NoViewError, ViewQuery
from multisched.model.objects import CPU
from multisched.observe.explain_view import ExplainQuery, NotExplainedError
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.program import Program
from multisched.shell.telemetry import statistics_of
from multisched.whatif.explain_source import ProgramExplanations

logger = logging.getLogger(__name__)

RATE_WINDOW_S: Final = 2.0
DECISIONS_SHOWN: Final = 8
HOURS: Final = 24
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SHOWN: Final = "cpu"


class FactReader:
    """Collects all facts of one run."""

    def __init__(self, program: Program, world: World) -> None:
        self.placements = Placements()
        self._program = program
        self._world = world
        self._views = ProgramViews(program)
        self._explanations = ProgramExplanations(program)
        self._rates = _Rates()
        self._peaks: tuple[ServicePeak, ...] = ()
        self._forecast: Forecast | None = None
        self._fix = ""
        self._decisions: dict[str, Decision] = {}

    def look(self) -> None:
        """Records the pods bound since the last call."""
        self.placements.look(self._program)

    def facts(self, now_s: float, elapsed_s: float) -> Facts:
        """Returns the facts as of the last `look`; forecast and fix as of their last refresh."""
        return msgspec.structs.replace(
            self.scenario(),
            elapsed_s=elapsed_s,
            nodes=self._program.cache.nodes.node_count,
            domains=self._domains(now_s),
            forecast=self._forecast,
            decisions=self._latest_decisions(),
        )

    def scenario(self) -> Facts:
        """Returns only the gang, the quota, the loan and the refused pod."""
        return Facts(gang=self._gang(), quota=self._quota(), loan=self._loan(), refused=self._refused())

    def borrowed_node(self) -> tuple[str, int] | None:
        """Returns the node with most image jobs, and its free milli-CPU; None if no node has image jobs."""
        cache = self._program.cache
        on_loan = Counter(one.row for one in cache if one.pod.labels.get("app") == IMAGES and one.row >= 0)
        if not on_loan:
            return None
        row, table = max(on_loan, key=on_loan.__getitem__), cache.nodes
        return table.node(row).name, int(table.allocatable(CPU)[row] - table.requested(CPU)[row])

    # -- read at each look -----------------------------------------------------------------------------------------

    def _domains(self, now_s: float) -> tuple[DomainProgress, ...]:
        found = []
        for name, statistics in statistics_of(self._program).items():
            values: Any = statistics
            ordered = sorted(values["latencies_s"])
            found.append(
                DomainProgress(
                    name,
                    queued=sum(values["pending"].values()),
                    bound=values["bound"],
                    binds_per_s=self._rates.rate(name, now_s, values["bound"]),
                    p50_ms=1000 * quantile(ordered, 0.5),
                    p99_ms=1000 * quantile(ordered, 0.99),
                    conflicts_true=values["conflicts_true"],
                    conflicts_false=values["conflicts_false"],
                )
            )
        return tuple(found)

    def _gang(self) -> Gang:
        there = sum(bool(self._program.pods.uid_of(f"{NAMESPACE}/{name}")) for name in gang_pods(self._world))
        bound = self.placements.now[NAMESPACE, GANG]
        return Gang(f"{NAMESPACE}/{GANG}", self._world.gang_members, there, bound)

    def _quota(self) -> Quota:
        ever, now = self.placements.ever, self.placements.now
        borrowers = sum(pods for (namespace, _), pods in now.items() if namespace == BORROWER)
        owners = sum(pods for (namespace, _), pods in now.items() if namespace == OWNER)
        evicted = sum(pods for (namespace, _), pods in ever.items() if namespace == BORROWER) - borrowers
        world = self._world
        cpu = (borrowers * POD_CPU, owners * POD_CPU)
        return Quota(BORROWER, OWNER, world.total_cpu, world.min_cpu, *cpu, evicted)

    def _loan(self) -> Loan | None:
        group = NAMESPACE, IMAGES
        pods, ever = self.placements.now[group], self.placements.ever[group]
        return Loan(IMAGES, pods, pods * IMAGE_CPU, ever - pods) if ever else None

    def _refused(self) -> Refused | None:
        name = f"{NAMESPACE}/{REFUSED}"
        pod = self._program.pods.pending.get(self._program.pods.uid_of(name))
        worker = None if pod is None else self._program.router.worker_of(pod)
        entry = None if pod is None or worker is None else worker.queue.entry(pod.uid)
        return None if entry is None or not entry.message else Refused(name, entry.message, self._fix)

    def _latest_decisions(self) -> tuple[Decision, ...]:
        """Reads each decision once, soon after the bind, because less is recorded of a pod that has ended."""
        before, self._decisions = self._decisions, {}
        for bound in self.placements.latest(DECISIONS_SHOWN):
            uid = bound.pod.uid
            self._decisions[uid] = before.get(uid) or decision_of(self._program, bound)
        return tuple(self._decisions.values())

    # -- slow reads ------------------------------------------------------------------------------------------------

    async def refresh_fix(self) -> None:
        """Searches for the smallest change that makes the refused pod fit."""
        try:
            view = await self._explanations.pod(ExplainQuery(NAMESPACE, REFUSED, with_fixes=True))
        except NotExplainedError as error:
            logger.debug("no fix", extra={"reason": str(error)})
            return
        if view.fixes:
            self._fix = f"{view.fixes[0].text}; it is then placed on {view.fixes[0].node}"

    async def refresh_forecast(self) -> None:
        """Reads the predicted peaks of nodes, and once those of services."""
        try:
            if not self._peaks:
                self._peaks = await self._service_peaks()
            nodes = (await self._document("nodes"))["nodes"]
        except NoViewError as error:
            logger.debug("no forecast", extra={"reason": str(error)})
            return
        shown = [
            (node, row) for node in nodes for row in node["dimensions"] if row["dimension"] == _SHOWN and row["share"]
        ]
        if not shown:
            return
        node, row = max(shown, key=lambda one: float(one[1]["share"]))
        mean = sum(float(row["share"]) for _, row in shown) / len(nodes)
        self._forecast = Forecast(
            self._peaks, node["node"], _SHOWN, row["at"], float(row["share"]), mean, self._mean_requested(nodes)
        )

    def _mean_requested(self, nodes: list[dict[str, Any]]) -> float:
        table = self._program.cache.nodes
        rows = [row for one in nodes if (row := table.row_of(one["node"])) is not None]
        requested, allocatable = table.requested(CPU)[rows], table.allocatable(CPU)[rows]
        return float((requested / allocatable).mean()) if rows else 0.0

    async def _service_peaks(self) -> tuple[ServicePeak, ...]:
        listed = (await self._document("services"))["services"]
        found = []
        for row in listed:
            if row["dimension"] != _SHOWN:
                continue
            week = await self._document("service", name=row["service"])
            curve = next(one["peak"] for one in week["dimensions"] if one["dimension"] == _SHOWN)
            per_day = len(curve) // len(_DAYS)
            day = _DAYS.index(row["at"].partition(" ")[0])
            hours = curve[day * per_day : (day + 1) * per_day : max(1, per_day // HOURS)]
            found.append(ServicePeak(row["service"], row["at"], float(row["peak"]), tuple(map(float, hours))))
        return tuple(sorted(found, key=lambda one: -one.cores))

    async def _document(self, view: str, **options: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(await self._views.document("forecast", ViewQuery(view, options)))
        return found


class _Rates:
    """Binds per second of each domain over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._counts: dict[str, list[tuple[float, int]]] = {}

    def rate(self, domain: str, now_s: float, bound: int) -> float:
        counts = self._counts.setdefault(domain, [])
        counts.append((now_s, bound))
        while len(counts) > 2 and now_s - counts[1][0] >= RATE_WINDOW_S:
            del counts[0]
        since_s, before = counts[0]
        return (bound - before) / (now_s - since_s) if now_s > since_s else 0.0
