"""Loans: keeps pods of a borrower within what the lender lends, and recalls capacity when the lender needs it.

Every domain that lends or borrows within limits has this plugin in addition to those of its profile; its args come from `loans` in the
configuration. For a borrower, it filters rows on loan and runs the background task that returns capacity. For a lender, its PostFilter
nominates a waiting pod to a row where pods on loan hold what it needs. The ledger then lends that much less there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from multisched.framework.background import BackgroundPorts
from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import ASSIGNED_POD_DELETE, Action, ClusterEvent, EventRegistration, Resource
from multisched.framework.introspection import PluginMetric
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.preemption import DryRun, GroupDryRun
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.loans.control import LoanControl
from multisched.plugins.loans.idle_demand import BATCH_RESOURCES, remark_on
from multisched.plugins.loans.lending import Lending
from multisched.plugins.loans.loan_ledger import (
    LoanLedger,
    nothing_lent,
    too_little,
    wanted_of,
    why_not_lent,
)
from multisched.plugins.loans.needs import Need
from multisched.plugins.loans.on_loan import Answers, OnLoan
from multisched.plugins.loans.pools import NO_POOL, NO_TRIAL, Pool, Trial
from multisched.plugins.loans.recalls import idle_room_factor, retries_of
from multisched.plugins.loans.terms import BORROWERS_ARG, LOANS

OPENED: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "LoanOpened")
"""A loan opened or lends more. The event has no pod, so other plugins requeue no pods for it."""
SHRUNK: Final = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_SCALE_DOWN, "AssignedPodScaleDown")
NODE_CHANGED: Final = ClusterEvent(
    Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL, "NodeChanged"
)
WAITS_FOR_LOAN: Final = "waits until capacity on loan is given back"
NO_ARGS: Final[Mapping[str, Any]] = {}

_TRIAL: Final[StateKey[Trial]] = StateKey("Loans/pods of borrowers added or removed in a trial")


class Loans:
    """The plugin of a domain that only lends: PostFilter and Reserve."""

    name = LOANS
    runs_before = "DefaultPreemption"
    resources_ignored_by_fit = frozenset(BATCH_RESOURCES)
    traits = Traits(reads_objects=(ObjectKind.POD_DISRUPTION_BUDGET,))

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        ledger = context.hold.register(LoanLedger(args.get(BORROWERS_ARG, ()), context.nodes))
        assert isinstance(ledger, LoanLedger), f"ledger {ledger.name} belongs to another plugin"
        self.ledger = ledger
        if ledger.foreign:
            context.hold.register(ledger.foreign)
        self._context = context
        loans = [loan for borrower in ledger.borrowers for loan in borrower.loans]
        self._may_recall = any(loan.lender == context.domain and loan.returns is not None for loan in loans)
        self._budgets = DisruptionBudgets(context.objects, context.victims)
        self._answers: Answers = {}
        self.lending = Lending(ledger, context, lambda: context.notify(OPENED))

    async def run(self, ports: BackgroundPorts) -> None:
        await self.lending.run(ports)

    def health(self, now_s: float) -> str:
        """See `framework.introspection.HealthPlugin`: why less is lent than possible."""
        return self.lending.problem

    def _pool(self, pod: Pod) -> Pool | None:
        """Returns the pod's pool (pods with the same borrower and kind of demand) if this domain is the borrower; else None."""
        pool = self.ledger.pool_of(pod)
        return pool if pool is not None and pool.borrower.domain == self._context.domain else None

    # -- the lender's pods -----------------------------------------------------------------------------------------

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Nominates the pod to the row where the eviction of pods on loan costs least (`OnLoan.costs`)."""
        if not self._may_recall or self._pool(pod) is not None:
            return PostFilterResult(Status.unschedulable())
        dry_run = refusals.dry_run()
        row = self._row_needed(pod, dry_run)
        if row is None:
            found = dry_run.displace(self._on_loan())
            if len(found.rows):
                row = int(found.rows[found.best()])
        if row is None:
            self.ledger.needs.drop(pod.uid)
            return PostFilterResult(Status.unschedulable())
        self.ledger.needs.add(pod, row, self.ledger.now_s)
        return PostFilterResult(SUCCESS, cycle.nodes.node(row).name)

    def _on_loan(self) -> OnLoan:
        return OnLoan(self.ledger, self._context.domain, self._budgets, self._answers)

    def _row_needed(self, pod: Pod, dry_run: DryRun) -> int | None:
        """Returns the row of the pod's recorded need, if the pod still fits there without the recallable pods; else None."""
        known = self.ledger.needs.of(pod.uid)
        if known is None or known.row not in dry_run.candidates():
            return None
        recallable = [one for one in self._context.nodes.pods_on(known.row) if self._is_recallable(one, known.row)]
        return known.row if dry_run.fits_without(known.row, recallable) else None

    def _is_recallable(self, pod: Pod, row: int) -> bool:
        loan = self.ledger.loan_of(pod, row)
        return loan is not None and loan.returns is not None and loan.lender == self._context.domain

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Records what the pods need on the rows where they would start together. They are not nominated: a later attempt places them."""
        if not self._may_recall or any(self._pool(pod) is not None for pod in pods):
            return PostFilterResult(Status.unschedulable())
        found = yield from dry_run.displace(self._on_loan())
        if found is None and self._are_met(pods):
            return PostFilterResult(Status.unschedulable(WAITS_FOR_LOAN))
        for pod in pods:
            self.ledger.needs.drop(pod.uid)
        if found is None or not found.victims:
            return PostFilterResult(Status.unschedulable())
        gang = self._context.gangs.key_of(pods[0].uid) or ""
        for pod, node in found.nominations:
            row = cycle.nodes.row_of(node)
            if row is not None:  # also on rows without victims: their capacity must not be lent meanwhile
                self.ledger.needs.add(pod, row, self.ledger.now_s, gang)
        return PostFilterResult(Status.unschedulable(WAITS_FOR_LOAN))

    def _are_met(self, pods: Sequence[Pod]) -> bool:
        """Reports whether the capacity that the pods need was returned, so that their next attempt can use it."""
        needs = [need for pod in pods if (need := self.ledger.needs.of(pod.uid)) is not None]
        return bool(needs) and not any(self._is_held(need) for need in needs)

    def _is_held(self, need: Need) -> bool:
        """Reports whether, on the row of a need, pods on loan hold more than they may of a resource that its pod requests."""
        rows = np.array([need.row], np.intp)
        return any(
            loan is not None and any(self.ledger.excess(pool, loan, name, rows)[0] for name in need.pod.requests)
            for number, pool in enumerate(self.ledger.pools)
            for loan in (self.ledger.loan_at(number, need.row),)
        )

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        if self.ledger.needs:
            self.ledger.needs.placed(pod.uid, cycle.nodes.row_of(node))
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        """Does nothing: the pod's next attempt records its need again."""

    # -- reports and state -----------------------------------------------------------------------------------------

    def export_state(self) -> object:
        """See `framework.introspection.StateExportPlugin`."""
        return self.ledger.export()

    def import_state(self, handed: object) -> None:
        if not self.ledger.is_adopted:  # domains share the ledger
            self.ledger.adopt(handed)

    def describe(self, pod: Pod, row: int) -> str:
        """See `framework.introspection.ExplainPlugin`."""
        from multisched.plugins.loans.figures import described

        return described(self.ledger, self._context, pod, row)

    def note_on_pending(self, pod: Pod, now_s: float) -> str:
        """See `framework.introspection.PendingNotePlugin`."""
        from multisched.plugins.loans.figures import note_on

        return note_on(self.ledger, self._context, pod)


class BorrowingLoans(Loans):
    """The plugin of a domain that borrows, and may lend, too: adds PreFilter, Filter, and the borrower's background task."""

    view = "loans"
    depends_on = Dependency.ROW_AND_CACHE_KEY
    traits = Traits(reads_objects=(ObjectKind.POD_DISRUPTION_BUDGET, ObjectKind.JOB))

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        super().__init__(context, args)
        self.control = LoanControl(self.ledger, context, lambda: context.notify(OPENED))
        self.reasons = ReasonTable(self.name)

    async def run(self, ports: BackgroundPorts) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self.lending.has_loans_with_return:
                tasks.create_task(super().run(ports))
            await self.control.run(ports)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult(SKIP) if self._pool(pod) is None else PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows on loan that lend too little, nothing to this kind of demand, or nothing at this time."""
        codes: Codes = np.zeros(len(rows), np.uint8)
        pool = self._pool(pod)
        if pool is None:
            return codes
        numbers = pool.loans_at(rows)
        codes[numbers == NO_POOL] = self._unresolvable(nothing_lent(is_idle=pool.is_idle))
        trial = cycle.state.find(_TRIAL) or NO_TRIAL
        for number, loan in enumerate(pool.loans):
            at = (numbers == number).nonzero()[0]
            if len(at) and loan.is_limited:
                codes[at] = self._codes(pool, number, pod, rows[at], trial)
        return codes

    def _codes(self, pool: Pool, number: int, pod: Pod, rows: Rows, trial: Trial) -> Codes | int:
        loan = pool.loans[number]
        if why := self.ledger.why_closed(pool, number):
            return self._unresolvable(why)
        demand = wanted_of(pod, loan)
        factor = self._room_factor(pool, pod)
        if why := why_not_lent(pod, loan):
            return self._unresolvable(why)
        codes: Codes = np.zeros(len(rows), np.uint8)
        for resource, amount in demand.items():
            if amount:
                lacking = self.ledger.room(pool, loan, resource, rows, trial) < factor * amount
                codes[lacking & (codes == 0)] = self.reasons.code(Code.UNSCHEDULABLE, too_little(loan, resource))
        return codes

    def _room_factor(self, pool: Pool, pod: Pod) -> int:
        """Returns the multiple of the pod's demand that must be free on a row."""
        return idle_room_factor(retries_of(pod, self._context.objects)) if pool.is_idle else 1

    def _unresolvable(self, reason: str) -> int:
        return self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reason)

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        return PodSensitivity((), self.ledger.is_used_by, self.ledger.with_borrowers, is_by_row=True)

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._count_in_trial(cycle, pod, other, row, 1)

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._count_in_trial(cycle, pod, other, row, -1)

    def _count_in_trial(self, cycle: CycleView, pod: Pod, other: Pod, row: int, sign: int) -> Status:
        """Counts a pod of a borrower that an overlay adds or removes. Always copies, since the cycle state is copied shallowly."""
        mine, pool = self._pool(pod), self.ledger.pool_of(other)
        if mine is not None and pool is not None and mine.is_idle == pool.is_idle:
            before = cycle.state.find(_TRIAL) or NO_TRIAL
            key = row, pool is mine
            amounts = Counter(before.get(key, {}))
            for name, amount in self.ledger.demand(other).items():
                amounts[name] += sign * amount
            cycle.state.write(_TRIAL, {**before, key: amounts})
        return SUCCESS

    def sign(self, pod: Pod) -> Hashable:
        pool = self._pool(pod)
        return () if pool is None else (self._room_factor(pool, pod), *sorted(self.ledger.demand(pod).items()))

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        return None if self._pool(pod) is None else SplitCacheKey(self.ledger.offers_version, None)

    def events_to_register(self) -> Sequence[EventRegistration]:
        return tuple(map(EventRegistration, (OPENED, NODE_CHANGED, ASSIGNED_POD_DELETE, SHRUNK)))

    def remarks_of_pod(self, pod: Pod) -> Sequence[str]:
        """See `framework.introspection.RemarkPlugin`."""
        found = remark_on(pod)
        return (found,) if found else ()

    def remarks_of_node(self, node: Node) -> Sequence[str]:
        return ()

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        from multisched.plugins.loans.figures import metrics_of

        return metrics_of(self.ledger, self.control.recalls, self._context.domain)

    def health(self, now_s: float) -> str:
        """See `framework.introspection.HealthPlugin`: loans that lend no node."""
        from multisched.plugins.loans.figures import health_of

        return "; ".join(filter(None, (health_of(self.ledger, self._context.domain), super().health(now_s))))

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from multisched.plugins.loans.figures import document_of

        document = document_of(self.ledger, self.control.recalls, self._context, query, ports.clock.now().timestamp())
        return lambda: document
