"""DomainRows: the rows a domain may use, its own by home rule, others by loan.

A row that joins may be *withheld* for some time: by the rules it belongs to the domain, but the leader of another
domain may still be binding to it. `shell/leadership/handover.py` decides until when. A node that cannot be decoded
belongs to the domain too, but takes no pods. Pods on either kind of row count for topology spreading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

import numpy as np

from multisched.framework.node_view import Bools, Int64, Rows
from multisched.model.objects import Node
from multisched.model.version import Version
from multisched.state.columns.arrays import grown

NodeRule = Callable[[Node], bool]


class Use(IntEnum):
    """How a domain uses a row, in ascending order."""

    NONE = 0
    COUNTED = 1
    """Withheld, or not decodable: no pod may be placed there, but its pods count for topology spreading."""
    USED = 2


class DomainRows:
    """The rows of one domain, updated with each node. `generation` rises when `rows` or `places` change."""

    def __init__(
        self,
        domain: str,
        is_usable: NodeRule,
        why_not: Callable[[Node], str] = lambda _: "",
        is_sliced: NodeRule = lambda _: False,
    ) -> None:
        """`why_not`: returns the rule that makes a node unusable, and what would change that.

        `is_sliced`: reports whether only published slices of a usable node may be used. Such a row is never withheld: nothing of it is
        usable before its lender has offered it.
        """
        self.domain = domain
        self._is_usable = is_usable
        self._is_sliced = is_sliced
        self._sliced: set[int] = set()
        self._why_not = why_not
        self._member = np.zeros(64, np.bool_)
        self._joined: Int64 = np.zeros(64, np.int64)
        """The generation at which the row, with its current node, joined the domain."""
        self._rows: Rows = np.zeros(0, np.intp)
        self._position: Rows = np.full(64, -1, np.intp)
        self._is_stale = False
        self._are_first = True
        self.generation = 0
        self.may_join: Callable[[Node], bool] = lambda node: True
        """Called for a node that joins; False: its row is withheld until `admit`."""
        self._withheld: dict[int, Version] = {}
        self._unreadable: set[int] = set()
        self._places, self._places_at = self._rows, -1
        """The last value of `places`, and its generation; cached, because a node may stay undecodable for days."""

    def set_node(self, row: int, node: Node | None) -> None:
        """Adds or updates the node in the row; None: the node was removed."""
        while row >= len(self._member):
            self._member = grown(self._member, 2 * len(self._member))
            self._joined = grown(self._joined, len(self._member))
        if node is None or not self._is_usable(node):  # it was removed, or is of another domain
            if self.use_of(row) is not Use.NONE:
                self._sliced.discard(row)
                self._leave(row)
            return
        is_sliced = self._is_sliced(node)
        if is_sliced != (row in self._sliced):  # another use of the row: what was decided by the former one is void
            (self._sliced.add if is_sliced else self._sliced.discard)(row)
            self._leave(row)
        if node.malformed:
            self._leave(row, is_unreadable=True)
        elif not self._member.item(row) and row not in self._withheld:
            self._set_unreadable(row, is_it=False)
            if is_sliced or self.may_join(node):
                self._set_member(row, True)
            else:
                self._set_withheld(row, node.version)

    def _leave(self, row: int, *, is_unreadable: bool = False) -> None:
        """Ends the use of a row."""
        self._set_unreadable(row, is_it=is_unreadable)
        self._set_withheld(row, None)
        self._set_member(row, False)

    def withhold(self, row: int, node: Node) -> None:
        """Withholds a row again until it is admitted, unless it is sliced."""
        if row in self._sliced:
            return
        self._set_member(row, False)
        self._set_withheld(row, node.version)

    def admit(self, row: int, version: Version) -> None:
        """Ends the withholding, unless the row has left or joined again since."""
        if self._withheld.get(row) == version:
            self._set_withheld(row, None)
            self._set_member(row, True)

    def listed(self, version: Version) -> None:
        """Records a list of nodes: a withheld node may have been another domain's since the last watch event, so it joins with the list."""
        self._withheld = dict.fromkeys(self._withheld, version)

    @property
    def withheld(self) -> Mapping[int, Version]:
        """Row -> version with which its node joined."""
        return self._withheld

    def _set_withheld(self, row: int, version: Version | None) -> None:
        """Sets or ends (None) the withholding."""
        self.generation += (version is not None) != (row in self._withheld)
        if version is None:
            self._withheld.pop(row, None)
        else:
            self._withheld[row] = version

    def _set_unreadable(self, row: int, *, is_it: bool) -> None:
        self.generation += is_it != (row in self._unreadable)
        (self._unreadable.add if is_it else self._unreadable.discard)(row)

    def _set_member(self, row: int, belongs: bool) -> None:
        if belongs != self._member.item(row):
            self._member[row] = belongs
            self._is_stale = True
            self.generation += 1
            self._joined[row] = self.generation

    @property
    def rows(self) -> Rows:
        """Usable rows, ascending."""
        if self._is_stale:
            self._renew()
        return self._rows

    @property
    def places(self) -> Rows:
        """`rows` plus the withheld and undecodable ones, ascending: rows whose pods count."""
        if self._places_at != self.generation:
            others = [*self._withheld, *self._unreadable]
            self._places = np.union1d(self.rows, np.array(others, np.intp)) if others else self.rows
            self._places_at = self.generation
        return self._places

    @property
    def position(self) -> Rows:
        """intp[some rows]: index into `rows`; -1 for rows of other domains. Rows past its end are not the domain's either."""
        if self._is_stale:
            self._renew()
        return self._position

    @property
    def are_first(self) -> bool:
        """True if `rows` are the first rows of the table without a gap, so that each row equals its position."""
        if self._is_stale:
            self._renew()
        return self._are_first

    def has(self, row: int) -> bool:
        return row < len(self._member) and self._member.item(row)

    def why_not(self, row: int, node: Node) -> str:
        """Returns why no pod of the domain may be placed on a row outside `rows`, as the end of a sentence about its node."""
        if row in self._unreadable:
            return f"cannot be read: {node.malformed}"
        if row in self._withheld:
            return f"is withheld from domain {self.domain}: its previous domain may still be binding pods to it"
        why = self._why_not(node)
        return f"may not be used by domain {self.domain}{f': {why}' if why else ''}"

    def use_of(self, row: int) -> Use:
        if self.has(row):
            return Use.USED
        return Use.COUNTED if row in self._withheld or row in self._unreadable else Use.NONE

    def has_stayed(self, row: int, generation: int) -> bool:
        """Reports whether the row has belonged to the domain since `generation`, with the same node."""
        return self.has(row) and self._joined.item(row) <= generation

    def stayed_since(self, rows: Rows, generation: int) -> Bools:
        """Returns bool[len(rows)]: rows that have belonged to the domain since `generation`, with the same node."""
        stayed: Bools = self._member.take(rows) & (self._joined.take(rows) <= generation)
        return stayed

    def members(self) -> Bools:
        return self._member

    def _renew(self) -> None:
        self._rows = np.flatnonzero(self._member)
        self._position = np.full(len(self._member), -1, np.intp)
        self._position[self._rows] = np.arange(len(self._rows), dtype=np.intp)
        self._are_first = not len(self._rows) or self._rows.item(-1) == len(self._rows) - 1
        self._is_stale = False
