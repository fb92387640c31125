"""`multisched verify`: reads a snapshot, and prints the findings of `multisched.verify` for it or for a live cluster."""

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
GROUP_NAMED_MAX: Final = 3
"""Up to so many pods that break one rule for one reason get a row each; more are one row with the first pod and a count."""


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


def as_text(found: Report, output: str, *, names_all: bool = False) -> str:
    """Returns `json`, `yaml`, or tables; rules that were not judged come before them, unreadable objects after them."""
    if output in ("json", "yaml"):
        return as_document(found.document(), output)
    parts = [f"not judged: {one.rule}: {escaped(one.reason)}" for one in found.not_judged]
    tables = [_table(title, those, output, names_all=names_all) for title, those in _lists(found) if those]
    parts += ["", *tables] if parts else tables
    looked_at = f"{counted(found.pods, 'pod')} on {counted(found.nodes, 'node')}"
    violations = counted(len(found.violations), "violation")
    more = "; --all names every pod" if not names_all and _are_cut(found) else ""
    parts.append(f"{violations}, {len(found.maybe)} that may have been right once; {looked_at}{more}")
    parts += [f"unreadable: {escaped(p.object)}: {escaped(p.problem)}" for p in found.unreadable[:PROBLEMS_SHOWN]]
    if len(found.unreadable) > PROBLEMS_SHOWN:
        parts.append(f"unreadable: {len(found.unreadable) - PROBLEMS_SHOWN} more; -o json names them")
    return "\n".join(parts)


def _lists(found: Report) -> list[tuple[str, list[Finding]]]:
    return [("", found.violations), ("May have been right when the pod was placed:", found.maybe)]


def _table(title: str, findings: Sequence[Finding], output: str, *, names_all: bool) -> str:
    rows: list[tuple[str, str, str, str]] = []
    for group in _by_reason(findings):
        if names_all or len(group) <= GROUP_NAMED_MAX:
            rows += [(f.pod, f.node, f.rule, f.message) for f in group]
        else:
            first = group[0]
            rows.append((f"{first.pod} and {len(group) - 1} more", first.node, first.rule, first.message))
    table = as_table(("pod", "node", "rule", "message"), rows, is_wide=output == "wide")
    return f"{title}\n{table}\n" if title else f"{table}\n"


def _by_reason(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Groups findings of one rule and message, by rule."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for one in sorted(findings, key=lambda f: (f.rule, f.node, f.pod)):
        found.setdefault((one.rule, one.message), []).append(one)
    return sorted(found.values(), key=lambda group: group[0].rule)


def _are_cut(found: Report) -> bool:
    return any(len(group) > GROUP_NAMED_MAX for _, those in _lists(found) for group in _by_reason(those))
