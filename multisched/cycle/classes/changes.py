"""Changes: the rows and objects that were written since a class was renewed, from which masks and scores are renewed."""

from __future__ import annotations

import numpy as np

from multisched.cycle.classes.columns import FilterColumn, ScoreColumn
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import NO_ROWS, Rows
from multisched.state.domain_rows import DomainRows

_ROW = Dependency.ROW
"""Module constants, because in Python 3.11 looking up an enum member takes as long as three calls."""
_NODE = Dependency.NODE


class Changes:
    """The rows that were written since a class was renewed, as ascending positions in the class's rows."""

    __slots__ = ("_rows_in_table", "is_everywhere", "is_far", "moved_filters", "moved_scores", "nodes", "rows")

    def __init__(
        self,
        nodes: Rows,
        rows: Rows,
        rows_in_table: Rows,
        moved_filters: frozenset[str],
        moved_scores: frozenset[str],
        *,
        is_everywhere: bool,
    ) -> None:
        self.nodes = nodes
        """Rows whose node object changed."""
        self.rows = rows
        """Rows whose node object or pods changed."""
        self._rows_in_table = rows_in_table
        self.moved_filters = moved_filters
        """Plugins whose filters depend on a changed cache key; all plugins with a cache key if a node object changed."""
        self.moved_scores = moved_scores
        """Plugins whose scores depend on a changed cache key; all plugins with a cache key if a node object changed."""
        self.is_everywhere = is_everywhere
        """True if some node object of the cluster was added, changed or removed."""
        self.is_far = False
        """Set once the filters are renewed: rows other than the changed ones may have become feasible or infeasible, too."""

    def concerning(self, column: FilterColumn | ScoreColumn) -> Rows | None:
        """Returns the positions at which a plugin's results are outdated; None: all positions."""
        depends_on = column.depends_on
        if depends_on is _ROW:
            return self.rows
        if depends_on is _NODE:
            return self.nodes
        if depends_on.reads_cache_key:
            if column.plugin.name in (self.moved_scores if isinstance(column, ScoreColumn) else self.moved_filters):
                return None
            return self.rows if depends_on is Dependency.ROW_AND_CACHE_KEY else NO_ROWS
        if depends_on is Dependency.ATTEMPT or self.is_everywhere:
            return None
        return self.rows if depends_on is Dependency.CLUSTER else NO_ROWS

    def table_rows(self, pod_class: EquivalenceClass, at: Rows) -> Rows:
        """Returns the table rows at these positions."""
        return self._rows_in_table if at is self.rows else pod_class.rows.take(at)


def positions(pod_class: EquivalenceClass, domain: DomainRows, rows: Rows) -> Rows:
    """Maps table rows (ascending) to positions in the class's rows, ascending; drops rows outside the class."""
    if not len(rows) or not len(pod_class.rows):
        return NO_ROWS
    if pod_class.narrowed is None:
        if domain.are_first:
            return rows if rows.item(-1) < len(pod_class.rows) else rows[rows < len(pod_class.rows)]
        position = domain.position
        if rows.item(-1) >= len(position):
            rows = rows[rows < len(position)]
        found = position.take(rows)
        return found if found.min(initial=0) >= 0 else found[found >= 0]
    at = np.searchsorted(pod_class.rows, rows)
    at[at == len(pod_class.rows)] = 0
    return np.asarray(at[pod_class.rows[at] == rows], np.intp)
