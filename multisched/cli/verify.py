"""`multisched verify`: reads a snapshot, and prints what `multisched.verify` finds there or on a live cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from multisched.cli.dump import read_file
from multisched.config.options import ExitCode, RefusedError
from multisched.model.plural import counted
from multisched.model.visible_text import escaped
from multisched.observe.tables import as_document, as_table
from multisched.verify import Domain, Finding, Report, Snapshot, SnapshotError, report

SNAPSHOT_BYTES_MAX: Final = 8 * 1024 * 1024 * 1024
PROBLEMS_SHOWN: Final = 20


def verify_snapshot(path: Path, domains: Sequence[Domain]) -> Report:
    """Judges a file, or standard input (`-`). Raises RefusedError."""
    try:
        snapshot = Snapshot(read_file(path, SNAPSHOT_BYTES_MAX))
    except SnapshotError as error:
        raise RefusedError(f"{path}: {error}") from error
    return report(snapshot.objects(), domains, snapshot.problems.found)


def exit_code(found: Report, *, is_strict: bool) -> ExitCode:
    is_wrong = bool(found.violations) or (is_strict and bool(found.maybe))
    return ExitCode.PROBLEM if is_wrong else ExitCode.OK


def as_text(found: Report, output: str) -> str:
    """`json`, `yaml`, or a table with what it does not say beneath."""
    if output in ("json", "yaml"):
        return as_document(found.document(), output)
    parts = [_table(title, those, output) for title, those in _lists(found) if those]
    looked_at = f"{counted(found.pods, 'pod')} on {counted(found.nodes, 'node')}"
    violations = counted(len(found.violations), "violation")
    parts.append(f"{violations}, {len(found.maybe)} that may have been right once; {looked_at}")
    parts += [f"not judged: {one.rule}: {escaped(one.reason)}" for one in found.not_judged]
    parts += [f"unreadable: {escaped(p.object)}: {escaped(p.problem)}" for p in found.unreadable[:PROBLEMS_SHOWN]]
    if len(found.unreadable) > PROBLEMS_SHOWN:
        parts.append(f"unreadable: {len(found.unreadable) - PROBLEMS_SHOWN} more; -o json names them")
    return "\n".join(parts)


def _lists(found: Report) -> list[tuple[str, list[Finding]]]:
    return [("", found.violations), ("May have been right when the pod was placed:", found.maybe)]


def _table(title: str, findings: Sequence[Finding], output: str) -> str:
    rows = [(f.pod, f.node, f.rule, f.message) for f in sorted(findings, key=lambda f: (f.rule, f.node, f.pod))]
    table = as_table(("pod", "node", "rule", "message"), rows, is_wide=output == "wide")
    return f"{title}\n{table}\n" if title else f"{table}\n"
