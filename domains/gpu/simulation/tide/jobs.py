"""Training jobs: read from a CSV in the format of philly (Microsoft, philly-traces), or drawn with widths and durations like its.

Figures of the drawn jobs: shares of the GPU time by width and by duration, computed from the 82,247 jobs of philly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from domains.gpu.simulation.openb import csv_rows
from domains.gpu.simulation.tide.curve import add, read_number, read_timestamp
from multisched.config.document import Problem

COLUMNS: Final = ("timestamp", "duration", "num_gpus")
JOBS_MAX: Final = 1_000_000
CARDS_MAX: Final = 10_000
DURATION_MAX_S: Final = 1e8
LOAD_DEFAULT: Final = 1.5
WIDTHS: Final = ((1, 0.18), (2, 0.03), (4, 0.17), (8, 0.48), (16, 0.12), (32, 0.02))
"""(cards, share of the GPU time)."""
DURATIONS: Final = (
    (60.0, 3_600.0, 0.019),
    (3_600.0, 28_800.0, 0.051),
    (28_800.0, 86_400.0, 0.09),
    (86_400.0, 864_000.0, 0.84),
)
"""(from, to in seconds, share of the GPU time); log-uniform within."""


class Job(msgspec.Struct, frozen=True):
    """A training job: a gang."""

    arrives_s: float
    work_s: float
    """Run time if it is never evicted."""
    cards: int

    @property
    def card_s(self) -> float:
        return self.work_s * self.cards


def read_jobs(path: Path, problems: list[Problem]) -> tuple[Job, ...]:
    """Reads the jobs, in order of arrival; adds problems. Jobs without cards or duration are skipped."""
    found = []
    for line, row in csv_rows(path, COLUMNS, JOBS_MAX, problems):
        at_s = read_timestamp(row["timestamp"], problems, path, line)
        work_s, cards = read_number(row["duration"], DURATION_MAX_S), read_number(row["num_gpus"], CARDS_MAX)
        if at_s is None:
            continue
        if work_s is None:
            add(problems, path, line, "duration", f"{row['duration'][:40]!r} is not a number of seconds")
        elif cards is None or cards != int(cards):
            add(
                problems,
                path,
                line,
                "num_gpus",
                f"{row['num_gpus'][:40]!r} is not a whole number from 0 to {CARDS_MAX}",
            )
        elif work_s and cards:
            found.append(Job(at_s, work_s, int(cards)))
    if not found and not problems:
        add(problems, path, 1, "", "has no job with a duration and cards; write at least one")
    return tuple(sorted(found, key=lambda job: job.arrives_s))


def played(
    jobs: Sequence[Job], first_s: float, begin_s: float, length_s: float, load: float | None, card_s: float
) -> tuple[Job, ...]:
    """Returns the jobs of `length_s` seconds from `first_s` of the file on, with times from `begin_s` on.

    Jobs that the file began earlier and that would still run then are there at the begin, with the work that is left. `load`: each
    job is taken as often as needed, on average, for all to ask for `load * card_s`, copies evenly over that time; None: once.
    """
    there = [
        Job(0.0, job.arrives_s + job.work_s - first_s, job.cards)
        for job in jobs
        if job.arrives_s < first_s < job.arrives_s + job.work_s
    ]
    later = [
        msgspec.structs.replace(job, arrives_s=job.arrives_s - first_s)
        for job in jobs
        if first_s <= job.arrives_s < first_s + length_s
    ]
    asked = sum(min(job.work_s, length_s - job.arrives_s) * job.cards for job in (*there, *later))
    factor = 1.0 if load is None or not asked else load * card_s / asked
    found = list[Job]()
    for number, job in enumerate((*there, *later)):
        copies = int((number + 1) * factor) - int(number * factor)
        for copy in range(copies):
            after_s = (job.arrives_s + copy * length_s / copies) % length_s if job.arrives_s else 0.0
            found.append(msgspec.structs.replace(job, arrives_s=begin_s + after_s))
    return tuple(sorted(found, key=lambda job: job.arrives_s))


def drawn(
    begin_s: float, length_s: float, load: float | None, card_s: float, cards_max: int, seed: int
) -> tuple[Job, ...]:
    """Returns drawn jobs, as a cluster with this load has them at any moment: those in it at the begin, then those that arrive.

    Arriving jobs ask for `load * card_s` in total, evenly over the time. Of a job that is there at the begin, a random part of the
    work is left; together they ask for `load * cards_max` cards. `cards_max`: all cards. Deterministic in its arguments.
    """
    rng = np.random.default_rng([seed, 2])
    factor = LOAD_DEFAULT if load is None else load
    kinds = [
        (cards, low, high, of_width * of_time / cards)
        for cards, of_width in WIDTHS
        if cards <= cards_max
        for low, high, of_time in DURATIONS
    ]
    jobs, cards_there, asked = list[Job](), 0, 0.0
    present = np.array([weight for *_, weight in kinds])
    while cards_there < factor * cards_max:
        cards, low, high, _ = kinds[int(rng.choice(len(kinds), p=present / present.sum()))]
        work_s = (low + (high - low) * float(rng.random())) * float(
            rng.random()
        )  # long jobs are met in proportion to their length
        jobs.append(Job(begin_s, max(60.0, work_s), cards))
        cards_there += cards
    rates = np.array([weight / _mean_s(low, high) for _, low, high, weight in kinds])
    while asked < factor * card_s:
        cards, low, high, _ = kinds[int(rng.choice(len(kinds), p=rates / rates.sum()))]
        work_s = low * (high / low) ** float(rng.random())
        jobs.append(Job(begin_s + float(rng.random()) * length_s, work_s, cards))
        asked += work_s * cards
    return tuple(sorted(jobs, key=lambda job: job.arrives_s))


def _mean_s(low_s: float, high_s: float) -> float:
    """Returns the mean of a log-uniform duration."""
    return (high_s - low_s) / math.log(high_s / low_s)
