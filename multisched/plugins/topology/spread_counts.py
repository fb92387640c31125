"""PodTopologySpread's state of an equivalence class between attempts: per constraint, the matching pods per domain.

Source: kube-scheduler 1.36, plugins/podtopologyspread/filtering.go and scoring.go. Results are computed per domain and
indexed by the domain's code, so that a row's result is a look-up by its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import NO_ROWS, Bools, Codes, Int32, Int64, NodeView, Rows, Scores
from multisched.framework.points import CycleView
from multisched.plugins.columns import Selection, zeros
from multisched.plugins.topology.domain_tally import DomainTally
from multisched.plugins.topology.natural_log import natural_log
from multisched.plugins.topology.spread_eligibility import EligibleRows
from multisched.plugins.topology.spread_rules import SpreadRule, SpreadRules

HOSTNAME: Final = "kubernetes.io/hostname"
LEFT_OUT: Final = -1
"""The raw score of a row that lacks a topology key. It is excluded from the normalization and scores 0."""

Floats = NDArray[np.float64]


class HardSpread:
    """PreFilter's state: the hard constraints (DoNotSchedule)."""

    __slots__ = ("_is_copy", "constraints", "rules")

    def __init__(self, cycle: CycleView, rules: SpreadRules, eligible: EligibleRows) -> None:
        self.rules = rules
        self.constraints = [
            _HardConstraint(
                cycle.nodes,
                rule,
                eligible.of(cycle, rules, rule, rules.hard),
                eligible.domains(cycle, rules, rule, rules.hard),
            )
            for rule in rules.hard
        ]
        self._is_copy = False

    def follow(self, nodes: NodeView, rules: SpreadRules) -> bool:
        """Applies added and removed pods. Returns False if the state must be rebuilt."""
        if rules is not self.rules or self._is_copy:
            return False
        return all(constraint.tally.follow(nodes, constraint.rule.sources) for constraint in self.constraints)

    def codes(self, rows: Rows, missing: int, skewed: int) -> Codes:
        """Returns uint8[rows]: the code of the first constraint that refuses the row: `missing` label, or `skewed`."""
        selection = Selection(rows)
        codes = zeros(rows)
        for at, constraint in enumerate(self.constraints):
            found = constraint.verdicts(missing, skewed).take(selection.of(constraint.tally.codes))
            codes = np.where(codes == 0, found, codes) if at else found
        return codes

    def moved_rows(self, missing: int, skewed: int) -> Rows | None:
        """Returns rows whose result may have changed since the last call; None: all."""
        found: Rows | None = NO_ROWS
        for constraint in self.constraints:
            rows = constraint.moved_rows(missing, skewed)
            found = None if rows is None or found is None else np.union1d(found, rows) if len(found) else rows
        return found

    def changed_by(self, row: int, labels: Mapping[str, str], change: int) -> HardSpread:
        """Returns the state, as an overlay copy, with `change` more pods with these labels, of the pod's namespace, on the row."""
        if any(constraint.tally.codes.item(row) == 0 for constraint in self.constraints):
            return self
        state = self if self._is_copy else self._copy()
        for constraint in state.constraints:
            if constraint.rule.matches(labels):
                constraint.tally.add(row, change, change)
        return state

    def _copy(self) -> HardSpread:
        copied = object.__new__(HardSpread)
        copied.rules, copied._is_copy = self.rules, True
        copied.constraints = [constraint.copy() for constraint in self.constraints]
        return copied


class _HardConstraint:
    """One hard constraint with its domains."""

    __slots__ = ("_domains", "_last_verdicts", "rule", "tally")

    def __init__(self, nodes: NodeView, rule: SpreadRule, eligible: Bools, domains: Int32) -> None:
        self.rule = rule
        self.tally = DomainTally(nodes, rule.key, rule.sources, eligible)
        self._domains = domains
        self._last_verdicts: Codes | None = None
        """The verdicts at the last call of `moved_rows`."""

    def copy(self) -> _HardConstraint:
        copied = object.__new__(_HardConstraint)
        copied.rule, copied._domains, copied._last_verdicts, copied.tally = (
            self.rule,
            self._domains,
            None,
            self.tally.copy(),
        )
        return copied

    def moved_rows(self, missing: int, skewed: int) -> Rows | None:
        """Returns the rows of domains whose verdict changed since the last call; None at the first call."""
        before, self._last_verdicts = self._last_verdicts, self.verdicts(missing, skewed)
        if before is None:
            return None
        domains = (before != self._last_verdicts).nonzero()[0].tolist()
        return self.tally.rows_of(domains) if domains else NO_ROWS

    def verdicts(self, missing: int, skewed: int) -> Codes:
        """Returns uint8[domain codes]: the constraint's code for the rows of each domain."""
        constraint, counts = self.rule.constraint, self.tally.counts
        # With fewer domains than minDomains, the minimum counts as 0.
        is_enough = 0 < len(self._domains) >= constraint.min_domains
        fewest = int(counts.take(self._domains).min()) if is_enough else 0
        allowed = constraint.max_skew + fewest - int(self.rule.is_self_match)
        found: Codes = (counts > allowed) * np.uint8(skewed)
        found[0] = missing
        return found


class SoftSpread:
    """PreScore's state: the soft constraints (ScheduleAnyway)."""

    __slots__ = ("_constraints", "_has_keys", "_weighed", "rules")

    def __init__(self, cycle: CycleView, rules: SpreadRules, eligible: EligibleRows) -> None:
        self.rules = rules
        self._has_keys = eligible.with_keys(cycle, rules.soft)
        needed = rules.soft if rules.needs_all_keys else ()
        self._constraints = [
            _SoftConstraint(cycle.nodes, rule, eligible.of(cycle, rules, rule, needed)) for rule in rules.soft
        ]
        self._weighed: Rows | None = None

    def follow(self, nodes: NodeView, rules: SpreadRules) -> bool:
        """Applies added and removed pods. Returns False if the state must be rebuilt."""
        return rules is self.rules and all(
            constraint.tally.follow(nodes, constraint.rule.sources) for constraint in self._constraints
        )

    def weigh(self, rows: Rows) -> None:
        """Computes the weight of each constraint from the number of domains among the feasible rows."""
        known, self._weighed = self._weighed, rows
        if known is rows or (known is not None and known.tobytes() == rows.tobytes()):
            return
        if self.rules.needs_all_keys:
            rows = rows[self._has_keys.take(rows)]
        for constraint in self._constraints:
            constraint.weigh(rows)

    def scores(self, rows: Rows) -> Scores:
        """Returns int64[rows]: the raw scores; LEFT_OUT for rows that lack a topology key if all keys are required."""
        total, selection = np.zeros(len(rows), np.float64), Selection(rows)
        for constraint in self._constraints:
            total += constraint.credit(selection)
        whole = np.floor(total)
        whole += total - whole >= 0.5  # rounds half away from zero; floor(total + 0.5) would be wrong for some values
        found = whole.astype(np.int64)
        if self.rules.needs_all_keys:
            np.copyto(found, LEFT_OUT, where=~selection.of(self._has_keys))
        return found


class _SoftConstraint:
    """One soft constraint with its domains or, for the hostname, with the pods per row."""

    __slots__ = ("_blank", "_labels", "_weight", "is_by_row", "rule", "tally")

    def __init__(self, nodes: NodeView, rule: SpreadRule, eligible: Bools) -> None:
        self.rule = rule
        self.is_by_row = rule.key == HOSTNAME
        self._labels = nodes.label_codes(rule.key)
        self._blank = nodes.label_code(rule.key, "")
        self._weight = 0.0
        # For the hostname, all pods of the row count, whatever the constraint's node inclusion policies.
        self.tally = (
            DomainTally(nodes, None, rule.sources)
            if self.is_by_row
            else DomainTally(nodes, rule.key, rule.sources, eligible)
        )

    def weigh(self, rows: Rows) -> None:
        self._weight = natural_log((len(rows) if self.is_by_row else self._domain_count(rows)) + 2)

    def _domain_count(self, rows: Rows) -> int:
        seen = np.zeros(len(self.tally.counts), np.bool_)
        seen[self.tally.codes.take(rows)] = True
        if self._blank and seen[self._blank]:
            seen[0] = False  # a missing and an empty label are one domain here
        return int(np.count_nonzero(seen))

    def credit(self, selection: Selection) -> Floats:
        """Returns float64[rows]: pods times weight plus maxSkew - 1; 0 for rows without the label."""
        offset = float(self.rule.constraint.max_skew - 1)
        if self.is_by_row:
            found = selection.of(self.tally.counts).astype(np.float64) * self._weight + offset
            return np.where(selection.of(self._labels) != 0, found, 0.0)
        counts: Int64 = self.tally.counts
        if self._blank:
            counts = counts.copy()
            counts[self._blank] += self.tally.unlabelled
        by_code = counts.astype(np.float64) * self._weight + offset
        by_code[0] = 0.0
        return by_code.take(selection.of(self.tally.codes))
