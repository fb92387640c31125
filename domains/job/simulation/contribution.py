"""The contribution of the job domain to `multisched simulate`: the workload `jobDay` and its policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from domains.job.simulation.report import DEADLINE, FIFO, POLICIES, read_job_day
from domains.job.simulation.run import CHEAPEST, PRICE
from domains.job.simulation.section import JobDayFile
from multisched.simulate.contribution import Contribution, Workload

_JOB: Final[Mapping[str, Any]] = {"base": "job"}

SIMULATION = Contribution(
    policies={
        FIFO: {"base": "job", "queueSort": "PrioritySort"},
        DEADLINE: _JOB,
        PRICE: _JOB,
        CHEAPEST: _JOB,
    },
    workloads={"jobDay": Workload(JobDayFile, POLICIES, read_job_day)},
)
