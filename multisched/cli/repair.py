"""`multisched repair`: which pods should move, and why; with --apply the running process is asked to move them.

Queries a running multisched over HTTP, or computes the plan here on a dump of a cluster; both give the same documents.
Nothing is written from here: the leader executes the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec

from multisched.cli.dump import Dump, buildable, cluster_of
from multisched.cli.options import QueryError
from multisched.cli.server import Server, answer, code_of
from multisched.framework.moving import RepairStatus, digest_of
from multisched.framework.repair import (
    ALL_DIMENSIONS,
    RepairMove,
    RepairPeak,
    RepairPlan,
    RepairRefusedError,
    RepairRequest,
    UnrepairedNode,
)
from multisched.model.object_kinds import ObjectKind
from multisched.model.plural import counted, verb
from multisched.model.visible_text import escaped
from multisched.observe.repair_view import RunRequest, decode_plan, decode_status, thresholds
from multisched.observe.tables import as_document, as_table

READ_OF_A_DUMP: Final = (
    ObjectKind.POD_DISRUPTION_BUDGET,
    ObjectKind.RESOURCE_QUOTA,
    ObjectKind.PERSISTENT_VOLUME,
    ObjectKind.PERSISTENT_VOLUME_CLAIM,
)
"""Kinds without which a plan may contain moves that the cluster forbids."""
TIMEOUT_S: Final = 300.0
"""A large cluster is copied first, and plans are queued."""
KEPT_SHOWN: Final = 5
LEFT_SHOWN: Final = 20
"""Nodes in a table; the other formats have all."""


def request_of(
    threshold: Sequence[str], *, domain: str, moves: int | None, per_node: int | None, per_service: int | None
) -> RepairRequest:
    """Returns the query for the given options. Raises QueryError."""
    try:
        percent = thresholds(threshold)
    except ValueError as error:
        raise QueryError(str(error)) from error
    return RepairRequest(
        domain=domain,
        threshold_percent=percent,
        moves=moves,
        moves_per_node=per_node,
        moves_per_service=per_service,
    )


def plan(source: Server | Dump, asked: RepairRequest, output: str) -> str:
    """Returns the plan in the requested format. Raises QueryError."""
    return _shown(_of_dump(source, asked) if isinstance(source, Dump) else _of_server(source, asked), output)


def apply(source: Server | Dump, asked: RepairRequest, output: str) -> Iterator[str]:
    """Yields the plan, then the result of asking the running process to execute exactly this one. Raises QueryError."""
    if isinstance(source, Dump):
        raise QueryError("--apply: pods of a dump cannot be moved; leave out --snapshot")
    found = _of_server(source, asked)
    yield _shown(found, output, is_preview=not found.moves)
    if not found.moves:
        return
    body = msgspec.json.encode(RunRequest(digest_of(found)))
    started = _status_of(source, f"/api/v1/repair/run{_query(asked)}", body=body)
    moves = counted(started.steps, "move")
    yield f"started: {moves} in domain {started.domain}, plan {started.digest}; multisched repair status shows the progress"


def status(server: Server, domain: str, output: str) -> str:
    """Returns the state of repair in the running process. Raises QueryError."""
    found = _status_of(server, f"/api/v1/repair/status{_query(RepairRequest(domain=domain))}")
    if output in ("json", "yaml"):
        return as_document(msgspec.to_builtins(found), output)
    return "\n".join(map(escaped, _status_lines(found)))


def _status_lines(found: RepairStatus) -> Iterator[str]:
    yield f"domain {found.domain}: repair is {found.mode}"
    if found.is_open:
        yield f"window: open since {_moment(found.opens_s)}, until {_moment(found.closes_s)}"
    elif found.opens_s is not None:
        yield f"window: closed, the next one opens at {_moment(found.opens_s)}"
    if found.mode != "off":
        yield f"moved in this window: {found.moved}, {found.moves_left} left"
    if found.state:
        where = (
            f", move {found.step} of {found.steps}: {found.move}" if found.move else f", {counted(found.steps, 'move')}"
        )
        yield f"run of plan {found.digest}: {found.state}{where}"
    elif found.digest:
        yield f"plan {found.digest}: {counted(found.steps, 'move')}, shown only"
    if found.reason:
        yield f"reason: {found.reason}"


def _moment(epoch_s: float | None) -> str:
    return "-" if epoch_s is None else f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _status_of(server: Server, path: str, body: bytes | None = None) -> RepairStatus:
    return answer(server, path, decode_status, body=body, is_change=body is not None, timeout_s=TIMEOUT_S)


def _shown(found: RepairPlan, output: str, *, is_preview: bool = True) -> str:
    if output in ("json", "yaml"):
        return as_document(msgspec.to_builtins(found), output)
    return text_of(found, is_wide=output == "wide", is_preview=is_preview)


def text_of(found: RepairPlan, *, is_wide: bool, is_preview: bool = True) -> str:
    """Returns the moves in order, the nodes that stay over their threshold, and totals."""
    parts = [_moves(found.moves, is_wide=is_wide)] if found.moves else []
    if found.unrepaired:
        parts.append(_left(found.unrepaired, is_wide=is_wide))
    totals = [*_totals(found), *(["nothing was written: this is a preview"] if is_preview else [])]
    parts.append("\n".join(map(escaped, totals)))
    return "\n\n".join(parts)


def _of_dump(dump: Dump, asked: RepairRequest) -> RepairPlan:
    from multisched.whatif.repair_trial import plan_on
    from multisched.whatif.sandbox import SchedulerSandbox

    known = cluster_of(dump)
    with buildable():
        sandbox = SchedulerSandbox(dump.configuration, known)
    store = sandbox.cache.objects
    absent = [kind.value for kind in READ_OF_A_DUMP if not store.all(kind)]
    try:
        found = plan_on(sandbox, asked)
    except RepairRefusedError as error:
        raise QueryError("; ".join((str(error), *sandbox.notes)), code_of(error.status)) from error
    if not absent:
        return found
    note = f"the dump has no {', '.join(absent)} objects: if the cluster has some, have kubectl get list them too"
    return msgspec.structs.replace(found, notes=(*found.notes, note))


def _query(asked: RepairRequest) -> str:
    """Returns the query string of a URL."""
    query = [("domain", asked.domain)] if asked.domain else []
    for name, percent in asked.threshold_percent.items():
        query.append(("threshold", f"{name}={percent:g}" if name != ALL_DIMENSIONS else f"{percent:g}"))
    limits = {"moves": asked.moves, "movesPerNode": asked.moves_per_node, "movesPerService": asked.moves_per_service}
    query += [(name, str(number)) for name, number in limits.items() if number is not None]
    return f"{'?' if query else ''}{urlencode(query)}"


def _of_server(server: Server, asked: RepairRequest) -> RepairPlan:
    return answer(server, f"/api/v1/repair/plan{_query(asked)}", decode_plan, timeout_s=TIMEOUT_S)


def _moves(moves: Sequence[RepairMove], *, is_wide: bool) -> str:
    head = ["#", "pod", "from", "to", "gain", "from peak", "to peak", "disruption"]
    if is_wide:
        head += ["repairs", "waits for", "uid"]
    rows = []
    for number, move in enumerate(moves, 1):
        row = [
            number, move.pod, move.from_node, move.to_node, f"{move.gain_percent:.1f}",
            _change(move.from_before, move.from_after), _change(move.to_before, move.to_after), _disruption(move),
        ]  # fmt: skip
        if is_wide:
            row += [move.repairs, ", ".join(str(place + 1) for place in move.waits_for), move.uid]
        rows.append(row)
    return as_table(head, rows, is_wide=is_wide)


def _change(before: RepairPeak, after: RepairPeak) -> str:
    """Returns `log 118 % -> 92 % Tue 20:00`, or both peaks in full if their dimension or slot differ."""
    if before.dimension == after.dimension and before.at == after.at:
        return f"{before.dimension} {before.percent:.0f} % -> {after.percent:.0f} % {before.at}"
    return f"{_peak(before)} -> {_peak(after)}"


def _peak(peak: RepairPeak) -> str:
    return f"{peak.dimension} {peak.percent:.0f} % {peak.at}"


def _disruption(move: RepairMove) -> str:
    budgets = "".join(f", PDB {one.name} leaves {one.left}" for one in move.budgets)
    return f"1 of {move.replicas} of {move.service}{budgets}"


def _left(left: Sequence[UnrepairedNode], *, is_wide: bool) -> str:
    shown = left if is_wide else left[:LEFT_SHOWN]
    table = as_table(("stays over", "peak", "why"), [(n.node, _peak(n.peak), n.why) for n in shown], is_wide=True)
    return table if len(shown) == len(left) else f"{table}\n... and {len(left) - len(shown)} more; -o wide has all"


def _totals(found: RepairPlan) -> Iterator[str]:
    repaired, moves = len(found.repaired), len(found.moves)
    if not moves and not found.unrepaired:
        yield f"domain {found.domain}: no node's predicted peak passes {_thresholds(found.threshold_percent)}"
    else:
        bound = "" if moves == found.least_moves else f" (no plan has fewer than {found.least_moves})"
        what = f"{counted(moves, 'move')}{bound} {verb(moves, 'repairs', 'repair')}"
        nodes = counted(repaired + len(found.unrepaired), "node")
        yield f"domain {found.domain}: {what} {repaired} of {nodes} past {_thresholds(found.threshold_percent)}"
    yield f"worst peak: {_peak(found.worst_before)} now, {_peak(found.worst_after)} after"
    pods = f"{verb(found.nodes, 'its', 'their')} {counted(found.pods, 'pod')}"
    version = found.profiles_version or "of files"
    yield f"{counted(found.nodes, 'node')}; {found.movable} of {pods} may move; profiles {version}"
    kept = list(found.kept.items())
    for why, number in kept[:KEPT_SHOWN]:
        yield f"  kept: {number}, {why}"
    if len(kept) > KEPT_SHOWN:
        yield f"  kept: {sum(number for _, number in kept[KEPT_SHOWN:])} for {len(kept) - KEPT_SHOWN} other reasons"
    for note in found.notes:
        yield f"note: {note}"


def _thresholds(percent: Mapping[str, float]) -> str:
    """Returns `90 %` if all are equal, else `cpu 90 %, log 80 %`."""
    if len(set(percent.values())) == 1:
        return f"{next(iter(percent.values())):g} %"
    return ", ".join(f"{name} {amount:g} %" for name, amount in percent.items())
