"""Matching of requirements, selectors and node selector terms, vectorised on label codes."""

from __future__ import annotations

import numpy as np

from multisched.framework.node_view import Bools, Int32, NodeView, Rows
from multisched.model.selectors import NODE_NAME_FIELD, NodeTerm, Operator, Requirement
from multisched.plugins.columns import Selection

ISIN_FROM = 8
"""From this many values on, one call of numpy.isin is cheaper than one comparison per value."""


class NodeMatcher:
    """Matches requirements and terms against the rows of one call; each method returns bool[rows]."""

    def __init__(self, nodes: NodeView, rows: Rows) -> None:
        self._nodes = nodes
        self._rows = rows
        self._selection = Selection(rows)
        self.count = len(rows)

    def any_of(self, terms: tuple[NodeTerm, ...]) -> Bools:
        matched = np.zeros(len(self._rows), np.bool_)
        for term in terms:
            matched |= self.term(term)
        return matched

    def term(self, term: NodeTerm) -> Bools:
        if not term.is_valid or term.is_empty:
            return np.zeros(len(self._rows), np.bool_)
        matched = self.all_of(term.expressions)
        for field in term.fields:
            matched = matched & self._field(field)
        return matched

    def all_of(self, requirements: tuple[Requirement, ...]) -> Bools:
        matched = np.ones(len(self._rows), np.bool_)
        for requirement in requirements:
            matched &= self._label(requirement)
        return matched

    def _label(self, requirement: Requirement) -> Bools:
        codes = self._selection.of(self._nodes.label_codes(requirement.key))
        match requirement.operator:
            case Operator.IN:
                return self._has_value(codes, requirement)
            case Operator.NOT_IN:
                return ~self._has_value(codes, requirement)
            case Operator.EXISTS:
                return np.not_equal(codes, 0)
            case Operator.DOES_NOT_EXIST:
                return np.equal(codes, 0)
            case Operator.GT | Operator.LT:
                return self._compares(codes, requirement)

    def _compares(self, codes: Int32, requirement: Requirement) -> Bools:
        """Evaluates Gt or Lt once per distinct label value."""
        values = self._nodes.label_values(requirement.key)
        table = np.zeros(len(values), np.bool_)
        for code in range(1, len(values)) if len(values) <= len(codes) else set(codes.tolist()) - {0}:
            table[code] = requirement.matches_value(values[code])
        return table.take(codes)

    def _has_value(self, codes: Int32, requirement: Requirement) -> Bools:
        wanted = {self._nodes.label_code(requirement.key, value) for value in requirement.values} - {0}
        if len(wanted) >= ISIN_FROM:
            return np.isin(codes, np.fromiter(wanted, np.int32, len(wanted)))
        matched = np.zeros(len(codes), np.bool_)
        for code in wanted:
            matched |= codes == code
        return matched

    def _field(self, field: Requirement) -> Bools:
        """Matches metadata.name; any other field has an empty value. A valid field requirement has exactly one value."""
        if field.key != NODE_NAME_FIELD:
            return np.full(len(self._rows), field.matches_value(""), np.bool_)
        row = self._nodes.row_of(field.values[0])
        is_row: Bools = self._rows == (-1 if row is None else row)
        return is_row if field.operator is Operator.IN else ~is_row
