"""LoanLedger: the amounts that pods of borrowers hold per row, and the amounts that they may hold.

One per process, shared by lenders and borrowers. The limit of a row is computed when it is read: from the requests of the lender's and of
foreign pods, from what the background tasks set last (offers of idle capacity, reserves, open loans), and from the needs of the lender's
pending pods. So lending stops in the same step in which the lender takes capacity.

Written by the cache and commit (`framework.ledger.SummingLedger`), by PostFilter of the lender (needs) and by the background tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from multisched.framework.node_view import Bools, Int64, NodeView, Rows
from multisched.model.objects import PODS, Node, Pod
from multisched.plugins.loans.foreign_pods import ForeignPods
from multisched.plugins.loans.handed import Handed, handed_by_node
from multisched.plugins.loans.idle_demand import BATCH_RESOURCES, IDLE_REQUEST, idle_demand
from multisched.plugins.loans.needs import Needs
from multisched.plugins.loans.pools import NO_POOL, NO_TRIAL, OWN, Held, Pool, Trial, at_rows, grown_to
from multisched.plugins.loans.slices.slice_rows import SliceRows
from multisched.plugins.loans.slices.unsliced_needs import unsliced_need
from multisched.plugins.loans.terms import Borrower, LoanTerms


class LoanLedger:
    """Implements `SummingLedger` and `AnnotatedLedger` of `framework.ledger`."""

    name = "loans"
    annotations = frozenset({IDLE_REQUEST})
    written: frozenset[str] = frozenset()

    def __init__(self, borrowers: Sequence[Borrower], nodes: NodeView) -> None:
        self.borrowers = tuple(borrowers)
        self.nodes = nodes
        self.pools = [Pool(one, is_idle=is_idle) for one in borrowers for is_idle in (False, True)]
        self._first_of = {name: 2 * number for number, one in enumerate(borrowers) for name in one.scheduler_names}
        """schedulerName -> index of its pool of requests; the pool of idle demand follows."""
        self._held: dict[str, Held] = {}
        self.slices = SliceRows(self.pools, nodes)
        self.needs = Needs()
        self.foreign = ForeignPods(borrowers)
        self._offers_version = 0
        self.loans_version = 0
        """Increases when a row joins or leaves a loan."""
        self._row_version: Counter[int] = Counter()
        self.is_adopted = False
        """True after `adopt`."""
        self._handed: dict[str, Handed] = {}
        """Node -> the state of its row in the program of which this one is a copy."""
        self.now_s = 0.0
        """Epoch seconds, last set by the background task."""

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def is_used_by(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name in self._first_of or self.slices.is_user(pod)

    @property
    def offers_version(self) -> int:
        """Increases when limits change for other reasons than a change of pods on the row."""
        return self._offers_version + self.needs.version + self.slices.version

    def version(self, row: int) -> int:
        return self.offers_version + self._row_version[row]

    def fits(self, pod: Pod, row: int) -> str:
        """Returns why the row's loan has no room for the pod, as a message; empty if it has room or the row is not on loan."""
        return self.refusal(pod, row)

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Returns no annotations for the pod's binding."""
        if pod.uid not in self._held:
            self._add(pod, row)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        known = self._held.get(pod.uid)
        if known is not None:
            if known == self._hold_of(pod, row):
                return
            self.release(pod.uid)
        self._add(pod, row)

    def release(self, uid: str) -> None:
        known = self._held.pop(uid, None)
        if known is not None:
            self._count(known, -1)
            self.slices.released(uid)

    def set_node(self, row: int, node: Node | None) -> None:
        for pool in self.pools:
            self._grow(pool, row)
            if pool.set_loan(row, OWN if node is None else _loan_number(pool, node)):
                self._offers_version += 1
                self.loans_version += 1
        self.slices.set_node(row, node)
        if node is None:
            self.needs.drop_row(row)
        elif self._handed:
            self._adopt(row, node.name)

    def held(self) -> Mapping[str, object]:
        return self._held

    def sums(self, row: int) -> object:
        return [
            (number, name, amount)
            for number, pool in enumerate(self.pools)
            for name in sorted(pool.held)
            if row < len(pool.held[name]) and (amount := int(pool.held[name][row]))
        ]

    def recount(self, row: int) -> None:
        """Computes the sums of the row again from its pods."""
        for pool in self.pools:
            for column in pool.held.values():
                if row < len(column):
                    column[row] = 0
            if row < len(pool.pods):
                pool.pods[row] = 0
        for one in self._held.values():
            if one.row == row:
                self._count(one, 1)

    def empty_copy(self) -> LoanLedger:
        return LoanLedger(self.borrowers, self.nodes)

    # -- holds -----------------------------------------------------------------------------------------------------

    def pool_of(self, pod: Pod) -> Pool | None:
        """Returns the pool that counts the pod; None if the pod belongs to no borrower."""
        first = self._first_of.get(pod.spec.scheduler_name)
        return None if first is None else self.pools[first + bool(idle_demand(pod))]

    def demand(self, pod: Pod) -> Mapping[str, int]:
        """Returns resource -> amount that the pod takes from its pool."""
        return idle_demand(pod) or pod.requests

    def loan_of(self, pod: Pod, row: int) -> LoanTerms | None:
        """Returns the loan by which the pod may use the row; None if the pod belongs to no borrower or the row is not on loan to it."""
        pool = self.pool_of(pod)
        return None if pool is None else self.loan_at(self.pools.index(pool), row)

    def loan_at(self, pool: int, row: int) -> LoanTerms | None:
        """Returns the loan by which pods of the pool of this number use the row; None if it is not on loan to them."""
        found = self.pools[pool]
        number = int(found.loan_of[row]) if row < len(found.loan_of) else OWN
        return found.loans[number] if number >= 0 else None

    def with_borrowers(self, rows: Rows) -> Bools:
        """Returns bool[rows]: rows with pods of any borrower."""
        found: Bools = np.zeros(len(rows), np.bool_)
        for pool in self.pools:
            found |= at_rows(pool.pods, rows) > 0
        return found

    def has_borrowers(self, row: int) -> bool:
        """Reports whether pods of any borrower are on the row."""
        return any(row < len(pool.pods) and pool.pods[row] for pool in self.pools)

    def hold(self, uid: str) -> Held | None:
        return self._held.get(uid)

    def holders(self, pool: Pool, row: int) -> list[str]:
        """Returns the uids of the pods of the pool on the row. Reads all pods of the row."""
        number = self.pools.index(pool)
        on_row = (pod.uid for pod in self.nodes.pods_on(row))
        return [uid for uid in on_row if (held := self._held.get(uid)) is not None and held.pool == number]

    def _hold_of(self, pod: Pod, row: int) -> Held:
        idle = idle_demand(pod)
        number = self._first_of[pod.spec.scheduler_name] + bool(idle)
        counted = self.pools[number].resources
        amounts = {name: amount for name, amount in (idle or pod.requests).items() if amount and name in counted}
        return Held(row, number, amounts, bool(pod.node))

    def _add(self, pod: Pod, row: int) -> None:
        if pod.spec.scheduler_name not in self._first_of:
            return  # it only leaves room for what slices reserve
        held = self._held[pod.uid] = self._hold_of(pod, row)
        self._count(held, 1)
        self.slices.added(pod, held, self.pools[held.pool])

    def _count(self, held: Held, sign: int) -> None:
        pool, row = self.pools[held.pool], held.row
        self._grow(pool, row)
        for name, amount in held.amounts.items():
            pool.column(pool.held, name)[row] += sign * amount
        pool.pods[row] += sign
        self._row_version[row] += 1
        self.slices.touch(row)

    def why_closed(self, pool: Pool, number: int) -> str:
        """Returns why a loan lends nothing at present; empty if it may lend something."""
        lender = pool.loans[number].lender
        if not pool.is_open[number]:
            return f"the loan from {lender} is closed at this time"
        return f"{lender} lends nothing new while its use is not measured" if pool.is_frozen[number] else ""

    def set_frozen(self, pool: Pool, number: int, *, is_frozen: bool) -> bool:
        """Sets `Pool.is_frozen`. Returns True if it changed."""
        if pool.is_frozen[number] == is_frozen:
            return False
        pool.is_frozen[number] = is_frozen
        self._offers_version += 1
        return True

    def _grow(self, pool: Pool, row: int) -> None:
        pool.pods, pool.loan_of = grown_to(pool.pods, row), grown_to(pool.loan_of, row, OWN)

    # -- what may be held ------------------------------------------------------------------------------------------

    def room(self, pool: Pool, loan: LoanTerms, resource: str, rows: Rows, trial: Trial = NO_TRIAL) -> Int64:
        """Returns int64[rows]: the amount that pods of the pool may hold there in addition.

        `rows`: rows of this loan. `trial`: the difference that an overlay makes to the amounts of borrowers' pods. Other pods count as in
        the table even if the overlay removes them, so that a borrower gains nothing by evicting pods of the lender.
        """
        mine = pool.held_at(resource, rows)
        others = None if loan.is_sliced else self._all_held(pool.is_idle, resource, rows) - mine
        for (row, is_mine), amounts in trial.items():
            counted = mine if is_mine else others
            if counted is not None:
                counted[rows == row] += amounts.get(resource, 0)
        if others is None or pool.is_idle:
            room: Int64 = pool.at(pool.offer, resource, rows) - mine - (0 if others is None else others)
            return room
        unused = self._left_by_lender(resource, rows)
        limit = self._limit(pool, loan, resource, rows, unused)
        found: Int64 = np.minimum(limit - mine, unused - mine - others)
        return found

    def excess(self, pool: Pool, loan: LoanTerms, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: the amount that pods of the pool hold beyond their limit; at least 0.

        If several borrowers together hold too much, the last one in the configuration returns capacity first.
        """
        mine = pool.held_at(resource, rows)
        before = np.zeros(len(rows), np.int64)
        for other in self.pools[: self.pools.index(pool)]:
            if other.is_idle == pool.is_idle and not loan.is_sliced:
                before += other.held_at(resource, rows)
        if pool.is_idle or loan.is_sliced:
            if pool.is_frozen[pool.loans.index(loan)]:
                return np.zeros(len(rows), np.int64)
            allowed = pool.at(pool.offer, resource, rows) - before
        else:
            unused = self._left_by_lender(resource, rows)
            allowed = np.minimum(self._limit(pool, loan, resource, rows, unused), unused - before)
        found: Int64 = np.minimum(mine, np.maximum(0, mine - np.maximum(0, allowed)))
        return found

    def _limit(self, pool: Pool, loan: LoanTerms, resource: str, rows: Rows, unused: Int64) -> Int64:
        """Returns int64[rows]: the part of `unused` that the loan allows the pool to hold."""
        share = unused if loan.share_percent == 100 else np.maximum(0, unused) * loan.share_percent // 100
        limit: Int64 = share - loan.headroom.get(resource, 0) - pool.at(pool.reserve, resource, rows)
        if loan.foreign_percent:
            limit = limit - self.foreign.kept(loan, resource, rows, self.nodes.allocatable(resource).take(rows))
        return limit

    def lendable(self, pool: Pool, loan: LoanTerms, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: the amount that the loan allows the pool to hold, without regard to other borrowers; may be negative."""
        unused = self._left_by_lender(resource, rows)
        found: Int64 = np.minimum(self._limit(pool, loan, resource, rows, unused), unused)
        return found

    def held_idle(self, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: the idle capacity that pods of all borrowers hold."""
        return self._all_held(True, resource, rows)

    def _left_by_lender(self, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: allocatable minus the requests of all pods that are not on loan, and of the lender's pending pods that need
        the row.
        """
        _, unused = self.used_by_others(resource, rows)
        return unused - self.needs.at(resource, rows)

    def _all_held(self, is_idle: bool, resource: str, rows: Rows) -> Int64:
        total: Int64 = np.zeros(len(rows), np.int64)
        for pool in self.pools:
            if pool.is_idle == is_idle and (resource in pool.held or resource == PODS):
                total = total + pool.held_at(resource, rows)
        return total

    def refusal(self, pod: Pod, row: int) -> str:
        """Returns why the pod may not be placed on the row; empty if it may."""
        if refusal := self.slices.refusal_of_user(pod, row) if self.slices.is_user(pod) else "":
            return refusal
        pool = self.pool_of(pod)
        if pool is None:
            return ""
        rows = np.array([row], np.intp)
        number = int(pool.loans_at(rows)[0])
        if number == OWN:
            return ""
        if number == NO_POOL:
            return nothing_lent(is_idle=pool.is_idle)
        loan = pool.loans[number]
        if not loan.is_limited:
            return ""
        if why := self.why_closed(pool, number):
            return why
        if why := why_not_lent(pod, loan):
            return why
        for resource, amount in wanted_of(pod, loan).items():
            if amount and self.room(pool, loan, resource, rows)[0] < amount:
                return too_little(loan, resource)
        return ""

    # -- what the background tasks and the lender's PostFilter set ---------------------------------------------------

    def set_open(self, pool: Pool, number: int, *, is_open: bool) -> bool:
        """Opens or closes a loan. Returns True if its state changed."""
        if pool.is_open[number] == is_open:
            return False
        pool.is_open[number] = is_open
        self._offers_version += 1
        return True

    def used_by_others(self, resource: str, rows: Rows) -> tuple[Int64, Int64]:
        """Returns int64[rows] twice: the requests of pods that are not on loan, and allocatable minus these."""
        used = self.nodes.requested(resource).take(rows) - self._all_held(False, resource, rows)
        unused: Int64 = self.nodes.allocatable(resource).take(rows) - used
        return used, unused

    def set_rows(self, columns: dict[str, Int64], pool: Pool, resource: str, rows: Rows, amounts: Int64) -> bool:
        """Sets `reserve` or `offer` of some rows. Returns True if an amount changed."""
        column = pool.column(columns, resource)
        if np.array_equal(column.take(rows), amounts):
            return False
        column[rows] = amounts
        self._offers_version += 1
        return True

    def export(self) -> object:
        """Returns the state that background tasks and pending pods have set, for `adopt`."""
        handed = handed_by_node(self.pools, self.slices, self.needs, self.nodes)
        return handed, [(tuple(pool.is_open), tuple(pool.is_frozen)) for pool in self.pools]

    def adopt(self, handed: object) -> None:
        """Takes over the result of `export`. Called before any node is known."""
        assert isinstance(handed, tuple), "the export of another ledger"
        self.is_adopted = True
        self._handed, openings = dict(handed[0]), handed[1]
        for pool, (is_open, is_frozen) in zip(self.pools, openings, strict=True):
            pool.is_open, pool.is_frozen = list(is_open), list(is_frozen)

    def _adopt(self, row: int, node: str) -> None:
        found = self._handed.pop(node, None)
        if found is None:
            return
        for number, is_offer, resource, amount in found.amounts:
            pool = self.pools[number]
            self._grow(pool, row)
            pool.column(pool.offer if is_offer else pool.reserve, resource)[row] = amount
        for key, resource, amount in found.reserved:
            self.slices.set_reserved(key, row, resource, amount)
        for pod in found.needs:
            self.needs.add(pod, row, self.now_s)

    def rows_of(self, pool: Pool) -> Iterator[tuple[int, LoanTerms, Rows]]:
        """Yields each limited loan of the pool with its rows."""
        for number, loan in enumerate(pool.loans):
            if loan.is_limited:
                yield number, loan, (pool.loan_of == number).nonzero()[0]

    def has_pods(self, pool: Pool, rows: Rows) -> Bools:
        """Returns bool[rows]: rows with pods of the pool."""
        found: Bools = pool.pods.take(rows) > 0
        return found

    def pools_of(self, domain: str) -> Iterable[Pool]:
        """Returns the pools of a borrowing domain."""
        return [pool for pool in self.pools if pool.borrower.domain == domain and pool.loans]


def wanted_of(pod: Pod, loan: LoanTerms) -> Mapping[str, int]:
    """Returns resource -> amount that the loan must have free for the pod."""
    return {**pod.requests, PODS: 1} if loan.is_sliced else idle_demand(pod) or pod.requests


def why_not_lent(pod: Pod, loan: LoanTerms) -> str:
    """Returns why the loan can never lend what the pod needs, even if all is free; empty if it can.

    A pod on idle capacity may request nothing else, because that would not be counted.
    """
    missing = [name for name, amount in wanted_of(pod, loan).items() if amount and name not in loan.resources]
    if loan.is_idle:
        missing += [name for name, amount in pod.requests.items() if amount and name not in BATCH_RESOURCES]
    if missing:
        return f"{loan.lender} does not lend {min(missing)}"
    need = unsliced_need(pod) if loan.is_sliced else ""
    return f"{loan.lender} lends to pods of another process only what can be counted: {need}" if need else ""


def too_little(loan: LoanTerms, resource: str) -> str:
    return f"Insufficient {resource} on loan from {loan.lender}"


def nothing_lent(*, is_idle: bool) -> str:
    return "the node lends no idle capacity" if is_idle else "the node lends only idle capacity"


def _loan_number(pool: Pool, node: Node) -> int:
    """Returns the first loan of the pool that lends the node; OWN if no loan of the borrower does."""
    for number, loan in enumerate(pool.loans):
        if loan.lends(node):
            return number
    return NO_POOL if any(loan.lends(node) for loan in pool.borrower.loans) else OWN
