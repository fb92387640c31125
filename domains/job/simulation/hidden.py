"""Jobs of a day, cut from a hidden schedule in which none misses its deadline. Deterministic in section and seed.

Each slot runs one job after another, with gaps so that `fullShare` of its time is used. A slot that becomes free after the hour takes a
cron pod that waits, otherwise a batch job begins. A job is created at or before its start in this schedule, and its deadline is at
or after its end, so the schedule is feasible. Policies know neither the schedule nor the run times.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from math import ceil, floor, inf
from typing import Final

import msgspec
import numpy as np

from domains.job.simulation.section import JobDaySection

BEGIN_S: Final = 1_767_571_200.0
"""2026-01-05 00:00 UTC, when the played day begins."""
HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
CRON_SPREAD_S: Final = 1.2
"""The pods of a cron minute are created within this time."""
DEADLINE_STEP_S: Final = 60.0
"""Time from creation to deadline is a multiple of this."""

CUTS: Final = 8
CUT_EVERY_S: Final = 900.0
ROUNDING_S: Final = 1e-6


class SimulatedJob(msgspec.Struct, frozen=True):
    """A job of one pod. Times are seconds since the epoch."""

    name: str
    owner: str
    namespace: str
    created_s: float
    deadline_s: float
    run_s: float
    """From the start of its container to its end."""
    hidden_start_s: float
    """When it is bound in the hidden schedule."""


class _Owner(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    typical_s: float


class Instance(msgspec.Struct, frozen=True):
    """The jobs of one seed."""

    earlier: tuple[SimulatedJob, ...]
    """The jobs of the days before, in the order of their ends in their hidden schedules."""
    jobs: tuple[SimulatedJob, ...]
    """The jobs of the played day, in the order of their creation."""
    end_s: float


def drawn(section: JobDaySection, seed: int) -> Instance:
    """Draws the jobs of all days."""
    rng = np.random.default_rng([seed, 44])
    crons, batches = _owners(section, rng)
    earlier = list[SimulatedJob]()
    for day in range(section.history_days, 0, -1):
        found = _Day(section, rng, BEGIN_S - day * DAY_S, BEGIN_S - (day - 1) * DAY_S, crons, batches).jobs()
        earlier += sorted(found, key=lambda job: job.hidden_start_s + job.run_s)
    end_s = BEGIN_S + section.hours * HOUR_S
    jobs = _Day(section, rng, BEGIN_S, end_s, crons, batches).jobs()
    jobs.sort(key=lambda job: (job.created_s, job.name))
    return Instance(tuple(earlier), tuple(jobs), end_s)


def _owners(section: JobDaySection, rng: np.random.Generator) -> tuple[list[_Owner], list[_Owner]]:
    cron, batch = section.cron, section.batch
    typical = cron.median_seconds * np.exp(cron.sigma * rng.standard_normal(cron.owners))
    crons = [_Owner(f"cron-{number}", f"team-{number % 4}", float(one)) for number, one in enumerate(typical)]
    shares = (np.arange(batch.owners) + rng.uniform(size=batch.owners)) / batch.owners
    typical = np.exp(np.interp(shares, batch.shares, np.log(batch.durations)))
    return crons, [_Owner(f"batch-{number}", f"team-{number % 4}", float(one)) for number, one in enumerate(typical)]


class _Day:
    """Draws one day."""

    def __init__(
        self,
        section: JobDaySection,
        rng: np.random.Generator,
        begin_s: float,
        end_s: float,
        crons: list[_Owner],
        batches: list[_Owner],
    ) -> None:
        self._section, self._rng = section, rng
        self._begin_s, self._end_s = begin_s, end_s
        self._crons, self._batches = crons, batches
        self._found = list[SimulatedJob]()

    def jobs(self) -> list[SimulatedJob]:
        section, rng = self._section, self._rng
        slots = section.slots + (section.priced.hidden_slots if section.priced else 0)
        gap_share = (1.0 - section.full_share) / section.full_share
        free_s = [self._begin_s + one for one in rng.uniform(0.0, 600.0, slots).tolist()]
        heapify(free_s)
        waiting = list[float]()
        """When the cron pods were created that have no slot yet, the latest first."""
        hour = 0
        while free_s:
            at_s = free_s[0]
            if at_s >= self._end_s:
                heappop(free_s)
                continue
            while self._begin_s + hour * HOUR_S <= at_s:
                created = self._begin_s + hour * HOUR_S + rng.uniform(0.0, CRON_SPREAD_S, section.cron.pods)
                waiting = [*sorted(created.tolist(), reverse=True), *waiting]
                hour += 1
            used_s = self._cron(waiting.pop(), at_s) if waiting and waiting[-1] <= at_s else self._batch(at_s)
            heapreplace(free_s, at_s + used_s * (1.0 + gap_share * rng.exponential()))
        return self._found

    def _cron(self, created_s: float, at_s: float) -> float:
        owner = self._crons[int(self._rng.integers(len(self._crons)))]
        return self._add(owner, created_s, at_s, self._section.cron.slack_minutes)

    def _batch(self, at_s: float) -> float:
        batch = self._section.batch
        owner = self._batches[int(self._rng.integers(len(self._batches)))]
        if self._rng.uniform() < batch.together:
            created_s = self._begin_s + (at_s - self._begin_s) // batch.every * batch.every
        else:
            created_s = at_s - self._rng.uniform(0.0, 60.0 * batch.ahead_minutes)
        return self._add(owner, max(self._begin_s, created_s), at_s, batch.slack_minutes)

    def _add(self, owner: _Owner, created_s: float, at_s: float, slack_minutes: tuple[float, float]) -> float:
        """Returns how long the job uses its slot."""
        section, rng = self._section, self._rng
        created_s = floor(created_s * 10) / 10
        run_s = max(1.0, round(owner.typical_s * float(np.exp(section.noise * rng.standard_normal())), 1))
        used_s = section.start_up + run_s
        left_s = at_s + used_s + 60.0 * rng.uniform(*slack_minutes) - created_s
        deadline_s = created_s + ceil(left_s / DEADLINE_STEP_S) * DEADLINE_STEP_S
        name = f"{owner.name}-{len(self._found):06}"
        self._found.append(SimulatedJob(name, owner.name, owner.namespace, created_s, deadline_s, run_s, at_s))
        return used_s


def least_priced_work_s(instance: Instance, slots: int) -> float:
    """Returns a lower bound of the work in seconds that own slots cannot do in time, with run times known before.

    Until some moment jobs may be divided among slots (`fluid_own_work_s`), after it each uses one slot at a time. Whatever
    the moment, no schedule does more on own slots, so the best of several moments counts. Start-ups are left out.
    """
    jobs = instance.jobs
    work_s = sum(job.run_s for job in jobs)
    whole_s = fluid_own_work_s([(job.created_s, job.deadline_s, job.run_s) for job in jobs], slots)
    for number in range(CUTS):
        cut_s = instance.end_s + number * CUT_EVERY_S
        cut = [(job.created_s, min(job.deadline_s, cut_s), job.run_s) for job in jobs]
        after_s = sum(min(job.run_s, max(0.0, job.deadline_s - cut_s)) for job in jobs)
        whole_s = min(whole_s, fluid_own_work_s(cut, slots) + after_s)
    return max(0.0, work_s - whole_s) if work_s - whole_s > 1.0 else 0.0


def fluid_own_work_s(jobs: Iterable[tuple[float, float, float]], slots: int) -> float:
    """Returns the most work in seconds that the slots can do in time if jobs may be divided among slots and interrupted.

    `jobs`: created, deadline, run time. This is the value of the linear program. The slots are one fast machine, on which earliest
    deadline first does the most work in time (Glover 1967: this greedy matching of units of work to units of time is a largest one,
    because the units of time that a unit of work may use are an interval).
    """
    created = sorted(jobs)
    waiting = list[tuple[float, float]]()
    """A heap of (deadline, work left)."""
    done_s = now_s = 0.0
    for (created_s, deadline_s, run_s), (next_s, _, _) in pairwise([*created, (inf, inf, 0.0)]):
        now_s = max(now_s, created_s)
        heappush(waiting, (deadline_s, run_s))
        while waiting and now_s < next_s:
            deadline_s, left_s = heappop(waiting)
            work_s = max(0.0, min(left_s, slots * (min(next_s, deadline_s) - now_s)))
            done_s += work_s
            now_s += work_s / slots
            if work_s < left_s and now_s < deadline_s - ROUNDING_S:  # the next job is created before it is done
                heappush(waiting, (deadline_s, left_s - work_s))
                break
    return done_s
