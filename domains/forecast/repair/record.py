"""The record: persistent state of a repair: the current run, and the moves and stopped runs of this window.

Stored as JSON in one ConfigMap per domain (`moving.DocumentStore`) before each action. Immutable; each change creates a new
record. The next leader resumes from it, also with another version of the program. An unreadable record counts as empty:
an abandoned run is safe, because workload controllers replace evicted pods.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Final

import msgspec

from domains.forecast.repair.run import PredictedStep, Run, State
from domains.forecast.settings.windows import Span
from multisched.framework.ports import ObjectRef
from multisched.framework.repair import RepairMove
from multisched.model.wire import UNREADABLE

logger = logging.getLogger(__name__)

FORMAT: Final = 1
PEERS_MAX: Final = 5_000
"""Largest number of replicas of a service whose pods may be moved; their uids are stored: 200 kB."""


class Moved(msgspec.Struct, frozen=True):
    """A pod evicted in this window; counted for budgets."""

    service: str
    source: str
    target: str


class Task(msgspec.Struct, frozen=True):
    """The data of a move that its execution needs."""

    pod: str
    """`namespace/name`"""
    uid: str
    service: str
    source: str
    target: str
    source_peaks: tuple[tuple[str, float], ...]
    """(dimension, predicted peak after the move as a share of capacity)."""
    target_peaks: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, move: RepairMove) -> Task:
        return cls(
            move.pod,
            move.uid,
            move.service,
            move.from_node,
            move.to_node,
            tuple((name, percent / 100) for name, percent in move.from_peaks_percent.items()),
            tuple((name, percent / 100) for name, percent in move.to_peaks_percent.items()),
        )

    @property
    def ref(self) -> ObjectRef:
        namespace, _, name = self.pod.partition("/")
        return ObjectRef("Pod", namespace, name, self.uid)

    @property
    def words(self) -> str:
        return f"{self.pod} from {self.source} to {self.target}"

    def prediction(self, dimensions: tuple[str, ...]) -> PredictedStep:
        """Returns the input of `should_stop`; dimensions without a prediction get infinity, which disables their check."""
        source, target = dict(self.source_peaks), dict(self.target_peaks)
        return PredictedStep(
            self.pod,
            self.source,
            self.target,
            tuple(source.get(name, math.inf) for name in dimensions),
            tuple(target.get(name, math.inf) for name in dimensions),
        )


class EvictionStart(msgspec.Struct, frozen=True):
    """State of the service when the eviction was permitted."""

    owner: str
    """uid of the pod's controller."""
    known: tuple[str, ...]
    """uids of all replicas at that time; a pod with another uid is a replacement."""
    ready: int
    """Number of replicas at that time."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Persistent state of a domain's repair."""

    format: int = FORMAT
    opened_s: float = 0.0
    """Opening of the window of `moved` and `stops`, in epoch seconds."""
    moved: tuple[Moved, ...] = ()
    stops: int = 0
    """Number of stopped runs in this window."""
    digest: str = ""
    threshold: tuple[tuple[str, float], ...] = ()
    """(dimension, share), in the order of the forecast."""
    tasks: tuple[Task, ...] = ()
    run: Run | None = None
    """None: the plan was only shown."""
    begun: EvictionStart | None = None
    reason: str = ""
    """Why the last run stopped, with details."""

    @property
    def is_under_way(self) -> bool:
        return self.run is not None and not self.run.is_over and bool(self.tasks)

    @property
    def task(self) -> Task:
        """Returns the task of the current step."""
        assert self.run is not None, "a run is in progress"
        return self.tasks[min(self.run.place, len(self.tasks) - 1)]

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.threshold)

    def in_window(self, span: Span) -> Record:
        """Returns the record for this opening; resets budgets and stops if it is a new one."""
        if self.opened_s == span.opens_s:
            return self
        return msgspec.structs.replace(self, opened_s=span.opens_s, moved=(), stops=0)

    def advanced(self, run: Run) -> Record:
        """Returns the record with the advanced run. Counts an evicted pod once, also if the eviction's answer was lost."""
        assert self.run is not None, "a run is in progress"
        moved = self.moved
        if run.state is State.LEAVING and self.run.state in (State.EVICTING, State.RESOLVING):
            moved = (*moved, Moved(self.task.service, self.task.source, self.task.target))
        return msgspec.structs.replace(self, run=run, moved=moved)


class Budget(msgspec.Struct, frozen=True):
    """Budgets of one window."""

    moves_per_window: int
    moves_per_node: int
    moves_per_service: int

    def left(self, moved: tuple[Moved, ...]) -> int:
        """Returns the remaining moves of the window."""
        return max(0, self.moves_per_window - len(moved))

    def within(self, moves: tuple[RepairMove, ...], moved: tuple[Moved, ...]) -> tuple[RepairMove, ...]:
        """Returns the longest prefix of `moves` within the remaining budgets.

        A plan may be cut anywhere, because no node exceeds its threshold between two steps.
        """
        services = Counter(one.service for one in moved)
        nodes = Counter(node for one in moved for node in (one.source, one.target))
        for number, move in enumerate(moves):
            services[move.service] += 1
            nodes.update((move.from_node, move.to_node))
            if (
                number >= self.left(moved)
                or services[move.service] > self.moves_per_service
                or max(nodes[move.from_node], nodes[move.to_node]) > self.moves_per_node
            ):
                return moves[:number]
        return moves


_DECODER: Final = msgspec.json.Decoder(Record)


def dumped(record: Record) -> bytes:
    return msgspec.json.encode(record)


def loaded(document: bytes | None) -> Record:
    """Decodes a stored record; returns an empty one if there is none or it is unreadable."""
    if not document:
        return Record()
    try:
        record = _DECODER.decode(document)
    except UNREADABLE as error:
        logger.warning("the stored repair record is unreadable and ignored", extra={"error": str(error)})
        return Record()
    if record.format != FORMAT:
        logger.warning(
            "the stored repair record has another format version and is ignored", extra={"format": record.format}
        )
        return Record()
    return record
