"""SlicedLoans: the plugin Loans of a domain whose loans reach another process.

For the lender, Filter keeps the capacity free that borrowers may hold, and PostFilter recalls it. For the borrower, Filter accepts rows by
the lender's offers, and Permit holds a pod until its requests are claimed. The protocol is in `plugins/slices`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from multisched.framework.background import BackgroundPorts
from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PermitResult, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.preemption import DryRun
from multisched.framework.slice_writes import SlicePorts
from multisched.framework.status import SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.loans.loans import NO_ARGS, OPENED, BorrowingLoans
from multisched.plugins.loans.slices.borrower_side import BorrowerSide
from multisched.plugins.loans.slices.foreign_reports import ForeignReports
from multisched.plugins.loans.slices.lender_side import LenderSide
from multisched.plugins.loans.slices.slice_rows import NO_SLICE_TRIAL, SliceTrial, kept_for_borrowers, requests_of
from multisched.plugins.loans.slices.unsliced_needs import unsliced_need
from multisched.plugins.slices.driver import SliceDriver

CLAIM_WAIT_S: Final = 10.0
"""Timeout of a pod that waits at Permit for a claim."""
ROWS_TRIED_MAX: Final = 8
"""Maximum number of rows that PostFilter tries for one pod of the lender."""

_TRIAL: Final[StateKey[SliceTrial]] = StateKey("Loans/pods of borrowers of other processes added or removed in a trial")


class SlicedLoans(BorrowingLoans):
    """A domain that lends to, or borrows from, domains that other processes may lead."""

    traits = Traits(reads_objects=(ObjectKind.POD_DISRUPTION_BUDGET, ObjectKind.JOB, ObjectKind.SLICE_SET))

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        super().__init__(context, args)
        ledger, slices = self.ledger, self.ledger.slices
        self._keys = slices.keys_of(context.domain)
        self._lending = [LenderSide(key, ledger) for key in self._keys]
        self._borrowing = [BorrowerSide(key, ledger) for key in slices.pool_of if key[1] == context.domain]
        self.driver = SliceDriver(
            context,
            slices,
            self._lending,
            self._borrowing,
            ForeignReports(ledger),
            on_more=lambda: context.notify(OPENED),
            needs=lambda: ledger.needs.version,
            plugin=self.name,
        )
        self._is_returned = False
        """True in a trial in which borrowers have returned everything."""

    # -- the protocol ----------------------------------------------------------------------------------------------

    async def run(self, ports: BackgroundPorts) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.driver.run(ports))
            await super().run(ports)

    async def own_slices(self, ports: SlicePorts) -> None:
        """See `framework.slice_writes.SlicingPlugin`."""
        await self.driver.own(ports)

    def settle_slices(self) -> None:
        self.driver.settle()

    # -- pods of the lender ----------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult() if self._keys else super().pre_filter(cycle, pod)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """The same as `BorrowingLoans.filter`; in addition refuses rows whose free capacity borrowers of other processes may hold."""
        codes = super().filter(cycle, pod, rows)
        if not self._keys or self._is_returned:
            return codes
        trial = cycle.state.find(_TRIAL) or NO_SLICE_TRIAL
        for resource, amount in requests_of(pod).items():
            kept = self.ledger.slices.kept(self._keys, resource, rows, trial)
            if not kept.any():
                continue
            left = cycle.nodes.allocatable(resource).take(rows) - cycle.nodes.requested(resource).take(rows)
            lacking = (kept > 0) & (left - kept < amount)
            codes[lacking & (codes == 0)] = self.reasons.code(Code.UNSCHEDULABLE, kept_for_borrowers(resource))
        return codes

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        self._note_in_trial(cycle, other, row, 1)
        return super().add_pod(cycle, pod, other, row)

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """Keeps the requests of a removed borrower's pod reserved: they are free only when the borrower returns them."""
        self._note_in_trial(cycle, other, row, -1)
        return super().remove_pod(cycle, pod, other, row)

    def _note_in_trial(self, cycle: CycleView, other: Pod, row: int, sign: int) -> None:
        pool = self.ledger.pool_of(other) if self._keys else None
        for key in self._keys if pool is not None else ():
            if self.ledger.slices.pool_of[key] is pool:
                before = cycle.state.find(_TRIAL) or NO_SLICE_TRIAL
                amounts = Counter(before.get((row, key), {}))
                for resource, amount in requests_of(other).items():
                    amounts[resource] += sign * amount
                cycle.state.write(_TRIAL, {**before, (row, key): amounts})

    def sign(self, pod: Pod) -> Hashable:
        return super().sign(pod), tuple(requests_of(pod).values()), bool(unsliced_need(pod))

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        return SplitCacheKey(self.ledger.offers_version, None) if self._keys else super().cache_key(cycle, pod)

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Nominates a pod of the lender to a row where it fits after borrowers have returned capacity."""
        if not self._may_recall or self._pool(pod) is not None or not self.driver.lent:
            return super().post_filter(cycle, pod, refusals)
        row = self._row_to_recall(pod, refusals.dry_run())
        if row is None:
            return super().post_filter(cycle, pod, refusals)
        self.ledger.needs.add(pod, row, self.ledger.now_s)
        self.driver.wake()
        return PostFilterResult(SUCCESS, cycle.nodes.node(row).name)

    def _row_to_recall(self, pod: Pod, dry_run: DryRun) -> int | None:
        """Returns the best row on which the pod fits after pods of sliced loans have ended; None if there is none.

        Prefers rows with enough free capacity that is only offered, then the row of the pod's known need, then rows with fewer such pods.
        """
        rows = np.intersect1d(dry_run.candidates(), self._recallable_rows())
        known, nodes = self.ledger.needs.of(pod.uid), self._context.nodes
        is_enough, is_free = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        for resource, amount in requests_of(pod).items():
            _, unused = self.ledger.used_by_others(resource, rows)
            needed = self.ledger.needs.at(resource, rows)
            if known is not None:
                needed[rows == known.row] -= requests_of(known.pod)[resource]
            is_enough &= unused - needed >= amount
            free = nodes.allocatable(resource).take(rows) - nodes.requested(resource).take(rows)
            is_free &= free - needed >= amount
        pods = sum(
            (side.pods_on(rows) for side in self._lending if side in self.driver.lent), np.zeros(len(rows), np.int64)
        )
        is_other = np.zeros(len(rows), np.bool_) if known is None else rows != known.row
        first = np.lexsort((pods, is_other, ~is_free))
        order = rows[first[is_enough[first]]].tolist()
        with self._as_if_returned():
            for row in order[:ROWS_TRIED_MAX]:
                recallable = [one for one in self._context.nodes.pods_on(row) if self._is_recallable(one, row)]
                if dry_run.fits_without(row, recallable):
                    return int(row)
        return None

    def _recallable_rows(self) -> Rows:
        """Returns the rows of sliced loans whose borrower returns what is recalled."""
        found = [
            (pool.loan_of == number).nonzero()[0]
            for side in self.driver.lent
            for pool in (self.ledger.slices.pool_of[side.key],)
            for number, loan in enumerate(pool.loans)
            if loan.lender == self._context.domain and loan.returns is not None
        ]
        return np.unique(np.concatenate([np.zeros(0, np.intp), *found])).astype(np.intp)

    @contextmanager
    def _as_if_returned(self) -> Iterator[None]:
        self._is_returned = True
        try:
            yield
        finally:
            self._is_returned = False

    # -- pods of the borrower --------------------------------------------------------------------------------------

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        """Holds a pod on a sliced row until enough of it is claimed."""
        waiting = self.ledger.slices.waiting.get(pod.uid)
        if waiting is None:
            return PermitResult(SUCCESS)
        key = self.ledger.slices.uid_of(waiting.row)
        side = next((side for side in self._borrowing if side.is_lent(key)), None)
        if side is None:
            return PermitResult(SUCCESS)
        if side.may_use(key, waiting.amount, self.ledger.now_s):
            side.claim(pod.uid)
            return PermitResult(SUCCESS)
        self.driver.wake()
        return PermitResult(Status(Code.WAIT), CLAIM_WAIT_S)

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self.ledger.slices.forget_claim(pod.uid)
        super().unreserve(cycle, pod, node)

    # -- what people see -------------------------------------------------------------------------------------------

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        shown, slices = await super().show(query, ports), self.driver.document()
        return lambda: {**shown(), "slices": slices} if query.name == "now" else shown()

    def health(self, now_s: float) -> str:
        return "; ".join(filter(None, (super().health(now_s), self.driver.health())))
