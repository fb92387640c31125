"""The rows that count for a spread constraint and their domains, cached for all classes with the same policies.

Most workloads are spread by the same keys over the same nodes. The cache is valid until a node object or the rows of the
resource domain change. PodTopologySpread owns one per scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import numpy as np

from multisched.framework.node_view import Bools, Int32, NodeView, Rows
from multisched.framework.points import CycleView
from multisched.plugins.node_matching import NodeMatcher
from multisched.plugins.taint_toleration import are_untolerated
from multisched.plugins.topology.spread_rules import SpreadRule, SpreadRules

ANSWERS_KEPT: Final = 64
"""Maximum number of cached results, one byte per row each. If exceeded, the cache is cleared, which only costs time."""

A = TypeVar("A")


class EligibleRows:
    """The rows that have all topology keys and pass a constraint's node inclusion policies."""

    def __init__(self) -> None:
        self._nodes_version = -1
        self._places: Rows | None = None
        self._known: dict[Hashable, object] = {}

    def with_keys(self, cycle: CycleView, constraints: Sequence[SpreadRule]) -> Bools:
        """Returns bool[all rows], read only: rows of the resource domain that have the keys of all constraints."""
        keys = tuple(dict.fromkeys(rule.key for rule in constraints))
        return self._found(cycle, keys, lambda: self._of_table(cycle, self._present(cycle, keys)))

    def of(self, cycle: CycleView, rules: SpreadRules, rule: SpreadRule, needed: Sequence[SpreadRule]) -> Bools:
        """Returns bool[all rows], read only: rows whose pods count for the constraint.

        `needed`: constraints whose keys a row must have.
        """
        keys, key = _question(rules, rule, needed)

        def made() -> Bools:
            found, rows = self._present(cycle, keys), _rows_of(cycle)
            if rule.constraint.honors_affinity:
                match = NodeMatcher(cycle.nodes, rows)
                found &= match.all_of(rules.affinity.node_selector)
                if rules.affinity.required is not None:
                    found &= match.any_of(rules.affinity.required.terms)
            if rule.constraint.honors_taints:
                found &= ~are_untolerated(cycle.nodes, rows, rules.tolerations)
            return self._of_table(cycle, found)

        return self._found(cycle, key, made)

    def domains(self, cycle: CycleView, rules: SpreadRules, rule: SpreadRule, needed: Sequence[SpreadRule]) -> Int32:
        """Returns int32[domains], read only, ascending: the codes of the constraint's key on the rows of `of`."""
        _, key = _question(rules, rule, needed)
        is_eligible = self.of(cycle, rules, rule, needed)
        return self._found(
            cycle, (rule.key, key), lambda: np.unique(cycle.nodes.label_codes(rule.key)[is_eligible]).astype(np.int32)
        )

    def _found(self, cycle: CycleView, key: Hashable, make: Callable[[], A]) -> A:
        nodes: NodeView = cycle.nodes
        if nodes.nodes_version != self._nodes_version or cycle.places is not self._places:
            self._known.clear()
            self._nodes_version, self._places = nodes.nodes_version, cycle.places
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= ANSWERS_KEPT:
                self._known.clear()
            found = self._known[key] = make()
        return found  # type: ignore[return-value]

    def _present(self, cycle: CycleView, keys: Sequence[str]) -> Bools:
        """Returns a new bool[rows of the resource domain]: rows that have all keys."""
        rows = _rows_of(cycle)
        present = np.ones(len(rows), np.bool_)
        for key in keys:
            present &= cycle.nodes.label_codes(key).take(rows) != 0
        return present

    def _of_table(self, cycle: CycleView, at_rows: Bools) -> Bools:
        found = np.zeros(len(cycle.nodes.taint_set), np.bool_)
        found[_rows_of(cycle)] = at_rows
        return found


def _rows_of(cycle: CycleView) -> Rows:
    return np.arange(len(cycle.nodes.taint_set), dtype=np.intp) if cycle.places is None else cycle.places


def _question(rules: SpreadRules, rule: SpreadRule, needed: Sequence[SpreadRule]) -> tuple[tuple[str, ...], Hashable]:
    """Returns the keys that a row must have, and the cache key of the result."""
    keys = tuple(dict.fromkeys(one.key for one in needed))
    affinity = (rules.affinity.node_selector, rules.affinity.required) if rule.constraint.honors_affinity else None
    return keys, (keys, affinity, rules.tolerations if rule.constraint.honors_taints else None)
