"""Why a pod fits on no node: counted cheaply, rendered as kube-scheduler's sentence only on demand.

Source of the sentence: kube-scheduler 1.36 pkg/scheduler/framework/types.go, FitError.Error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.columns import FilterColumn
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.node_view import PASSES, Int32, NodeView, Rows
from multisched.framework.status import Code, Status

_PENDING: Final = Code.PENDING
"""`_PENDING` and `_UNSCHEDULABLE` are module constants because in Python 3.11 looking up an enum member takes as long as three calls."""
_UNSCHEDULABLE: Final = Code.UNSCHEDULABLE
CODES = 256
"""More than the largest code of a filter."""
NO_NODES = "no nodes available to schedule pods"


class Verdicts:
    """The plugin that refused each row first; read by PostFilter, which mostly needs only `curable_count`.

    It is a copy, because the class may be renewed during a wait.
    """

    def __init__(
        self, rows: Rows, generation: int, first: Int32, numbers: Sequence[int], counts: Sequence[tuple[Status, int]]
    ) -> None:
        """`first`: as `_first_refusals` returns it; `numbers`: those in it, one for each of `counts`."""
        self.rows = rows
        self.generation = generation
        """Generation of the domain's rows: while it is the same, all rows belong to the domain."""
        self.statuses = tuple([status for status, _ in counts])
        self.curable_count = sum([count for status, count in counts if status.code is _UNSCHEDULABLE])
        """Number of rows with the code Unschedulable, which evictions could make feasible."""
        self._first = first
        self._numbers = numbers

    @cached_property
    def which(self) -> Int32:
        """int32[rows]: index into `statuses`; -1 where no plugin asked so far refused the row."""
        place = np.full(self._first.max(initial=0) + 1, -1, np.int32)
        place[self._numbers] = range(len(self._numbers))
        return place.take(self._first)

    @cached_property
    def curable_rows(self) -> Rows:
        """The rows counted by `curable_count`, ascending."""
        curable = np.array([status.code is _UNSCHEDULABLE for status in self.statuses] + [False], np.bool_)
        return self.rows.take(curable.take(self.which).nonzero()[0])


class Diagnosis(msgspec.Struct, frozen=True):
    """The refusals of one attempt."""

    node_count: int
    pre_filter: Status | None = None
    counts: tuple[tuple[Status, int], ...] = ()
    """Each status that was the first to refuse some rows, and the number of these rows."""
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    nodes: Sequence[tuple[str, Status]] = ()
    """Node name and first refusing status: of all rows on demand, and always of rows refused after remote responses."""
    verdicts: Verdicts | None = None
    """Set if the profile has a PostFilter plugin."""
    blocked: Mapping[int, Status] = msgspec.field(default_factory=dict)
    """Position in the class's rows -> why the row is refused when the pods nominated there are counted."""

    def with_more(self, refused: Sequence[tuple[str, Status]]) -> Diagnosis:
        """Returns the same diagnosis with further nodes, each refused after all earlier filters passed."""
        statuses = [status for _, status in refused]
        return replace(
            self,
            counts=(*self.counts, *Counter(statuses).items()),
            rejectors=self.rejectors | {s.plugin for s in statuses if s.code is not _PENDING},
            pending=self.pending | {s.plugin for s in statuses if s.code is _PENDING},
            nodes=(*self.nodes, *refused),
        )


def diagnose(
    entry: EquivalenceClass,
    nodes: NodeView,
    *,
    blocked: Mapping[int, Status],
    with_names: bool = False,
    with_verdicts: bool = False,
) -> Diagnosis:
    """Counts refused rows by the first plugin that refused them.

    `blocked`: position in the class's rows -> the refusal of a row when the pods nominated there are counted. Such a row
    counts with this refusal, whether or not it would pass without those pods.
    """
    node_count = entry.domain_size
    if entry.refusal is not None:
        one = frozenset({*entry.narrowed_by, entry.refusal.plugin} - {""})
        is_pending = entry.refusal.code is _PENDING
        return Diagnosis(
            node_count,
            entry.refusal,
            rejectors=frozenset() if is_pending else one,
            pending=one if is_pending else frozenset(),
        )
    refusing = [column for column in entry.filters if np.count_nonzero(column.codes)]
    passes = CODES * len(refusing)
    first = _first_refusals(refusing, len(entry.rows))
    if blocked:
        first[list(blocked)] = passes
    tally = np.bincount(first, minlength=passes)
    numbers: list[int] = tally[:passes].nonzero()[0].tolist()
    counts: list[tuple[Status, int]] = []
    names: list[tuple[str, Status]] = []
    for number in numbers:
        filter_at, code = divmod(number, CODES)
        status = refusing[filter_at].plugin.reasons.status(code)
        counts.append((status, tally.item(number)))
        if with_names:
            names.extend((nodes.node(int(row)).name, status) for row in entry.rows[first == number])
    for status, count in Counter(blocked.values()).items() if blocked else ():
        numbers.append(passes + len(numbers) + 1)
        first[[at for at, one in blocked.items() if one is status or one == status]] = numbers[-1]
        counts.append((status, count))
    verdicts = Verdicts(entry.rows, entry.generation, first, numbers, counts) if with_verdicts else None
    if with_names:
        names.extend((nodes.node(int(entry.rows[at])).name, status) for at, status in blocked.items())
    rejectors = {s.plugin for s, _ in counts if s.code is not _PENDING and s.plugin}
    pending = {s.plugin for s, _ in counts if s.code is _PENDING}
    if entry.narrowed is not None:
        rejectors |= set(entry.narrowed_by)
        outside = f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(entry.narrowed_by))}]"
        if node_count > len(entry.rows):
            status = Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "", (outside,))
            counts.append((status, node_count - len(entry.rows)))
    return Diagnosis(
        node_count, None, tuple(counts), frozenset(rejectors), frozenset(pending), names, verdicts, blocked
    )


def _first_refusals(refusing: Sequence[FilterColumn], rows: int) -> Int32:
    """Returns int32[rows]: CODES times the position of the first filter that refuses the row, plus its code.

    CODES times the number of filters if none does.
    """
    first: Int32 = np.full(rows, CODES * len(refusing), np.int32)
    for at, column in reversed(list(enumerate(refusing))):  # an earlier filter overwrites what later ones wrote
        np.putmask(first, column.codes != PASSES, column.codes + np.int32(CODES * at))
    return first


def refused_node(status: Status) -> Diagnosis:
    """Returns the diagnosis of a pod that Reserve or Permit rejected. It counts only the chosen node."""
    names = frozenset({status.plugin} - {""})
    if not status.code.is_rejection:
        return Diagnosis(1)
    is_pending = status.code is _PENDING
    return Diagnosis(
        1,
        counts=((status, 1),),
        rejectors=frozenset() if is_pending else names,
        pending=names if is_pending else frozenset(),
    )


def fit_error(diagnosis: Diagnosis, post_filter: str = "") -> str:
    """Returns `0/5 nodes are available: 3 Insufficient cpu, 2 node(s) were unschedulable.`, then PostFilter's part if any."""
    if diagnosis.node_count == 0:
        return NO_NODES
    text = f"0/{diagnosis.node_count} nodes are available:"
    if diagnosis.pre_filter is not None:
        text += f" {diagnosis.pre_filter.message}."
    else:
        tally: dict[str, int] = {}
        for status, count in diagnosis.counts:
            for reason in status.reasons:
                tally[reason] = tally.get(reason, 0) + count
        if tally:
            text += " " + ", ".join(sorted(f"{count} {reason}" for reason, count in tally.items())) + "."
    return f"{text} {post_filter}" if post_filter else text
