"""The contribution of the job domain to `multisched simulate`: the workloads `jobDay` and `loanDay`, and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from domains.job.simulation.loans.report import POLICIES as LOAN_POLICIES
from domains.job.simulation.loans.scenario import read_loan_day
from domains.job.simulation.loans.section import LoanDayFile
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
    }
    | dict.fromkeys(LOAN_POLICIES, _JOB),
    workloads={
        "jobDay": Workload(JobDayFile, POLICIES, read_job_day),
        "loanDay": Workload(LoanDayFile, LOAN_POLICIES, read_loan_day),
    },
)
