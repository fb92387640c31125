"""The section `jobDay` of a scenario file: types, bounds and defaults of every field."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

from multisched.config.sections import Seconds, Section
from multisched.simulate.scenario_schema import ScenarioHeader

Count = Annotated[int, Meta(ge=1, le=10_000)]
Positive = Annotated[float, Meta(gt=0.0, le=86_400.0)]
Minutes = Annotated[float, Meta(ge=0.0, le=1_440.0)]


class Batch(Section, frozen=True):
    """Jobs without a fixed minute, most of them submitted many at once."""

    owners: Annotated[int, Meta(ge=1, le=500)] = 60
    """Owners whose jobs last about the same time; a job is of each with equal probability."""
    durations: Annotated[tuple[Positive, ...], Meta(min_length=2, max_length=100)] = (50, 61, 86, 834, 2194, 3826, 7200)
    """Typical run times of owners in seconds, at the shares of `shares`; linear in the logarithm between them. Default: the jobs of
    philly (Microsoft, CC BY 4.0) with one GPU and up to two hours."""
    shares: Annotated[tuple[float, ...], Meta(min_length=2, max_length=100)] = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
    together: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.7
    """Share of the jobs that are submitted together, every `every`; the others are submitted alone, up to `aheadMinutes` ahead."""
    every: Seconds = 7_200.0
    ahead_minutes: Minutes = 10.0
    slack_minutes: tuple[Minutes, Minutes] = (5.0, 60.0)
    """From the end in the hidden schedule to the deadline, uniform."""


class Cron(Section, frozen=True):
    """Jobs that are all created in the first minute of each hour."""

    owners: Annotated[int, Meta(ge=1, le=500)] = 40
    pods: Annotated[int, Meta(ge=0, le=10_000)] = 200
    """Pods in each hour."""
    median_seconds: Positive = 120.0
    sigma: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.7
    """Typical run times of owners are log-normal with this median and deviation of the logarithm."""
    slack_minutes: tuple[Minutes, Minutes] = (5.0, 20.0)


class Priced(Section, frozen=True):
    """A serverless unit in addition to the own slots."""

    hidden_slots: Count = 50
    """Slots of the hidden schedule in addition to the own ones: what does not fit the own slots."""
    price_per_hour: Annotated[float, Meta(gt=0.0, le=1e6)] = 0.05
    """Price of one pod per hour, from its sandbox's start to its end."""
    start_up: Seconds = 20.0


class JobDaySection(Section, frozen=True):
    """The section `jobDay`."""

    slots: Count = 100
    """Pods that run at once on own nodes."""
    full_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.95
    """Share of the slots' time that the hidden schedule fills. Nothing misses its deadline in the hidden schedule."""
    hours: Annotated[int, Meta(ge=1, le=168)] = 24
    history_days: Annotated[int, Meta(ge=0, le=30)] = 1
    """Days before, with jobs of the same owners, whose run times are learned."""
    noise: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.4
    """Deviation of the logarithm of a job's run time from its owner's. With 0.4, 8 % are off by a factor of two or more."""
    start_up: Seconds = 2.0
    """From the bind until the container runs, on own nodes."""
    batch: Batch = Batch()
    cron: Cron = Cron()
    priced: Priced | None = None
    """Without it, there are only own slots."""


class JobDayFile(ScenarioHeader, frozen=True, kw_only=True):
    """A scenario file with the section."""

    job_day: JobDaySection


def problem_of(section: JobDaySection) -> tuple[tuple[str, ...], str] | None:
    """Returns the path of a field and what is wrong with it; None if the fields fit one another."""
    batch = section.batch
    if len(batch.shares) != len(batch.durations):
        return (
            "batch",
            "shares",
        ), f"{len(batch.shares)} shares for {len(batch.durations)} durations; write one for each"
    if batch.shares[0] != 0 or batch.shares[-1] != 1 or not _rises(batch.shares):
        return ("batch", "shares"), "they do not rise from 0 to 1"
    if not _rises(batch.durations):
        return ("batch", "durations"), "they do not rise"
    for name, (low, high) in (("batch", batch.slack_minutes), ("cron", section.cron.slack_minutes)):
        if low > high:
            return (name, "slackMinutes"), f"[{low:g}, {high:g}] is no range; write for instance [5, 60]"
    return None


def _rises(values: Sequence[float]) -> bool:
    return all(one < other for one, other in pairwise(values))
