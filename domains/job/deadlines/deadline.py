"""The deadline of a pod: from its annotation, its Job, its CronJob's next run, or none. Pure.

The first of these that exists counts. The Job's activeDeadlineSeconds begins at its startTime, and includes the time in which its pods
are pending (kubernetes 1.36, pkg/controller/job/job_controller.go, pastActiveDeadline).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from enum import Enum
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from multisched.model.api_time import parse_timestamp
from multisched.model.cluster_objects import CronJob, Job
from multisched.model.cron_schedule import Schedule, ScheduleError, parse_schedule
from multisched.model.go_duration import parse_go_duration

ANNOTATION: Final = "multisched.io/deadline"
TEXT_SHOWN: Final = 64
HOW: Final = "write a time such as 2026-11-29T18:00:00Z, or a duration from the pod's creation such as 90m"


class DeadlineOrigin(Enum):
    ANNOTATION = "annotation"
    ACTIVE_DEADLINE = "activeDeadlineSeconds"
    NEXT_RUN = "next run"
    MAX_WAIT = "maxWait"
    """There is no deadline."""


class DeadlineRule(msgspec.Struct, frozen=True):
    """The deadline of equal pods of one owner."""

    origin: DeadlineOrigin
    at_s: float = 0.0
    """Seconds since the epoch; with `is_relative`, seconds since the creation of the pod."""
    is_relative: bool = False

    def of(self, created_s: float) -> float:
        """Returns the deadline of a pod, in seconds since the epoch."""
        return self.at_s + created_s if self.is_relative else self.at_s


class DeadlineError(ValueError):
    """The annotation is not a deadline; the message says why and how to write it."""


def read_annotation(text: str) -> DeadlineRule:
    """Reads a value of ANNOTATION. Raises DeadlineError."""
    try:
        after_s = None
        if text[:1].isdigit() and text[4:5] == "-":
            moment = parse_timestamp(text)
            at_s = None if moment.tzinfo is None else moment.timestamp()
        else:
            at_s, after_s = 0.0, parse_go_duration(text)
    except (ValueError, OverflowError) as error:
        raise DeadlineError(f"{text[:TEXT_SHOWN]!r} is not a deadline; {HOW}") from error
    if at_s is None:
        raise DeadlineError(f"{text[:TEXT_SHOWN]!r} has no time zone; {HOW}")
    if after_s is None:
        return DeadlineRule(DeadlineOrigin.ANNOTATION, at_s)
    if after_s <= 0:
        raise DeadlineError(f"{text[:TEXT_SHOWN]!r} is over when the pod is created; {HOW}")
    return DeadlineRule(DeadlineOrigin.ANNOTATION, after_s, is_relative=True)


def why_wrong(annotations: Mapping[str, str]) -> str:
    """Returns what is wrong with the annotation; empty if nothing is, or there is none."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return ""
    try:
        read_annotation(text)
    except DeadlineError as error:
        return f"annotation {ANNOTATION} has no effect: {error}"
    return ""


def annotated_rule(annotations: Mapping[str, str]) -> DeadlineRule | None:
    """Returns the rule that the annotation gives; None without a valid one (`why_wrong` reports it)."""
    text = annotations.get(ANNOTATION)
    try:
        return None if text is None else read_annotation(text)
    except DeadlineError:
        return None


def rule_of(
    annotated: DeadlineRule | None, job: Job | None, cron_job: CronJob | None, max_wait_s: float
) -> DeadlineRule:
    """Returns the rule for pods. `annotated`: that of their annotation; `job`: their owner; `cron_job`: the job's owner."""
    if annotated is not None:
        return annotated
    if job is not None and not job.malformed:
        if job.active_deadline_s is not None:
            return DeadlineRule(
                DeadlineOrigin.ACTIVE_DEADLINE, (job.started_s or job.created_s) + job.active_deadline_s
            )
        next_s = None if cron_job is None else next_run_s(cron_job, job.created_s)
        if next_s is not None:
            return DeadlineRule(DeadlineOrigin.NEXT_RUN, next_s)
    return DeadlineRule(DeadlineOrigin.MAX_WAIT, max_wait_s, is_relative=True)


def next_run_s(cron_job: CronJob, after_s: float) -> float | None:
    """Returns the first run after this time, in seconds since the epoch; None if the schedule has none, or cannot be read."""
    schedule = _schedule(cron_job.schedule, cron_job.time_zone)
    due = None if schedule is None else schedule.next_after(datetime.fromtimestamp(after_s, UTC))
    return None if due is None else due.timestamp()


@lru_cache(maxsize=4096)
def _schedule(text: str, zone: str) -> Schedule | None:
    try:
        found: tzinfo = ZoneInfo(zone) if zone else UTC
        return parse_schedule(text, zone=found)
    except (ScheduleError, ZoneInfoNotFoundError, ValueError, OSError):
        return None
