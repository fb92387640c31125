"""The record of each attempt: compact when written, rendered only when `observe` or `shell` reads it.

Owns the records of one domain. Writing the record of a placed pod takes a microsecond. It has the node, scores, and a reference to
the latest snapshot of the pod's class. A `ScoreSnapshot` is a copy of the class's columns. Each refused attempt has one; pods of a
class share it while none of its rows change. One in SAMPLED_EVERY placed pods of a class has one. So the runners-up
of a placed pod may be up to SAMPLED_EVERY decisions old. The number of pods, attempts per pod and bytes of snapshots are
bounded. A dropped record is reported as dropped; `explain` can then evaluate the present cluster. Only the cycle writes
records, and writing never waits; any code on the event loop may call `read`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.columns import ScoreColumn
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.placement_log import Placement, PlacementLog
from multisched.cycle.classes.score_snapshot import ClassSnapshots, Mark, Score, ScoreSnapshot
from multisched.cycle.diagnosis import Diagnosis
from multisched.framework.node_view import Scores
from multisched.framework.preemption import Preemption
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod

REFUSED_PODS_KEPT = 8_192
"""Maximum number of pods of one domain with attempts other than plain placements; about 500 bytes per attempt. At the limit,
the older half is dropped."""
ATTEMPTS_KEPT = 4
"""Maximum number of attempts kept per pod; older ones are dropped."""
SAMPLED_EVERY = 256
"""A snapshot is taken for one in this many placed pods of a class."""
REFUSED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of snapshots of refused attempts of one domain: about 200 snapshots at 5,000 nodes."""
SAMPLED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of snapshots of attempts that placed a pod."""
STATUS_BYTES = 160
"""Estimated bytes of one entry of `remote_refusals` or `blocked`."""

_BYTES = tuple(bytes((final,)) for final in range(256))
"""The byte string of each possible final score, built once."""


class Outcome(Enum):
    """How an attempt ended."""

    PLACED = "placed"
    REFUSED = "refused"
    CONFLICT = "conflict"
    ERROR = "error"
    GIVEN_UP = "given up"
    """A node was found, but a later extension point or the API server rejected the pod there."""


def mark_of(pod_class: EquivalenceClass) -> Mark:
    """Returns a mark that differs whenever a row of the class may have changed."""
    return pod_class.generation, pod_class.node_sequence, pod_class.row_sequence


def _snapshot_of(
    pod_class: EquivalenceClass, at_s: float, *, with_scores: bool = True, with_raw: bool = False
) -> ScoreSnapshot:
    is_scored = pod_class.is_scored and with_scores
    return ScoreSnapshot(
        at_s,
        mark_of(pod_class),
        pod_class.rows,
        pod_class.feasible,
        pod_class.filters,
        pod_class.scores if is_scored else (),
        pod_class.total if is_scored else pod_class.total[:0],
        domain_size=pod_class.domain_size,
        refusal=pod_class.refusal,
        narrowed_by=pod_class.narrowed_by,
        skipped=pod_class.skipped,
        raw=[_raw_of(pod_class, column) for column in pod_class.scores] if is_scored and with_raw else (),
    )


def _raw_of(pod_class: EquivalenceClass, column: ScoreColumn) -> Scores:
    """Returns int64[rows], scores before normalization. A plugin evaluated by group is called again, as its raw scores are not kept."""
    if column.is_plain or column.is_skipped:
        return column.final.astype(np.int64)
    if column.groups is None:
        return column.raw.astype(np.int64)
    raw, at = np.zeros(len(pod_class.rows), np.int64), pod_class.feasible.nonzero()[0]
    raw[at] = column.plugin.score(pod_class.view, pod_class.pod, pod_class.rows.take(at))
    return raw


class AttemptRecord(msgspec.Struct, frozen=True):
    """One attempt, as `read` returns it."""

    attempt: int
    at_s: float
    """Monotonic clock."""
    outcome: Outcome
    node: str = ""
    """The node it was placed on, also if the placement was given up later."""
    at: int = -1
    """Position of that node's row among the rows of the class."""
    scores: tuple[Score, ...] = ()
    """Scores of the chosen row."""
    total: int = 0
    snapshot: ScoreSnapshot | None = None
    is_own_snapshot: bool = False
    """True if the snapshot is of this attempt; false if it is of an earlier attempt of its class."""
    passed_over: tuple[str, ...] = ()
    """Nodes with better scores that the pod no longer fitted at commit."""
    found: Diagnosis | None = None
    blocked: Mapping[int, Status] = msgspec.field(default_factory=dict)
    """Position in the snapshot's rows -> the status with which pods nominated to that row block it."""
    remote_refusals: Sequence[tuple[str, Status]] = ()
    """(node name, status) of each node that passed all other filters and was refused by a plugin with remote requests."""
    post_filter: str = ""
    nominated_node: str = ""
    victims: tuple[str, ...] = ()
    """Victims of the preemption, NAMESPACE/NAME."""
    victim_nodes: tuple[str, ...] = ()
    """The node of each victim."""
    is_of_gang: bool = False
    """PostFilter ran for the pods that must start together, not for this pod alone."""
    message: str = ""
    status: Status = SUCCESS
    """The status that ended an attempt which was given up or failed."""


class _Generations:
    """Pod UID -> attempts, of at most `most` pods. At the limit, the older half is dropped in one step, without a cost per pod."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._young: dict[str, tuple[AttemptRecord, ...]] = {}
        self._old: dict[str, tuple[AttemptRecord, ...]] = {}

    def put(self, uid: str, kept: tuple[AttemptRecord, ...]) -> None:
        young = self._young
        if len(young) >= self._half and uid not in young:
            self._old = young
            young = self._young = {}
        young[uid] = kept

    def get(self, uid: str) -> tuple[AttemptRecord, ...]:
        return self._young.get(uid) or self._old.get(uid, ())

    def __len__(self) -> int:
        """An upper bound of the number of pods: one may be in both halves."""
        return len(self._young) + len(self._old)


class _Snapshots:
    """Snapshots, oldest first, bounded by their bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[ScoreSnapshot] = deque()
        self.nbytes = 0

    def keep(self, snapshot: ScoreSnapshot) -> None:
        self._kept.append(snapshot)
        self.nbytes += snapshot.nbytes
        while self.nbytes > self._bytes_max and len(self._kept) > 1:
            oldest = self._kept.popleft()
            self.nbytes -= oldest.nbytes
            oldest.drop()

    def weigh(self, nbytes: int) -> None:
        """Adds to the latest snapshot's size the bytes that its attempt keeps in addition to the snapshot's arrays."""
        self._kept[-1].nbytes += nbytes
        self.nbytes += nbytes


class AttemptRecords:
    """The records of one domain."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._sampled_every = SAMPLED_EVERY
        self._keeps_raw = False
        self._placed = PlacementLog()
        self._rare = _Generations(REFUSED_PODS_KEPT)
        self._samples = _Snapshots(SAMPLED_BYTES_MAX)
        self._refusals = _Snapshots(REFUSED_BYTES_MAX)

    def keep_all_snapshots(self, *, with_raw: bool = False) -> None:
        """Makes each later placement take a snapshot, for a sandbox; with raw scores if `with_raw`."""
        self._sampled_every = 1
        self._keeps_raw = with_raw

    # -- written by the cycle --------------------------------------------------------------------------------------

    def placed(self, pod: Pod, attempt: int, pod_class: EquivalenceClass, at: int, node: str) -> None:
        """Records that the pod is assumed on row number `at` of the class. Called before the class is renewed."""
        now_s = self._stopwatch()
        snapshots = pod_class.snapshots
        snapshot = snapshots.placed
        if snapshot is None or snapshots.left <= 0 or snapshots.fixed_changes != pod_class.fixed_changes:
            snapshot = self._sample(pod, attempt, pod_class, snapshots, now_s)
        snapshots.left -= 1
        # A pod placed on its nominated node has a class of that one row, which is not scored.
        total = pod_class.total.item(at) if pod_class.is_scored else 0
        # Only the scores that change with every pod are read here, as each column read is a cache miss. The others come from the
        # snapshot, which is retaken when they change; the last moving score is the remainder of the total.
        moving = pod_class.moving_scores
        # Two moving scores: kube-scheduler's profile, unless pods have affinity to each other.
        if len(moving) == 2:
            finals = _BYTES[moving[0].final.item(at)]
        else:
            finals = bytes([one.final.item(at) for one in moving[:-1]]) if moving else b""
        log = self._placed.room()
        log += (pod.uid, attempt, now_s, node, at, finals, total, snapshot)

    def placements_per_snapshot(self, pod_class: EquivalenceClass) -> int:
        """Returns how many pods may be placed before the class must be renewed, so that the next snapshot is up to date."""
        snapshots = pod_class.snapshots
        if snapshots.placed is None or snapshots.left <= 0 or snapshots.fixed_changes != pod_class.fixed_changes:
            return self._sampled_every
        return snapshots.left

    def remove_latest(self, pod_class: EquivalenceClass, count: int) -> None:
        """Removes the records of the latest placements, which were all of this class and took no snapshot.

        If the class was rebuilt since, its snapshots were already dropped.
        """
        if count:
            self._placed.remove_latest(count)
            snapshots = pod_class.snapshots
            snapshots.left += count

    def _sample(
        self, pod: Pod, attempt: int, pod_class: EquivalenceClass, snapshots: ClassSnapshots, now_s: float
    ) -> ScoreSnapshot:
        snapshot = snapshots.placed = _snapshot_of(pod_class, now_s, with_raw=self._keeps_raw)
        snapshot.of = (pod.uid, attempt)
        self._samples.keep(snapshot)
        snapshots.left, snapshots.fixed_changes = self._sampled_every, pod_class.fixed_changes
        return snapshot

    def snapshot(self, pod_class: EquivalenceClass) -> ScoreSnapshot:
        """Returns a snapshot of the class for an attempt that is about to wait for remote responses."""
        return _snapshot_of(pod_class, self._stopwatch(), with_raw=self._keeps_raw)

    def placed_after_wait(
        self, pod: Pod, attempt: int, snapshot: ScoreSnapshot, at: int, node: str, passed_over: tuple[str, ...]
    ) -> None:
        """Records a placement, as `placed` does, for an attempt that waited. `snapshot`: the attempt's own, with the responses."""
        self._samples.keep(snapshot)
        snapshot.of = (pod.uid, attempt)
        now_s, total = self._stopwatch(), snapshot.total.item(at)
        finals = bytes([column.final.item(at) for column in snapshot.scores if column.is_moving][:-1])
        log = self._placed.room()
        log += (pod.uid, attempt, now_s, node, at, finals, total, snapshot)
        if passed_over:
            self._add(pod, AttemptRecord(attempt, now_s, Outcome.PLACED, passed_over=passed_over))

    def refused(
        self,
        pod: Pod,
        attempt: int,
        pod_class: EquivalenceClass,
        found: Diagnosis,
        *,
        blocked: Mapping[int, Status],
        remote_refusals: Sequence[tuple[str, Status]],
        post_filter: str,
        nominated_node: str,
        preemption: Preemption | None,
        message: str,
    ) -> None:
        """Records that the pod fitted no row."""
        now_s = self._stopwatch()
        snapshots = pod_class.snapshots
        snapshot = snapshots.refused
        if snapshot is None or not snapshot.shows(mark_of(pod_class), pod_class.refusal, pod_class.filters):
            snapshot = snapshots.refused = _snapshot_of(pod_class, now_s, with_scores=False)
            self._refusals.keep(snapshot)
        if remote_refusals or blocked:
            self._refusals.weigh(STATUS_BYTES * (len(remote_refusals) + len(blocked)))
        victims, victim_nodes = _victims(preemption)
        record = AttemptRecord(
            attempt,
            now_s,
            Outcome.REFUSED,
            snapshot=snapshot,
            is_own_snapshot=True,
            found=found,
            blocked=blocked,
            remote_refusals=remote_refusals,
            post_filter=post_filter,
            nominated_node=nominated_node,
            victims=victims,
            victim_nodes=victim_nodes,
            message=message,
        )
        self._add(pod, record)

    def gang_refused(
        self,
        pod: Pod,
        attempt: int,
        *,
        post_filter: str,
        nominated_node: str,
        preemption: Preemption | None,
        message: str,
    ) -> None:
        """Adds the result for the gang to the member's record of this attempt; a member that was not evaluated has none."""
        kept = self._rare.get(pod.uid)
        if not kept or kept[-1].attempt != attempt or kept[-1].outcome is not Outcome.REFUSED:
            return
        victims, victim_nodes = _victims(preemption)
        record = replace(
            kept[-1],
            post_filter=post_filter,
            nominated_node=nominated_node,
            victims=victims,
            victim_nodes=victim_nodes,
            is_of_gang=True,
            message=message,
        )
        self._rare.put(pod.uid, (*kept[:-1], record))

    def conflicted(self, pod: Pod, attempt: int, passed_over: tuple[str, ...], refusal: str) -> None:
        """Records that the pod no longer fitted any candidate. `refusal`: why a ledger refused it; may be empty."""
        now_s = self._stopwatch()
        self._add(pod, AttemptRecord(attempt, now_s, Outcome.CONFLICT, message=refusal, passed_over=passed_over))

    def failed(self, pod: Pod, attempt: int, status: Status) -> None:
        """Records that a plugin failed, or that a PreScore plugin refused."""
        now_s = self._stopwatch()
        self._add(pod, AttemptRecord(attempt, now_s, Outcome.ERROR, message=status.message, status=status))

    def given_up(self, pod: Pod, attempt: int, node: str, status: Status) -> None:
        """Records that the pod was placed and later rejected."""
        now_s = self._stopwatch()
        self._add(pod, AttemptRecord(attempt, now_s, Outcome.GIVEN_UP, node, message=status.message, status=status))

    def _add(self, pod: Pod, record: AttemptRecord) -> None:
        self._rare.put(pod.uid, (*self._rare.get(pod.uid)[-(ATTEMPTS_KEPT - 1) :], record))

    # -- read by others --------------------------------------------------------------------------------------------

    def read(self, uid: str) -> tuple[AttemptRecord, ...]:
        """Returns the pod's attempts, oldest first; empty if no record is kept."""
        found: dict[int, AttemptRecord] = {}
        for record in (*self._placed_of(uid), *self._rare.get(uid)):
            before = found.get(record.attempt)
            # An interrupted attempt is repeated under the same number: the later record counts.
            if before is None or record.at_s >= before.at_s:
                found[record.attempt] = record if before is None else _joined(before, record)
        return tuple(sorted(found.values(), key=lambda record: (record.at_s, record.attempt))[-ATTEMPTS_KEPT:])

    def _placed_of(self, uid: str) -> list[AttemptRecord]:
        return [_placed_record(one) for one in self._placed.of(uid)]

    def latest(self, count: int) -> Iterator[Placement]:
        """Yields the latest attempts that placed a pod, the newest first; `record_of` reads one."""
        return self._placed.latest(count)

    @staticmethod
    def record_of(placement: Placement) -> AttemptRecord:
        """Returns the record of a placement, without what happened to the pod later."""
        return _placed_record(placement)

    def statistics(self) -> dict[str, int]:
        """Returns sizes, each bounded above: placed attempts, pods with other attempts, and bytes of snapshots."""
        return {
            "placed": len(self._placed),
            "rare_pods": len(self._rare),
            "sampled_bytes": self._samples.nbytes,
            "refused_bytes": self._refusals.nbytes,
        }


def _placed_record(one: Placement) -> AttemptRecord:
    return AttemptRecord(
        one.attempt,
        one.at_s,
        Outcome.PLACED,
        node=one.node,
        at=one.at,
        scores=one.snapshot.scores_at(one.at, one.finals, one.total),
        total=one.total,
        snapshot=one.snapshot,
        is_own_snapshot=one.snapshot.of == (one.uid, one.attempt),
    )


def _victims(preemption: Preemption | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the keys of the victims, and the node of each."""
    by_node = {} if preemption is None else preemption.victims
    victims_on_nodes = [(node, victim) for node, victims in by_node.items() for victim in victims]
    return tuple(victim.key for _, victim in victims_on_nodes), tuple(node for node, _ in victims_on_nodes)


def _joined(placed: AttemptRecord, later: AttemptRecord) -> AttemptRecord:
    """Merges the record of a placement with what happened to the pod later in the same attempt."""
    if later.outcome is Outcome.PLACED and later.passed_over:
        return replace(placed, passed_over=later.passed_over)
    if later.outcome is Outcome.GIVEN_UP:
        return replace(placed, outcome=Outcome.GIVEN_UP, message=later.message, status=later.status)
    return later
