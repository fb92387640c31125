"""The judge's report on one snapshot: a plain document, the same for tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from multisched.verify.fields import Json
from multisched.verify.findings import Finding
from multisched.verify.judge import Judge
from multisched.verify.objects import Problem
from multisched.verify.placement_rules import Domain

PROBLEMS_MAX = 1_000
"""Problems of the input that a report lists; others are only counted."""


class Unjudged(NamedTuple):
    """A rule, or a part of it, that was not judged."""

    rule: str
    reason: str


class Report(NamedTuple):
    violations: list[Finding]
    maybe: list[Finding]
    """Findings about placements that may have been valid when they were made."""
    unreadable: list[Problem]
    not_judged: list[Unjudged]
    nodes: int
    pods: int

    def document(self) -> dict[str, Any]:
        """Returns the document that `-o json` prints."""
        return {
            "violations": [_shown(finding) for finding in self.violations],
            "maybe": [_shown(finding) for finding in self.maybe],
            "unreadable": [problem._asdict() for problem in self.unreadable[:PROBLEMS_MAX]],
            "notJudged": [one._asdict() for one in self.not_judged],
            "checked": {"nodes": self.nodes, "pods": self.pods, "unreadable": len(self.unreadable)},
        }


def report(
    objects: Iterable[tuple[str, Json]], domains: Sequence[Domain] = (), unreadable: Sequence[Problem] = ()
) -> Report:
    """Judges a cluster given as (kind, document), in the order of `KINDS`."""
    judge = Judge(domains)
    for kind, document in objects:
        judge.add(kind, document)
    return report_of(judge, unreadable, has_domains=bool(domains))


def report_of(judge: Judge, unreadable: Sequence[Problem] = (), *, has_domains: bool) -> Report:
    """Builds the report from a judge that has all objects."""
    found = judge.findings()
    not_judged = (
        [] if has_domains else [Unjudged("domain", "needs --config FILE, which also has tolerations that domains add")]
    )
    if judge.lacks_claims:
        not_judged.append(Unjudged("volumes", "pods have claims and the input has none; add pv,pvc,sc,csinodes"))
    strays = [
        Problem(f"pod {pod.key}", f"spec.nodeName: node {pod.node} is not in the input")
        for pod in judge.pods.values()
        if pod.node not in judge.nodes
    ]
    return Report(
        [finding for finding in found if finding.is_sure],
        [finding for finding in found if not finding.is_sure],
        [*unreadable, *judge.problems, *strays],
        not_judged,
        len(judge.nodes),
        len(judge.pods),
    )


def _shown(finding: Finding) -> dict[str, str]:
    return {"pod": finding.pod, "node": finding.node, "rule": finding.rule, "message": finding.message}
