"""What background tasks and waiting pods have set in a LoanLedger, for a copy of the program in which rows have other numbers."""

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
    """What was set for one node."""

    amounts: list[tuple[int, bool, str, int]] = []
    """Number of the pool, whether it is an offer (else a reserve), resource, amount."""
    reserved: list[tuple[LoanKey, str, int]] = []
    needs: list[Pod] = []


def handed_by_node(pools: Sequence[Pool], slices: SliceRows, needs: Needs, nodes: NodeView) -> Mapping[str, Handed]:
    """Returns what is set, by the name of the node."""
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
