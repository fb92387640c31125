"""What has to survive the process of a repair: the run under way, requests made of it, and what this window's budget has spent.

Plain data, stored as JSON in one ConfigMap per domain (`moving.Keeper`) before anything is done. Immutable; each change
makes a new one. The next leader reads it back, whatever version of the program it is. What it cannot read counts as
nothing: a run that nobody resumes leaves every replica to its own controller.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Final

import msgspec

from domains.forecast.repair.run import Foretold, Run, State
from domains.forecast.settings.windows import Span
from multisched.framework.ports import ObjectRef
from multisched.framework.repair import RepairMove
from multisched.model.wire import UNREADABLE

logger = logging.getLogger(__name__)

FORMAT: Final = 1
PEERS_MAX: Final = 5_000
"""Replicas of one service whose uids are remembered while one of them moves: 200 kB."""


class Moved(msgspec.Struct, frozen=True):
    """A pod that was evicted in this window, for the budgets."""

    service: str
    source: str
    target: str


class Task(msgspec.Struct, frozen=True):
    """One move, as far as carrying it out needs it."""

    pod: str
    """`namespace/name`"""
    uid: str
    service: str
    source: str
    target: str
    source_peaks: tuple[tuple[str, float], ...]
    """(dimension, share of capacity) once it is done."""
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

    def foretold(self, dimensions: tuple[str, ...]) -> Foretold:
        """For `should_stop`; a dimension of which the plan says nothing is not looked at."""
        source, target = dict(self.source_peaks), dict(self.target_peaks)
        return Foretold(
            self.pod,
            self.source,
            self.target,
            tuple(source.get(name, math.inf) for name in dimensions),
            tuple(target.get(name, math.inf) for name in dimensions),
        )


class Begun(msgspec.Struct, frozen=True):
    """What was found when the pod under way was allowed to leave."""

    owner: str
    """uid of its controller."""
    known: tuple[str, ...]
    """uids of all its replicas then: a replacement is none of them."""
    ready: int
    """Replicas then."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a repair that has to survive its process."""

    format: int = FORMAT
    opened_s: float = 0.0
    """Of the window that `moved` and `stops` count for."""
    moved: tuple[Moved, ...] = ()
    stops: int = 0
    """Runs that stopped in this window."""
    digest: str = ""
    threshold: tuple[tuple[str, float], ...] = ()
    """(dimension, share), in the order of the forecast."""
    tasks: tuple[Task, ...] = ()
    run: Run | None = None
    """None: the plan was shown only."""
    begun: Begun | None = None
    reason: str = ""
    """Why the last run stopped, in full."""

    @property
    def is_under_way(self) -> bool:
        return self.run is not None and not self.run.is_over and bool(self.tasks)

    @property
    def task(self) -> Task:
        """Of the step under way."""
        assert self.run is not None, "a run is under way"
        return self.tasks[min(self.run.place, len(self.tasks) - 1)]

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.threshold)

    def in_window(self, span: Span) -> Record:
        """The same, with nothing spent if the window is another one."""
        if self.opened_s == span.opens_s:
            return self
        return msgspec.structs.replace(self, opened_s=span.opens_s, moved=(), stops=0)

    def advanced(self, run: Run) -> Record:
        """With the run as it is now. A pod that has left is counted, once, whatever the eviction's answer was."""
        assert self.run is not None, "a run is under way"
        moved = self.moved
        if run.state is State.LEAVING and self.run.state in (State.EVICTING, State.RESOLVING):
            moved = (*moved, Moved(self.task.service, self.task.source, self.task.target))
        return msgspec.structs.replace(self, run=run, moved=moved)


class Budget(msgspec.Struct, frozen=True):
    """What may be moved in one window."""

    moves_per_window: int
    moves_per_node: int
    moves_per_service: int

    def left(self, moved: tuple[Moved, ...]) -> int:
        """Of the moves per window."""
        return max(0, self.moves_per_window - len(moved))

    def within(self, moves: tuple[RepairMove, ...], moved: tuple[Moved, ...]) -> tuple[RepairMove, ...]:
        """As many moves from the first as the window's budgets still allow.

        No node passes its threshold between two steps, so a plan may be cut anywhere.
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
    """What was stored; an empty record where nothing was, or nothing that can be read."""
    if not document:
        return Record()
    try:
        record = _DECODER.decode(document)
    except UNREADABLE as error:
        logger.warning("what was stored of repair cannot be read, and counts for nothing", extra={"error": str(error)})
        return Record()
    if record.format != FORMAT:
        logger.warning("what was stored of repair is of another version", extra={"format": record.format})
        return Record()
    return record
