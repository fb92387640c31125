"""An attempt's record as a view: which plugin refused each node, and why the chosen node was best.

Pure, over the record and the tables it was made from. Names are looked up now. A row whose node was deleted since is
shown as such, never under the name of the node that has the row now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from multisched.cycle.attempt_record import AttemptRecord, Outcome
from multisched.cycle.classes.score_snapshot import OTHERS, FilterCopy, ScoreSnapshot
from multisched.framework.node_view import Rows
from multisched.framework.registry import PluginSet
from multisched.framework.status import Code, Status
from multisched.model.plural import counted
from multisched.observe.explain_view import RUNNERS_UP, Attempt, OnNode, Part, PluginRefusal, PointResult, Scored
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

GONE = "(a deleted node)"


class AttemptReader:
    """Converts the records of one domain into views."""

    def __init__(self, plugins: PluginSet, table: NodeTable, rows: DomainRows, now_s: float, names: int) -> None:
        """`names`: limit of the nodes named for each verdict."""
        self._plugins = plugins
        self._table = table
        self._rows = rows
        self._now_s = now_s
        self._names = names

    def attempt(self, record: AttemptRecord) -> Attempt:
        snapshot = record.snapshot
        fields = Attempt(
            number=record.attempt,
            ago_s=self._now_s - record.at_s,
            outcome=record.outcome.value,
            node=record.node,
            message=record.message,
            snapshot="none" if snapshot is None else "dropped",
            passed_over=record.passed_over,
            nominated_node=record.nominated_node,
            victims=record.victims,
            victim_nodes=record.victim_nodes,
            winner=_winner(record),
            points=tuple(self._points(record)),
        )
        found = record.found
        if snapshot is None or not snapshot.is_kept:
            counts = () if found is None else tuple(_verdict(status, count) for status, count in found.counts)
            size = 0 if found is None else found.node_count
            return _with(fields, refused=counts, domain_nodes=size)
        verdicts = tuple(self._verdicts(record, snapshot))
        return _with(
            fields,
            snapshot="own" if record.is_own_snapshot else "earlier",
            snapshot_ago_s=self._now_s - snapshot.at_s,
            domain_nodes=snapshot.domain_size,
            looked_at=len(snapshot.rows),
            feasible=len(snapshot.rows) - sum(verdict.count for verdict in verdicts),
            refused=verdicts,
            winner=self._winner(record, snapshot),
            ties=self._ties(record, snapshot),
            runners_up=tuple(self._runners_up(record, snapshot)),
        )

    def on_node(self, record: AttemptRecord, node: str) -> OnNode | None:
        """Returns why this node was not chosen; None if the record does not show it."""
        snapshot, row = record.snapshot, self._table.row_of(node)
        if row is None or not self._rows.has(row):
            where = "is not known" if row is None else self._rows.why_not(row, self._table.node(row))
            return OnNode(node=node, text=f"Node {node} {where}.")
        if snapshot is None or not snapshot.is_kept:
            return None
        at = int(np.searchsorted(snapshot.rows, row))
        if (
            at == len(snapshot.rows)
            or int(snapshot.rows[at]) != row
            or not self._stayed(snapshot, snapshot.rows[[at]])[0]
        ):
            if snapshot.refusal is not None:
                return OnNode(node=node, text=f"No node was evaluated: {_words(snapshot.refusal)}.")
            if snapshot.narrowed_by:
                return OnNode(
                    node=node, text=f"{' and '.join(snapshot.narrowed_by)} restricted the pod to other nodes."
                )
            return OnNode(node=node, text=f"Node {node} was added after that attempt.")
        return self._seen(record, snapshot, at, node)

    def _seen(self, record: AttemptRecord, snapshot: ScoreSnapshot, at: int, node: str) -> OnNode:
        said = [
            PointResult(point="Filter", plugin=column.plugin.name, said=_said(column, at))
            for column in snapshot.filters
        ]
        refusal, is_for_nominated = self._refusal(record, snapshot, at, node)
        if refusal is not None:
            kept = " counting the pods that are nominated to it" if is_for_nominated else ""
            return OnNode(node=node, text=f"It is not feasible: {_words(refusal)}{kept}.", plugins=tuple(said))
        if not len(snapshot.total):
            return OnNode(node=node, text="It is feasible; no plugin scored it.", plugins=tuple(said))
        scored = self._scored(snapshot, at)
        if record.outcome is Outcome.PLACED and node == record.node:
            text = "It is the chosen node."
        elif not record.node:
            text = "It is feasible."
        elif scored.total == record.total:
            text = f"It has the same score as {record.node}, which was chosen at random."
        elif scored.total > record.total:
            text = (
                f"It had a higher score than {record.node} when the snapshot was taken, before or after this attempt."
            )
        else:
            behind = record.total - scored.total
            text = f"It is feasible, with {behind} points less than {record.node}: {_lost(record, scored)}."
        return OnNode(node=node, text=text, plugins=tuple(said), scored=scored)

    # -- filters ---------------------------------------------------------------------------------------------------

    def _refusal(
        self, record: AttemptRecord, snapshot: ScoreSnapshot, at: int, node: str
    ) -> tuple[Status | None, bool]:
        """Returns why the node is not feasible, and whether only pods nominated there make it so."""
        for column in snapshot.filters:
            if column.codes[at]:
                return column.plugin.reasons.status(int(column.codes[at])), False
        if record.is_own_snapshot and at in record.blocked:
            return record.blocked[at], True
        return next((status for name, status in record.remote_refusals if name == node), None), False

    def _verdicts(self, record: AttemptRecord, snapshot: ScoreSnapshot) -> Iterator[PluginRefusal]:
        unsettled = np.ones(len(snapshot.rows), np.bool_)
        refused_alone = np.zeros(len(snapshot.rows), np.bool_)
        for column in snapshot.filters:
            refused_alone |= column.codes != 0
        held = {at: s for at, s in record.blocked.items() if at < len(unsettled) and not refused_alone[at]}
        unsettled[list(held)] = False
        for column in snapshot.filters:
            refused = unsettled & (column.codes != 0)
            for code in np.unique(column.codes[refused]).tolist():
                at = np.flatnonzero(refused & (column.codes == code))
                yield _verdict(column.plugin.reasons.status(code), len(at), self._named(snapshot, at))
            unsettled &= ~refused
        for status in dict.fromkeys(held.values()):
            at = np.array([at for at, one in held.items() if one == status], np.intp)
            yield _verdict(status, len(at), self._named(snapshot, at), is_for_nominated=True)
        for status in dict.fromkeys(status for _, status in record.remote_refusals):
            names = [name for name, one in record.remote_refusals if one == status]
            yield _verdict(status, len(names), tuple(sorted(names)[: self._names]))

    def _stayed(self, snapshot: ScoreSnapshot, rows: Rows) -> Sequence[bool]:
        return list(self._rows.stayed_since(rows, snapshot.generation))

    def _named(self, snapshot: ScoreSnapshot, at: Rows) -> tuple[str, ...]:
        rows = snapshot.rows[at[: self._names]]
        stayed = self._stayed(snapshot, rows)
        return tuple(sorted(self._table.node(int(r)).name if s else GONE for r, s in zip(rows, stayed, strict=True)))

    # -- scores ----------------------------------------------------------------------------------------------------

    def _scored(self, snapshot: ScoreSnapshot, at: int) -> Scored:
        parts = (
            Part(
                plugin=c.plugin,
                score=int(c.final[at]),
                weight=c.weight,
                raw=None if c.raw is None else int(c.raw[at]),
            )
            for c in snapshot.scores
        )
        name = self._named(snapshot, np.array([at], np.intp))[0]
        return Scored(node=name, total=int(snapshot.total[at]), parts=tuple(parts))

    def _winner(self, record: AttemptRecord, snapshot: ScoreSnapshot) -> Scored | None:
        """Returns the chosen node, with raw scores if the snapshot has them."""
        has_raw = record.is_own_snapshot and any(one.raw is not None for one in snapshot.scores)
        return self._scored(snapshot, record.at) if has_raw and record.node else _winner(record)

    def _ties(self, record: AttemptRecord, snapshot: ScoreSnapshot) -> int:
        if not record.is_own_snapshot or record.outcome is not Outcome.PLACED or not len(snapshot.total):
            return 0
        return int(np.count_nonzero(snapshot.total == record.total))

    def _runners_up(self, record: AttemptRecord, snapshot: ScoreSnapshot) -> Iterator[Scored]:
        """Yields the best of the other feasible nodes."""
        total = snapshot.total
        if record.outcome not in (Outcome.PLACED, Outcome.GIVEN_UP) or not len(total):
            return
        total = np.where(snapshot.feasible, total, -1)
        total[[record.at, *record.blocked]] = -1
        for at in np.argsort(-total, kind="stable")[:RUNNERS_UP].tolist():
            if total[at] >= 0:
                yield self._scored(snapshot, at)

    # -- extension points ------------------------------------------------------------------------------------------

    def _points(self, record: AttemptRecord) -> Iterator[PointResult]:
        snapshot, plugins = record.snapshot, self._plugins
        for plugin in plugins.pre_enqueue:
            yield PointResult(point="PreEnqueue", plugin=plugin.name, said="admits it")
        if snapshot is not None:
            yield from _pre_filters(snapshot, [plugin.name for plugin in plugins.pre_filter])
            for column in snapshot.filters:
                refused = int(np.count_nonzero(column.codes))
                said = f"refuses {refused} of {len(column.codes)} nodes" if refused else "passes every node"
                yield PointResult(point="Filter", plugin=column.plugin.name, said=said)
        for name in dict.fromkeys(status.plugin for _, status in record.remote_refusals):
            count = sum(status.plugin == name for _, status in record.remote_refusals)
            yield PointResult(point="Filter", plugin=name, said=f"refuses {counted(count, 'node')}, by a request")
        post_filter = plugins.post_filter_group if record.is_of_gang else plugins.post_filter
        if record.outcome is Outcome.REFUSED and post_filter:
            names = ", ".join(plugin.name for plugin in post_filter)
            yield PointResult(point="PostFilter", plugin=names, said=record.post_filter or "returns nothing")
        yield from self._points_after(record)

    def _points_after(self, record: AttemptRecord) -> Iterator[PointResult]:
        if record.outcome is Outcome.ERROR:
            yield PointResult(point="failed", plugin=record.status.plugin, said=record.status.message)
        if record.outcome not in (Outcome.PLACED, Outcome.GIVEN_UP):
            return
        scoring = {score.plugin for score in record.scores}
        for plugin in self._plugins.score if scoring and OTHERS not in scoring else ():
            if plugin.name not in scoring:
                yield PointResult(point="Score", plugin=plugin.name, said="skips this pod")
        if record.outcome is Outcome.GIVEN_UP:
            said = f"refused it on {record.node}: {record.status.message}"
            yield PointResult(point="after that", plugin=record.status.plugin or "the API server", said=said)


def _with(view: Attempt, **changes: object) -> Attempt:
    return msgspec.structs.replace(view, **changes)


def _winner(record: AttemptRecord) -> Scored | None:
    if not record.node:
        return None
    scored = tuple(Part(plugin=one.plugin, score=one.final, weight=one.weight) for one in record.scores)
    return Scored(node=record.node, total=record.total, parts=scored)


def _verdict(
    status: Status, count: int, nodes: tuple[str, ...] = (), *, is_for_nominated: bool = False
) -> PluginRefusal:
    return PluginRefusal(
        plugin=status.plugin,
        code=status.code.value,
        reasons=status.reasons,
        count=count,
        nodes=nodes,
        is_for_nominated=is_for_nominated,
    )


def _words(status: Status) -> str:
    return f"{status.plugin}: {status.message}" if status.plugin else status.message


def _said(column: FilterCopy, at: int) -> str:
    code = int(column.codes[at])
    return column.plugin.reasons.status(code).message if code else "passes"


def _pre_filters(snapshot: ScoreSnapshot, plugins: Sequence[str]) -> Iterator[PointResult]:
    """Yields the results in the order of the calls; after a final refusal no further plugin is called."""
    is_over = False
    for plugin in plugins:
        said = "was not called any more" if is_over else _pre_filter_said(snapshot, plugin)
        yield PointResult(point="PreFilter", plugin=plugin, said=said)
        refusal = snapshot.refusal
        is_over |= refusal is not None and refusal.plugin == plugin and refusal.code is not Code.UNSCHEDULABLE


def _pre_filter_said(snapshot: ScoreSnapshot, plugin: str) -> str:
    if snapshot.refusal is not None and snapshot.refusal.plugin == plugin:
        return f"refuses the pod everywhere: {snapshot.refusal.message}"
    if snapshot.refusal is not None and plugin not in snapshot.narrowed_by:
        return "does not refuse it"
    if plugin in snapshot.skipped:
        return "has nothing to check"
    if plugin in snapshot.narrowed_by:
        return "restricts it to certain nodes"
    return "passes"


def _lost(record: AttemptRecord, scored: Scored) -> str:
    """Returns where the points were lost, the largest loss first."""
    ours = {part.plugin: part.score * part.weight for part in scored.parts}
    theirs = {score.plugin: score.weight * score.final for score in record.scores}
    losses = sorted((ours.get(name, 0) - points, name) for name, points in theirs.items())
    return ", ".join(f"{name} {difference:+}" for difference, name in losses if difference)
