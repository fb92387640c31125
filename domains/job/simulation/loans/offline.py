"""The borrower's jobs: drawn without end, and started again after an eviction until their retries are used up."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final

import msgspec
import numpy as np

from domains.job.simulation.loans.section import JOB_MAX_S, OfflineJobs
from multisched.model.job_progress import RETRIES_LEFT
from multisched.model.objects import Owner, Pod, PodSpec, QosClass
from multisched.model.version import NO_VERSION
from multisched.plugins.loans.idle_demand import IDLE_REQUEST

RUN_MIN_S: Final = 1.0
LONG_FACTOR: Final = 10.0
BACKOFF_S: Final = 10.0
BACKOFF_MAX_S: Final = 600.0
"""Source: kubernetes 1.36, pkg/controller/job/job_controller.go, DefaultJobPodFailureBackOff and MaxJobPodFailureBackOff."""


class OfflineJob(msgspec.Struct):
    """One job, across its pods."""

    name: str
    owner: str
    number: int
    run_s: float
    milli: int
    retries_left: int
    pods: int = 0
    """Created so far."""


class JobSource:
    """Waiting jobs. There is always one more."""

    def __init__(self, section: OfflineJobs, scheduler_name: str, rng: np.random.Generator) -> None:
        self._section, self._rng = section, rng
        self._waiting: deque[OfflineJob] = deque()
        self._evicted: list[tuple[float, str, OfflineJob]] = []
        """A heap of jobs that may start again from a time on."""
        typical_s = 60.0 * section.median_minutes * np.exp(section.sigma * rng.standard_normal(section.owners))
        typical_s[rng.uniform(size=section.owners) < section.long_share] *= LONG_FACTOR
        self._typical_s = typical_s
        self._specs = [
            PodSpec(scheduler_name=scheduler_name, images=(f"offline-{number}",), qos=QosClass.BEST_EFFORT)
            for number in range(section.owners)
        ]
        self._count = 0

    def next(self) -> OfflineJob:
        """Returns a job that waits, and removes it."""
        if self._waiting:
            return self._waiting.popleft()
        section, rng = self._section, self._rng
        number = int(rng.integers(section.owners))
        run_s = self._typical_s[number] * float(np.exp(section.noise * rng.standard_normal()))
        cores = section.cores[int(rng.integers(len(section.cores)))]
        self._count += 1
        owner = f"offline-{number}"
        name = f"{owner}-{self._count:08}"
        run_s = min(JOB_MAX_S, max(RUN_MIN_S, run_s))
        return OfflineJob(name, owner, number, run_s, round(1000 * cores), section.backoff_limit)

    def after_eviction(self, job: OfflineJob, evicted_s: float) -> None:
        """Lets the job wait for the back-off of the Job controller, from the time at which its pod is deleted."""
        backoff_s = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (job.pods - 1))
        heappush(self._evicted, (evicted_s + backoff_s, job.name, job))

    def wake(self, now_s: float) -> bool:
        """Puts jobs whose back-off is over before all others. Reports whether there were any."""
        is_any = bool(self._evicted) and self._evicted[0][0] <= now_s
        while self._evicted and self._evicted[0][0] <= now_s:
            self._waiting.appendleft(heappop(self._evicted)[2])
        return is_any

    def again(self, jobs: list[OfflineJob]) -> None:
        """Puts jobs before all others, in this order."""
        self._waiting.extendleft(reversed(jobs))

    def pod(self, job: OfflineJob, node: str, now_s: float) -> Pod:
        """Returns the next pod of the job, started on the node."""
        job.pods += 1
        name = f"{job.name}-{job.pods}"
        notes = {IDLE_REQUEST: f"cpu={job.milli}m", RETRIES_LEFT: str(job.retries_left)}
        owner = Owner("Job", job.name, job.name, "batch/v1")
        return Pod(
            "offline",
            name,
            name,
            NO_VERSION,
            self._specs[job.number],
            annotations=notes,
            owner=owner,
            node=node,
            phase="Running",
            created_s=now_s,
            started_s=now_s,
        )
