"""A training gang of the simulation: how much it has worked, what its checkpoints keep and what an eviction costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from domains.gpu.simulation.tide.cards import Seat
from domains.gpu.simulation.tide.jobs import Job
from domains.gpu.tide.state import GangMember, GangNotice, TrainingGang

MEMBER_CARDS_MAX: Final = 8
"""Larger gangs have members of this many cards."""


class SimulatedGang:
    """One job over all its runs. Times are epoch seconds, durations seconds."""

    def __init__(self, number: int, job: Job, checkpoint_every_s: float, restart_s: float) -> None:
        self.key = f"training/job-{number:06}"
        self.cards = job.cards
        self.work_s = job.work_s
        self.runs = 0
        self.notice: GangNotice | None = None
        self.seats: Sequence[Seat] = ()
        self._members: tuple[GangMember, ...] = ()
        self.started_s = 0.0
        self._works_from_s = 0.0
        self._saved_s = 0.0
        """Work that the last checkpoint keeps."""
        self._saved_at_s = 0.0
        """When it was written, in this run; the start if there was none yet."""
        self._every_s = checkpoint_every_s
        self._restart_s = restart_s

    def pods(self) -> list[tuple[str, int]]:
        """Returns uid and cards of each member of the next run."""
        sizes = [MEMBER_CARDS_MAX] * (self.cards // MEMBER_CARDS_MAX)
        if rest := self.cards % MEMBER_CARDS_MAX:
            sizes.append(rest)
        return [(f"{self.key}-{self.runs}-{number}", cards) for number, cards in enumerate(sizes)]

    @property
    def restart_s(self) -> float:
        """Duration of the next start; 0 for the first one."""
        return self._restart_s if self.runs else 0.0

    def start(self, now_s: float, seats: Sequence[Seat]) -> float:
        """Starts it; returns when it completes if it is not evicted."""
        restart_s = self.restart_s
        self.runs += 1
        self.seats, self.started_s, self._works_from_s = seats, now_s, now_s + restart_s
        self._saved_at_s = self._works_from_s
        self._members = tuple(GangMember(seat.pod.uid, seat.node, seat.cards) for seat in seats)
        return self._works_from_s + self.work_s - self._saved_s

    def checkpoint(self, now_s: float) -> None:
        """Writes a checkpoint now."""
        self._write_due(now_s)
        if now_s > self._saved_at_s:
            self._saved_s += now_s - self._saved_at_s
            self._saved_at_s = now_s

    def evict(self, now_s: float) -> float:
        """Ends the run; returns the work lost in card-seconds."""
        self._write_due(now_s)
        self.seats, self.notice = (), None
        return max(0.0, now_s - self._saved_at_s) * self.cards

    def seen(self, now_s: float) -> TrainingGang:
        """Returns what the planner sees."""
        self._write_due(now_s)
        has_checkpoint = self.runs > 1 or self._saved_at_s > self._works_from_s
        return TrainingGang(
            key=self.key,
            members=self._members,
            started_s=self.started_s,
            checkpoint_s=min(self._saved_at_s, now_s) if has_checkpoint else None,
            notice=self.notice,
            returned_after_eviction_s=self.started_s if self.runs > 1 else None,
        )

    def _write_due(self, now_s: float) -> None:
        """Writes the regular checkpoints until now: each this long after the last one."""
        count = int(max(0.0, now_s - self._saved_at_s) // self._every_s)
        self._saved_s += count * self._every_s
        self._saved_at_s += count * self._every_s
