"""`multisched quota lint`: what is wrong with quotas that are not applied yet, and which pods would be evicted under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from multisched.cli.dump import buildable
from multisched.cli.quota_convert import QuotaFiles
from multisched.model.plural import counted
from multisched.model.visible_text import escaped
from multisched.observe.tables import as_document, as_table
from multisched.whatif.quota_lint import Finding, Linted, lint
from multisched.whatif.quota_trial import Trial, try_quotas
from multisched.whatif.quota_use import demands_of
from multisched.whatif.sandbox import ClusterSnapshot, SchedulerSandbox

if TYPE_CHECKING:
    from multisched.config.schema import Configuration


class LintReport(msgspec.Struct, frozen=True):
    """The findings, and the result of a trial."""

    source: QuotaFiles
    found: Linted
    trial: Trial | None
    """None if there are problems, or no cluster is known."""

    def document(self) -> dict[str, Any]:
        """Returns the JSON document."""
        trial = self.trial
        return {
            "problems": [self._data(one) for one in self.found.problems],
            "warnings": [self._data(one) for one in self.found.warnings],
            "evictions": None if trial is None else [msgspec.to_builtins(one) for one in trial.evictions],
            "notes": [] if trial is None else list(trial.notes),
        }

    def _data(self, one: Finding) -> dict[str, str]:
        location = self.source.location_of(one.key, one.path)
        return {"location": location, "object": one.key, "path": one.path, "text": one.text, "fix": one.fix}


def lint_files(source: QuotaFiles, known: ClusterSnapshot | None, configuration: Configuration) -> LintReport:
    """Checks the files. `known`: the cluster to which they would be applied. Raises QueryError for a configuration that
    cannot be built.
    """
    with buildable():
        demands = demands_of(configuration)
    found = lint(source.api, source.documents, known, demands)
    trial = None
    if found.after is not None:
        with buildable():
            sandbox = SchedulerSandbox(configuration, found.after)
        trial = try_quotas(sandbox, found.after)
    return LintReport(source, found, trial)


def as_text(report: LintReport, output: str) -> str:
    """Returns `json`, `yaml`, or lines and a table."""
    if output in ("json", "yaml"):
        return as_document(report.document(), output)
    return "\n".join(_lines(report, is_wide=output == "wide"))


def _lines(report: LintReport, *, is_wide: bool) -> Iterator[str]:
    problems, warnings = report.found.problems, report.found.warnings
    yield from (f"{escaped(report.source.named(one.key, one.path))}: {escaped(str(one))}" for one in problems)
    yield from (f"{escaped(report.source.named(one.key, one.path))}: warning: {escaped(str(one))}" for one in warnings)
    yield f"{_names(report.source.files)}: {counted(len(problems), 'problem')}, {counted(len(warnings), 'warning')}"
    trial = report.trial
    if trial is None:
        return
    if trial.evictions:
        rows = [(one.leaf, one.pod, one.node, one.preemptor, one.why) for one in trial.evictions]
        yield f"{counted(len(rows), 'pod')} would be evicted:"
        yield as_table(("quota", "pod", "node", "makes room for", "why"), rows, is_wide=is_wide)
    else:
        yield "No pod would be evicted"
    yield f"Of the pending pods, {trial.placed} would find a node, and {trial.waiting} would not"
    yield from (f"Note: {escaped(note)}" for note in trial.notes)


def _names(files: Sequence[Path]) -> str:
    return escaped(", ".join(str(one) for one in files))
