"""The state of a LoanLedger that background tasks and pending pods have set, by node, for a copy of the program with other row numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from multisched.framework.node_view import NodeView
from multisched.model.objects import Pod
from multisched.plugins.loans.needs import Needs
from multisched.plugins.loans.pools import Pool
from multisched.plugins.loans.slices.slice_rows import SliceRows
from multisched.plugins.slices.sides import LoanKey


class Handed(msgspec.Struct):
    """The state that was set for one node."""

    amounts: list[tuple[int, bool, str, int]] = []
    """(number of the pool, True for an offer and False for a reserve, resource, amount)."""
    reserved: list[tuple[LoanKey, str, int]] = []
    needs: list[Pod] = []


def handed_by_node(pools: Sequence[Pool], slices: SliceRows, needs: Needs, nodes: NodeView) -> Mapping[str, Handed]:
    """Returns node -> the state that is set for it."""
    handed: dict[str, Handed] = {}
    for number, pool in enumerate(pools):
        for is_offer, columns in ((False, pool.reserve), (True, pool.offer)):
            for resource, column in columns.items():
                for row in column.nonzero()[0].tolist():
                    one = handed.setdefault(nodes.node(row).name, Handed())
                    one.amounts.append((number, is_offer, resource, int(column[row])))
    for key, resource, row, amount in slices.entries():
        handed.setdefault(nodes.node(row).name, Handed()).reserved.append((key, resource, amount))
    for need in needs.all():
        handed.setdefault(nodes.node(need.row).name, Handed()).needs.append(need.pod)
    return handed
