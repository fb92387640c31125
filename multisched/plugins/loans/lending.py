"""The background task of a lending domain: computes the reserve for its own growth, and the idle capacity that it offers.

Runs every 30 s. Without a recent measurement, no further idle capacity is lent, and held capacity is not recalled. If the forecast is
missing or too old, the offer is computed from the current use and the usual error of that. `/readyz?verbose` reports both, `multisched
loans` only a missing measurement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.measures import MeterError, PodUse
from multisched.framework.node_view import Float64, Int64, Rows
from multisched.framework.use_peaks import UsePeaks
from multisched.model.objects import CPU, MEMORY, Pod
from multisched.plugins.loans.idle_demand import idle_demand
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.offers import STEP_S, RequestHistory, UseOutlook, idle_offer, shared_out
from multisched.plugins.loans.pools import Pool
from multisched.plugins.loans.terms import LoanTerms

logger = logging.getLogger(__name__)

STALE_MEASUREMENT_S: Final = 300.0
STALE_FORECAST_S: Final = 3 * 86_400.0
NODES_PER_STEP: Final = 200
USES_PER_STEP: Final = 5_000

RETRY_INCREASE_MIN: Final = {CPU: 100, MEMORY: 128 * 2**20}
"""Resource -> the smallest increase on a row for which refused pods are retried; for other resources it is 1."""

IdlePods = Mapping[int, Sequence[Pod]]
"""Row -> pods that use idle capacity."""
NO_PODS: Final[IdlePods] = {}
PodName = tuple[str, str]
Measured = Mapping[str, Float64]
"""Resource -> float64[rows of the table]: the use of all pods except those on idle capacity."""


class Lending:
    """The lending of one domain. Writes to the ledger that it shares with the borrowers."""

    def __init__(self, ledger: LoanLedger, context: PluginContext, on_more: Callable[[], None]) -> None:
        """`on_more`: called when refused pods may fit."""
        self._ledger = ledger
        self._context = context
        self._peaks = context.shared.of(UsePeaks)
        self._on_more = on_more
        self._requests: dict[tuple[int, int, str], RequestHistory] = {}
        """(pool, loan, resource) -> history of the lender's requests on the rows of the loan."""
        self._outlooks: dict[tuple[int, int, str], UseOutlook] = {}
        self._measured_s = 0.0
        self._measured: Measured = {}
        self.problem = ""
        """Why less is offered than possible, as a message; empty if there is no problem."""

    @property
    def has_loans_with_return(self) -> bool:
        """Reports whether a loan of the domain has return terms; other loans need no background task."""
        return any(True for _ in self._loans())

    async def run(self, ports: BackgroundPorts) -> None:
        while True:
            problems: dict[str, None] = {}
            now_s = ports.clock.now().timestamp()
            if any(loan.is_idle for _, _, loan in self._loans()):
                await self._measure(now_s, problems)
            for pool, number, loan in list(self._loans()):
                idle_pods = await self._idle_pods(pool, number) if loan.is_idle else NO_PODS
                rows = (pool.loan_of == number).nonzero()[0]
                if len(rows) and loan.is_idle:
                    self._offer(pool, number, loan, rows, idle_pods, now_s, problems)
                elif len(rows):
                    self._reserve(pool, number, loan, rows, now_s, problems)
                await asyncio.sleep(0)
            self.problem = "; ".join(problems)
            await asyncio.sleep(STEP_S)

    def _loans(self) -> Sequence[tuple[Pool, int, LoanTerms]]:
        return [
            (pool, number, loan)
            for pool in self._ledger.pools
            for number, loan in enumerate(pool.loans)
            if loan.lender == self._context.domain and loan.returns is not None
        ]

    # -- capacity that no pod requests -----------------------------------------------------------------------------------

    def _reserve(
        self, pool: Pool, number: int, loan: LoanTerms, rows: Rows, now_s: float, problems: dict[str, None]
    ) -> None:
        """Sets the reserve of each row for the lender's growth within the notice and grace periods."""
        assert loan.returns is not None, "a loan without a return has no reserve"
        within_s = loan.returns.notice_s + loan.returns.grace_s
        is_less = False
        for resource in sorted(loan.resources):
            used, unused = self._ledger.used_by_others(resource, rows)
            key = self._ledger.pools.index(pool), number, resource
            history = self._requests.setdefault(key, RequestHistory())
            history.add(float(used.sum()))
            if not history.is_known:
                problems[f"loan {loan.name}: no reserve for growth, with less than an hour of history"] = None
            reserve = np.zeros(len(pool.loan_of), np.int64)
            reserve[rows] = shared_out(history.rise(within_s), unused)
            before = pool.at(pool.reserve, resource, rows)
            if self._ledger.set_rows(pool.reserve, pool, resource, rows, reserve[rows]):
                is_less |= is_worth_a_try(resource, before - reserve[rows])
        if is_less:
            self._on_more()

    # -- idle capacity -----------------------------------------------------------------------------------------------------

    async def _measure(self, now_s: float, problems: dict[str, None]) -> None:
        """Reads the current use of pods. An earlier measurement stays valid for STALE_MEASUREMENT_S."""
        measures = self._context.measures
        if measures is None:
            return
        try:
            uses = await measures.load().pods()
        except MeterError as error:
            problems[f"the use of pods cannot be measured: {error}"] = None
            return
        self._measured = await self._by_row(uses)
        self._measured_s = now_s

    async def _by_row(self, uses: Sequence[PodUse]) -> Measured:
        row_of: dict[PodName, int] = {}
        nodes = self._context.nodes
        rows = np.unique(
            np.concatenate([(p.loan_of == n).nonzero()[0] for p, n, loan in self._loans() if loan.is_idle])
        )
        for count, row in enumerate(rows.tolist()):
            for pod in nodes.pods_on(row):
                if not idle_demand(pod):
                    row_of[pod.namespace, pod.name] = row
            if count % NODES_PER_STEP == NODES_PER_STEP - 1:
                await asyncio.sleep(0)
        size = int(rows.max(initial=-1)) + 1
        cpu: Float64 = np.zeros(size)
        memory: Float64 = np.zeros(size)
        for count, use in enumerate(uses):
            found = row_of.get((use.namespace, use.pod))
            if found is not None:
                cpu[found] += use.cpu_cores * 1000.0
                memory[found] += use.memory_bytes
            if count % USES_PER_STEP == USES_PER_STEP - 1:
                await asyncio.sleep(0)
        return {CPU: cpu, MEMORY: memory}

    def _offer(
        self,
        pool: Pool,
        number: int,
        loan: LoanTerms,
        rows: Rows,
        idle_pods: IdlePods,
        now_s: float,
        problems: dict[str, None],
    ) -> None:
        """Sets how much idle capacity of each row may be used. `idle_pods`: pods whose use does not count."""
        is_stale = now_s - self._measured_s > STALE_MEASUREMENT_S
        is_more = self._ledger.set_frozen(pool, number, is_frozen=is_stale) and not is_stale
        if is_stale:
            problems[f"loan {loan.name}: nothing new is lent, because there is no current measurement"] = None
            return
        for resource in sorted(loan.resources & self._measured.keys()):
            fresh = self._idle_offer(pool, number, loan, resource, rows, idle_pods, now_s, problems)
            before = pool.at(pool.offer, resource, rows)
            if self._ledger.set_rows(pool.offer, pool, resource, rows, fresh):
                is_more |= is_worth_a_try(resource, fresh - before)
        if is_more:
            self._on_more()

    def _idle_offer(
        self,
        pool: Pool,
        number: int,
        loan: LoanTerms,
        resource: str,
        rows: Rows,
        idle_pods: IdlePods,
        now_s: float,
        problems: dict[str, None],
    ) -> Int64:
        assert loan.returns is not None, "idle capacity is lent with a return only"
        nodes, measured = self._context.nodes, self._measured[resource]
        allocatable = nodes.allocatable(resource).take(rows)
        used = np.where(rows < len(measured), measured.take(rows, mode="clip"), 0.0)
        key = self._ledger.pools.index(pool), number, resource
        return_s = loan.returns.notice_s + loan.returns.grace_s + STEP_S
        outlook = self._outlooks.setdefault(key, UseOutlook(return_s))
        predicted = self._predicted(resource, rows, idle_pods, now_s, outlook.ahead_s)
        if predicted is None:
            problems[f"loan {loan.name}: no forecast of {resource}; the offer follows from the current use alone"] = (
                None
            )
        names = tuple(nodes.node(row).name for row in rows.tolist())
        needs = outlook.needs(names, allocatable, used, predicted)
        limit: Float64 = allocatable * np.float64(loan.threshold_percent / 100.0) - loan.headroom.get(resource, 0)
        return idle_offer(limit, needs, self._ledger.held_idle(resource, rows))

    def _predicted(
        self, resource: str, rows: Rows, idle_pods: IdlePods, now_s: float, ahead_s: Iterable[float]
    ) -> list[Float64] | None:
        source = self._peaks.source
        if source is None:
            return None
        found = []
        for within_s in ahead_s:
            one = source.predicted_use(resource, rows, now_s, now_s + within_s, idle_pods)
            if one is None or now_s - one.learned_s > STALE_FORECAST_S:
                return None
            found.append(one.amounts)
        return found

    async def _idle_pods(self, pool: Pool, number: int) -> IdlePods:
        """Returns row -> pods that use idle capacity, for rows of the loan with pods of the pool. Yields to other tasks every
        NODES_PER_STEP rows, because there may be 100,000 rows or pods.
        """
        rows, found = (pool.loan_of == number).nonzero()[0], dict[int, list[Pod]]()
        for count, row in enumerate(rows[self._ledger.has_pods(pool, rows)].tolist(), 1):
            found[row] = [pod for pod in self._context.nodes.pods_on(row) if idle_demand(pod)]
            if count % NODES_PER_STEP == 0:
                await asyncio.sleep(0)
        return found


def is_worth_a_try(resource: str, more: Int64) -> bool:
    """Reports whether the increase of any row, int64[rows], is large enough to retry refused pods."""
    return bool((more >= RETRY_INCREASE_MIN.get(resource, 1)).any())
