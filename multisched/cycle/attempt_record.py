"""What every attempt leaves behind: compact while nobody asks, read by `observe` and `shell` when somebody does.

Owns the records of one domain. A placed pod costs a microsecond: its node, its scores plugin by plugin, and a reference to
its class's latest picture. A `Picture` is a copy of the class's columns; it is taken for every refused attempt (pods of a
class among whose rows nothing changed share one) and, of placed ones, for one in SAMPLED_EVERY of a class, so that of a
plain pod the runners-up are told as they were a few decisions earlier. Everything is bounded: pods, attempts per pod, bytes
of pictures; what is dropped is said to be dropped, and can be asked again of the cluster as it is now.
Written by the cycle alone, which never waits here; `read` is for anybody on the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from multisched.cycle.classes.equivalence_class import PodClass
from multisched.cycle.classes.placement_log import PlacementLog
from multisched.cycle.classes.score_snapshot import Mark, Picture, Score
from multisched.cycle.diagnosis import Diagnosis
from multisched.framework.preemption import Preemption
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod

REFUSED_PODS_KEPT = 8_192
"""Pods of one domain with attempts that did not go plainly, the latest: some 500 bytes for each attempt. At most; the older
half goes at once."""
ATTEMPTS_KEPT = 4
"""Attempts of one pod, the latest."""
SAMPLED_EVERY = 256
"""Placed pods of a class from one picture to the next."""
REFUSED_BYTES_MAX = 8 * 1024 * 1024
"""Pictures of refused attempts of one domain: some 200 at 5,000 nodes."""
SAMPLED_BYTES_MAX = 8 * 1024 * 1024
"""Pictures of attempts that placed a pod."""
STATUS_BYTES = 160
"""What one refusal by name costs: those of plugins that asked outside, and of rows held for nominated pods."""

_BYTES = tuple(bytes((final,)) for final in range(256))
"""Made once: a final score as it is kept."""


class Outcome(Enum):
    """How an attempt ended."""

    PLACED = "placed"
    REFUSED = "refused"
    CONFLICT = "conflict"
    ERROR = "error"
    GIVEN_UP = "given up"
    """It had a node, and a later point, or the API server, turned it away there."""


def mark_of(group: PodClass) -> Mark:
    """Moves whenever a row of the class may have."""
    return group.generation, group.node_sequence, group.row_sequence


def _picture_of(group: PodClass, at_s: float, *, with_scores: bool = True) -> Picture:
    is_scored = group.is_scored and with_scores
    return Picture(
        at_s,
        mark_of(group),
        group.rows,
        group.feasible,
        group.filters,
        group.scores if is_scored else (),
        group.total if is_scored else group.total[:0],
        domain_size=group.domain_size,
        refusal=group.refusal,
        narrowed_by=group.narrowed_by,
        skipped=group.skipped,
    )


class AttemptRecord(msgspec.Struct, frozen=True):
    """One attempt, as `read` gives it."""

    attempt: int
    at_s: float
    """Monotonic."""
    outcome: Outcome
    node: str = ""
    """Where it was placed, also if it was given up there later."""
    at: int = -1
    """Position of that node's row among the rows of the class."""
    scores: tuple[Score, ...] = ()
    """Of the chosen row."""
    total: int = 0
    picture: Picture | None = None
    is_own_picture: bool = False
    """The picture is of this very attempt, not of one of its class shortly before."""
    passed_over: tuple[str, ...] = ()
    """Nodes that were liked better, and no longer took the pod at commit."""
    found: Diagnosis | None = None
    held: Mapping[int, Status] = msgspec.field(default_factory=dict)
    """Position in the picture's rows -> why the row is kept for pods nominated there."""
    late: Sequence[tuple[str, Status]] = ()
    """Nodes refused by plugins that asked outside, after all others."""
    post_filter: str = ""
    nominated_node: str = ""
    victims: tuple[str, ...] = ()
    """Pods that are to make room there, NAMESPACE/NAME."""
    message: str = ""
    status: Status = SUCCESS
    """What ended an attempt that was given up or failed."""


class _Generations:
    """uid -> attempts of at most `most` pods, the latest: the older half is dropped whole, which costs nothing per pod."""

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
        """At least as many as there are: a pod may be in both halves."""
        return len(self._young) + len(self._old)


class _Pictures:
    """Pictures in the order in which they were taken, their bytes bounded."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[Picture] = deque()
        self.nbytes = 0

    def keep(self, picture: Picture) -> None:
        self._kept.append(picture)
        self.nbytes += picture.nbytes
        while self.nbytes > self._bytes_max and len(self._kept) > 1:
            oldest = self._kept.popleft()
            self.nbytes -= oldest.nbytes
            oldest.drop()

    def weigh(self, nbytes: int) -> None:
        """The latest picture's attempt keeps more than its arrays."""
        self._kept[-1].nbytes += nbytes
        self.nbytes += nbytes


class AttemptRecords:
    """The records of one domain."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._sampled_every = SAMPLED_EVERY
        self._placed = PlacementLog()
        self._rare = _Generations(REFUSED_PODS_KEPT)
        self._samples = _Pictures(SAMPLED_BYTES_MAX)
        self._refusals = _Pictures(REFUSED_BYTES_MAX)

    def keep_all_pictures(self) -> None:
        """From now on every placed pod gets a picture of its own, as a rehearsal wants it."""
        self._sampled_every = 1

    # -- written by the cycle --------------------------------------------------------------------------------------

    def placed(self, pod: Pod, attempt: int, group: PodClass, at: int, node: str) -> None:
        """The pod is assumed on the class's row number `at`. Called for every placed pod, before the class is renewed."""
        now_s = self._stopwatch()
        pictures = group.pictures
        picture = pictures.placed
        if picture is None or pictures.left <= 0 or pictures.fixed_changes != group.fixed_changes:
            picture = self._sample(pod, attempt, group, now_s)
        pictures.left -= 1
        # A pod that goes to the node promised to it has a class of that one row, and nobody scores it.
        total = group.total.item(at) if group.is_scored else 0
        # Of the scores, only what moves with every pod is read: each column is memory that no cache holds any more. Of the
        # others the picture tells, which is taken anew when they change; and what is left of the total is the last one's.
        moving = group.moving_scores
        # Two: kube-scheduler's profile, unless pods relate to each other.
        is_two = len(moving) == 2
        finals = _BYTES[moving[0].final.item(at)] if is_two else bytes([one.final.item(at) for one in moving[:-1]])
        log = self._placed.room()
        log += (pod.uid, attempt, now_s, node, at, finals, total, picture)

    def _sample(self, pod: Pod, attempt: int, group: PodClass, now_s: float) -> Picture:
        picture = group.pictures.placed = _picture_of(group, now_s)
        picture.of = (pod.uid, attempt)
        self._samples.keep(picture)
        group.pictures.left, group.pictures.fixed_changes = self._sampled_every, group.fixed_changes
        return picture

    def picture(self, group: PodClass) -> Picture:
        """The class as an attempt that is about to wait for answers from outside has seen it."""
        return _picture_of(group, self._stopwatch())

    def placed_after_answers(
        self, pod: Pod, attempt: int, picture: Picture, at: int, node: str, passed_over: tuple[str, ...]
    ) -> None:
        """As `placed`, for an attempt that waited: `picture` is its own, complete with the answers."""
        self._samples.keep(picture)
        picture.of = (pod.uid, attempt)
        now_s, total = self._stopwatch(), picture.total.item(at)
        finals = bytes([column.final.item(at) for column in picture.scores if column.is_moving][:-1])
        log = self._placed.room()
        log += (pod.uid, attempt, now_s, node, at, finals, total, picture)
        if passed_over:
            self._add(pod, AttemptRecord(attempt, now_s, Outcome.PLACED, passed_over=passed_over))

    def refused(
        self,
        pod: Pod,
        attempt: int,
        group: PodClass,
        found: Diagnosis,
        *,
        held: Mapping[int, Status],
        late: Sequence[tuple[str, Status]],
        post_filter: str,
        nominated_node: str,
        preemption: Preemption | None,
        message: str,
    ) -> None:
        """No row took the pod."""
        now_s = self._stopwatch()
        picture = group.pictures.refused
        if picture is None or not picture.shows(mark_of(group), group.refusal, group.filters):
            picture = group.pictures.refused = _picture_of(group, now_s, with_scores=False)
            self._refusals.keep(picture)
        if late or held:
            self._refusals.weigh(STATUS_BYTES * (len(late) + len(held)))
        record = AttemptRecord(
            attempt,
            now_s,
            Outcome.REFUSED,
            picture=picture,
            is_own_picture=True,
            found=found,
            held=held,
            late=late,
            post_filter=post_filter,
            nominated_node=nominated_node,
            victims=() if preemption is None else tuple(victim.key for victim in preemption.victims),
            message=message,
        )
        self._add(pod, record)

    def conflicted(self, pod: Pod, attempt: int, passed_over: tuple[str, ...], refusal: str) -> None:
        """None of the attempt's candidates took the pod any more. `refusal`: what a ledger has against one; may be empty."""
        now_s = self._stopwatch()
        self._add(pod, AttemptRecord(attempt, now_s, Outcome.CONFLICT, message=refusal, passed_over=passed_over))

    def failed(self, pod: Pod, attempt: int, status: Status) -> None:
        """A plugin failed, or a PreScore plugin refused."""
        now_s = self._stopwatch()
        self._add(pod, AttemptRecord(attempt, now_s, Outcome.ERROR, message=status.message, status=status))

    def given_up(self, pod: Pod, attempt: int, node: str, status: Status) -> None:
        """The pod was placed, and turned away after that."""
        now_s = self._stopwatch()
        self._add(pod, AttemptRecord(attempt, now_s, Outcome.GIVEN_UP, node, message=status.message, status=status))

    def _add(self, pod: Pod, record: AttemptRecord) -> None:
        self._rare.put(pod.uid, (*self._rare.get(pod.uid)[-(ATTEMPTS_KEPT - 1) :], record))

    # -- read by others --------------------------------------------------------------------------------------------

    def read(self, uid: str) -> tuple[AttemptRecord, ...]:
        """The pod's attempts, oldest first; empty for a pod that is not remembered."""
        found: dict[int, AttemptRecord] = {}
        for record in (*self._placed_of(uid), *self._rare.get(uid)):
            before = found.get(record.attempt)
            # A pod whose run was cut short is attempted again under the same number: the later one counts.
            if before is None or record.at_s >= before.at_s:
                found[record.attempt] = record if before is None else _joined(before, record)
        return tuple(sorted(found.values(), key=lambda record: (record.at_s, record.attempt))[-ATTEMPTS_KEPT:])

    def _placed_of(self, uid: str) -> list[AttemptRecord]:
        return [
            AttemptRecord(
                one.attempt,
                one.at_s,
                Outcome.PLACED,
                node=one.node,
                at=one.at,
                scores=one.picture.scores_at(one.at, one.finals, one.total),
                total=one.total,
                picture=one.picture,
                is_own_picture=one.picture.of == (uid, one.attempt),
            )
            for one in self._placed.of(uid)
        ]

    def statistics(self) -> dict[str, int]:
        """Sizes, each with its bound above: placed attempts, pods with others, and bytes of pictures."""
        return {
            "placed": len(self._placed),
            "rare_pods": len(self._rare),
            "sampled_bytes": self._samples.nbytes,
            "refused_bytes": self._refusals.nbytes,
        }


def _joined(placed: AttemptRecord, later: AttemptRecord) -> AttemptRecord:
    """What became of a pod after it was placed, told with how it was."""
    if later.outcome is Outcome.PLACED and later.passed_over:
        return replace(placed, passed_over=later.passed_over)
    if later.outcome is Outcome.GIVEN_UP:
        return replace(placed, outcome=Outcome.GIVEN_UP, message=later.message, status=later.status)
    return later
