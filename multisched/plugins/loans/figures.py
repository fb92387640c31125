"""Reports of loans: the documents of `multisched loans` (`/api/v1/loans/now`) and of one node, metrics, and sentences of `explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.introspection import PluginMetric
from multisched.framework.node_view import Rows
from multisched.framework.views import NAME_CHARS_MAX, Document, NoViewError, ViewQuery, unknown_parameter
from multisched.model.api_time import timestamp
from multisched.model.objects import CPU, MEMORY, PODS, Pod
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.pools import Pool
from multisched.plugins.loans.recalls import Notice, Recalls
from multisched.plugins.loans.terms import LoanTerms

DOCUMENTS: Final = {"now": ("domain", "limit"), "node": ("domain", "name")}
"""Document -> its options."""
ROWS_SHOWN: Final = 200
FIELDS: Final = {CPU: "cpuMilli", MEMORY: "memoryBytes"}
"""Resource -> its field in documents; other resources have their own names."""


def document_of(
    ledger: LoanLedger, recalls: Recalls, context: PluginContext, query: ViewQuery, now_s: float
) -> Document:
    """Returns the loans of the domain and the nodes with its pods on loan (document `now`), or the loans of one node (`node`). Raises
    NoViewError.
    """
    if query.name not in DOCUMENTS:
        raise NoViewError(f"loans has no document {query.name}; write one of {', '.join(DOCUMENTS)}")
    if unknown := unknown_parameter(query.options, DOCUMENTS[query.name]):
        raise NoViewError(unknown, status=400)
    if query.name == "node":
        return _of_node(ledger, recalls, context, query.option("name"), now_s)
    limit = _limit(query)
    loans, rows = [], list[Document]()
    for pool in ledger.pools_of(context.domain):
        for number, loan, of_loan in ledger.rows_of(pool):
            loans.append(_loan(ledger, pool, number, of_loan, now_s))
            rows += _rows(ledger, recalls, context, pool, loan, of_loan)
    return {
        "domain": context.domain,
        "loans": loans,
        "nodes": rows[:limit],
        "nodesOnLoan": len(rows),
        "notices": [_notice(one) for one in list(recalls.notices.values())[:limit]],
        "recalls": {
            "open": len(recalls.open),
            "total": recalls.counts.recalls,
            "late": recalls.counts.late,
            "evicted": recalls.counts.evicted,
            "deleted": recalls.counts.deleted,
            "withdrawn": recalls.counts.withdrawn,
            "lostCoreSeconds": round(recalls.counts.lost_core_s, 1),
        },
    }


def _of_node(ledger: LoanLedger, recalls: Recalls, context: PluginContext, name: str, now_s: float) -> Document:
    """Returns the loans that lend this node to the domain, as in `now`, with the amounts of this node only."""
    row = context.nodes.row_of(name)
    if row is None:
        raise NoViewError(f"there is no node {name[:NAME_CHARS_MAX]}")
    at, loans = np.array([row], np.intp), list[Document]()
    for pool in ledger.pools_of(context.domain):
        for number, loan, rows in ledger.rows_of(pool):
            if row in rows:
                on_loan = next(_rows(ledger, recalls, context, pool, loan, at), None)
                loans.append({**_loan(ledger, pool, number, at, now_s), "onLoan": on_loan})
    return {"domain": context.domain, "node": name, "loans": loans}


def _limit(query: ViewQuery) -> int:
    text = query.options.get("limit", str(ROWS_SHOWN))
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise NoViewError(f"limit: {text[:20]} is not a number from 1 to 100000", status=400)
    return int(text)


def _loan(ledger: LoanLedger, pool: Pool, number: int, rows: Rows, now_s: float) -> Document:
    loan = pool.loans[number]
    closes_s = loan.closes_s(now_s)
    opens_s = loan.hours.opens_s(now_s) if closes_s is None and loan.hours is not None else None
    names = sorted(loan.resources)
    return {
        "from": loan.lender,
        "to": loan.borrower,
        "kind": "idle" if loan.is_idle else "free",
        "isOpen": pool.is_open[number],
        "why": ledger.why_closed(pool, number),
        "closes": None if closes_s is None or closes_s == float("inf") else _time(closes_s),
        "opens": None if opens_s is None else _time(opens_s),
        "nodes": len(rows),
        "pods": int(pool.pods.take(rows).sum()) if len(rows) else 0,
        "held": {FIELDS.get(name, name): int(pool.at(pool.held, name, rows).sum()) for name in names},
        "room": {FIELDS.get(name, name): _room(ledger, pool, number, name, rows) for name in names},
        "noticeSeconds": None if loan.returns is None else loan.returns.notice_s,
    }


def _room(ledger: LoanLedger, pool: Pool, number: int, resource: str, rows: Rows) -> int:
    """Returns the amount that the loan lends now in addition to what pods hold, in total over its rows."""
    if not len(rows) or ledger.why_closed(pool, number):
        return 0
    return int(np.maximum(0, ledger.room(pool, pool.loans[number], resource, rows)).sum())


def _rows(
    ledger: LoanLedger, recalls: Recalls, context: PluginContext, pool: Pool, loan: LoanTerms, rows: Rows
) -> Iterator[Document]:
    """Yields the nodes where pods are on loan."""
    number = ledger.pools.index(pool)
    for row in rows[ledger.has_pods(pool, rows)].tolist():
        at = np.array([row], np.intp)
        recall = recalls.open.get((number, row))
        needs = [one.pod.key for one in ledger.needs.on(row)]
        yield {
            "node": context.nodes.node(row).name,
            "from": loan.lender,
            "kind": "idle" if loan.is_idle else "free",
            "pods": int(pool.pods[row]),
            "held": {FIELDS.get(name, name): int(pool.at(pool.held, name, at)[0]) for name in sorted(loan.resources)},
            "isRecalled": recall is not None,
            "recalledSince": None if recall is None else _time(recall.since_s),
            "why": "" if recall is None else recall.why,
            "neededBy": needs,
        }


def _notice(one: Notice) -> Document:
    return {
        "pod": one.pod.key,
        "from": one.loan.lender,
        "why": one.why,
        "evictedAt": _time(one.due_s),
        "isEvicted": one.evicted_s is not None,
    }


def metrics_of(ledger: LoanLedger, recalls: Recalls, domain: str) -> Sequence[PluginMetric]:
    """Returns gauges by lender and resource, and counters of recalls."""
    held: dict[tuple[str, ...], float] = {}
    room: dict[tuple[str, ...], float] = {}
    nodes: dict[tuple[str, ...], float] = {}
    foreign: dict[tuple[str, ...], float] = {}
    for pool in ledger.pools_of(domain):
        for number, loan, rows in ledger.rows_of(pool):
            kind = "idle" if loan.is_idle else "free"
            nodes[loan.lender, kind] = nodes.get((loan.lender, kind), 0) + len(rows)
            if ledger.foreign and not loan.is_idle:
                count = int(ledger.foreign.at(PODS, rows).sum())
                foreign[(loan.lender,)] = foreign.get((loan.lender,), 0) + count
            for name in sorted(loan.resources):
                key = loan.lender, kind, name
                held[key] = held.get(key, 0.0) + int(pool.at(pool.held, name, rows).sum())
                room[key] = room.get(key, 0.0) + _room(ledger, pool, number, name, rows)
    counts: Any = recalls.counts
    by_resource = ("lender", "kind", "resource")
    return (
        PluginMetric("loan_nodes", "Nodes on loan.", nodes, ("lender", "kind")),
        PluginMetric("loan_held", "What pods on loan hold: thousandths of cores, bytes, counts.", held, by_resource),
        PluginMetric("loan_room", "How much more is lent now, in the same units.", room, by_resource),
        PluginMetric("loan_foreign_pods", "Pods of other schedulers on nodes on loan.", foreign, ("lender",)),
        PluginMetric("loan_recalls_open", "Nodes on which pods hold more than they may.", {(): len(recalls.open)}),
        *(
            PluginMetric(name, text, {(): getattr(counts, field)}, is_counter=True)
            for name, field, text in (
                ("loan_recalls", "recalls", "Recalls of capacity of one node."),
                ("loan_recalls_late", "late", "Recalls that were not complete at their deadline."),
                ("loan_evictions", "evicted", "Pods on loan that were evicted."),
                ("loan_deletions", "deleted", "Pods on loan that were deleted against their budgets or grace periods."),
                (
                    "loan_evictions_refused",
                    "refused",
                    "Evictions that the API server or a budget refused for the moment.",
                ),
                ("loan_lost_core_seconds", "lost_core_s", "Work that evictions lost."),
            )
        ),
    )


def health_of(ledger: LoanLedger, domain: str) -> str:
    """Returns a sentence that names the loans of the domain without any node; empty if there are none."""
    empty = [
        f"the loan from {loan.lender} lends no node: there are no {loan.lends_words}"
        for pool in ledger.pools_of(domain)
        for _, loan, rows in ledger.rows_of(pool)
        if not len(rows)
    ]
    return "; ".join(empty)


def described(ledger: LoanLedger, context: PluginContext, pod: Pod, row: int) -> str:
    """Returns what the loan of the row means for the pod, as the end of a sentence; empty if there is no loan."""
    loan, at = ledger.loan_of(pod, row), np.array([row], np.intp)
    if loan is not None and loan.is_limited:
        pool = ledger.pool_of(pod)
        assert pool is not None, "the pod has a loan"
        number = pool.loans.index(loan)
        if why := ledger.why_closed(pool, number):
            return why
        room = int(ledger.room(pool, loan, CPU, at)[0])
        return f"on loan from {loan.lender}, which lends {max(0, room)}m more cpu there"
    held: dict[str, int] = {}
    for pool in ledger.pools:
        number = int(pool.loans_at(at)[0])
        if number >= 0 and pool.loans[number].lender == context.domain and row < len(pool.pods) and pool.pods[row]:
            held[pool.borrower.domain] = held.get(pool.borrower.domain, 0) + int(pool.at(pool.held, CPU, at)[0])
    parts = [f"{amount}m cpu are lent to {borrower}" for borrower, amount in held.items()]
    return ", ".join(parts)


def note_on(ledger: LoanLedger, context: PluginContext, pod: Pod) -> str:
    """Returns for which lent capacity a pending pod of the lender waits; empty if it waits for none."""
    need = ledger.needs.of(pod.uid)
    if need is None:
        return ""
    node = context.nodes.node(need.row).name
    notices = [
        loan.returns.notice_s
        for pool in ledger.pools
        if (number := int(pool.loans_at(np.array([need.row], np.intp))[0])) >= 0
        and (loan := pool.loans[number]).returns is not None
    ]
    within = f"; notice {max(notices):g} s, since {_time(need.since_s)}" if notices else ""
    return f"waits until capacity on loan is given back on node {node}{within}"


def _time(at_s: float) -> str:
    return timestamp(datetime.fromtimestamp(at_s, UTC))
