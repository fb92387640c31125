"""Finds running pods that violate a required rule. Shares no code with the scheduler (README.md)."""

from multisched.verify.findings import RULES, Finding, Rule
from multisched.verify.judge import KINDS, Judge, judge
from multisched.verify.loan_rules import Loan
from multisched.verify.placement_rules import Domain
from multisched.verify.report import Report, report
from multisched.verify.selectors import judged_selector
from multisched.verify.snapshot import Snapshot, SnapshotError

__all__ = [
    "KINDS",
    "RULES",
    "Domain",
    "Finding",
    "Judge",
    "Loan",
    "Report",
    "Rule",
    "Snapshot",
    "SnapshotError",
    "judge",
    "judged_selector",
    "report",
]
