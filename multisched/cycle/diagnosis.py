"""Why a pod fits on no node: counted cheaply, rendered as kube-scheduler's sentence only on demand.

Source of the sentence: kube-scheduler 1.36 pkg/scheduler/framework/types.go, FitError.Error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.node_view import PASSES, Int32, NodeView, Rows
from multisched.framework.status import Code, Status

CODES = 256
"""More than the largest code of a filter."""
NO_NODES = "no nodes available to schedule pods"


class Verdicts(msgspec.Struct, frozen=True):
    """The plugin that refused each row first; read by PostFilter. A copy, as the class may be renewed during a wait."""

    rows: Rows
    which: Int32
    """int32[rows]: index into `statuses`; -1 where no plugin asked so far refused the row."""
    statuses: tuple[Status, ...]


class Diagnosis(msgspec.Struct, frozen=True):
    """The refusals of one attempt."""

    node_count: int
    pre_filter: Status | None = None
    counts: tuple[tuple[Status, int], ...] = ()
    """First refusing status and the number of rows it refused."""
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
            rejectors=self.rejectors | {s.plugin for s in statuses if s.code is not Code.PENDING},
            pending=self.pending | {s.plugin for s in statuses if s.code is Code.PENDING},
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
        is_pending = entry.refusal.code is Code.PENDING
        return Diagnosis(
            node_count,
            entry.refusal,
            rejectors=frozenset() if is_pending else one,
            pending=one if is_pending else frozenset(),
        )
    passes = CODES * len(entry.filters)
    first = _first_refusals(entry, passes)
    if blocked:
        first[list(blocked)] = passes
    tally = np.bincount(first, minlength=passes + 1)
    place = np.full(passes + 1, -1, np.int32)
    counts: list[tuple[Status, int]] = []
    names: list[tuple[str, Status]] = []
    for number in tally[:passes].nonzero()[0].tolist():
        filter_at, code = divmod(number, CODES)
        status = entry.filters[filter_at].plugin.reasons.status(code)
        place[number] = len(counts)
        counts.append((status, tally.item(number)))
        if with_names:
            names.extend((nodes.node(int(row)).name, status) for row in entry.rows[first == number])
    which: Int32 = place.take(first)
    for status, count in Counter(blocked.values()).items() if blocked else ():
        which[[at for at, one in blocked.items() if one is status or one == status]] = len(counts)
        counts.append((status, count))
    verdicts = Verdicts(entry.rows, which, tuple(status for status, _ in counts)) if with_verdicts else None
    if with_names:
        names.extend((nodes.node(int(entry.rows[at])).name, status) for at, status in blocked.items())
    rejectors = {s.plugin for s, _ in counts if s.code is not Code.PENDING and s.plugin}
    pending = {s.plugin for s, _ in counts if s.code is Code.PENDING}
    if entry.narrowed is not None:
        rejectors |= set(entry.narrowed_by)
        outside = f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(entry.narrowed_by))}]"
        if node_count > len(entry.rows):
            status = Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "", (outside,))
            counts.append((status, node_count - len(entry.rows)))
    return Diagnosis(
        node_count, None, tuple(counts), frozenset(rejectors), frozenset(pending), names, verdicts, blocked
    )


def _first_refusals(entry: EquivalenceClass, passes: int) -> Int32:
    """Returns int32[rows]: CODES times the position of the first filter that refuses the row, plus its code; `passes` if none does.

    `passes`: larger than any of these numbers.
    """
    first: Int32 = np.full(len(entry.rows), passes, np.int32)
    for at, column in enumerate(entry.filters):
        codes = column.codes
        if len(codes) and codes.item(codes.argmax()):
            first = np.minimum(first, (codes == PASSES) * np.int32(passes) + codes + np.int32(CODES * at))
    return first


def refused_node(status: Status) -> Diagnosis:
    """Returns the diagnosis of a pod that Reserve or Permit rejected: its chosen node is the only one that counts."""
    names = frozenset({status.plugin} - {""})
    if not status.code.is_rejection:
        return Diagnosis(1)
    is_pending = status.code is Code.PENDING
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
