"""The section `loanDay` of a scenario file: types, bounds and defaults of every field."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from multisched.config.schema import LoanReturn
from multisched.config.sections import Seconds, Section
from multisched.simulate.scenario_schema import ScenarioHeader, UsageFiles

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Minutes = Annotated[float, Meta(gt=0.0, le=1_440.0)]
Percent = Annotated[int, Meta(ge=1, le=100)]
Cores = Annotated[float, Meta(ge=0.1, le=1_000.0)]
JOB_MAX_S = 86_400.0


class OnlineServices(Section, frozen=True):
    """The lender's pods."""

    file: str
    """CSV, relative to the scenario: service, replicas; requests are not used."""
    noise: Share = 0.1
    """Deviation of each replica's use from that of its service, relative to it. The usage is that of the mean replica."""
    noise_lasts: Seconds = 300.0
    """Time in which the correlation of this deviation falls to 1/e."""


class Nodes(Section, frozen=True):
    """Equal nodes of the lender."""

    count: Annotated[int, Meta(ge=1, le=1_000)] = 40
    peak_percent: Percent = 60
    """The highest use of all services in the judged days, as a share of all nodes. It defines the size of a node."""


class OfflineJobs(Section, frozen=True):
    """The borrower's jobs of one pod each, of which there are always enough."""

    owners: Annotated[int, Meta(ge=1, le=500)] = 20
    """CronJobs, each with a typical run time; a job is of each with equal probability."""
    median_minutes: Minutes = 10.0
    sigma: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.8
    """Typical run times are log-normal with this median and deviation of the logarithm."""
    noise: Annotated[float, Meta(ge=0.0, le=2.0)] = 0.4
    """Deviation of the logarithm of a job's run time from its owner's typical one."""
    long_share: Share = 0.1
    """Share of owners whose typical run time is ten times as long."""
    cores: Annotated[tuple[Cores, ...], Meta(min_length=1, max_length=16)] = (1.0,)
    """The possible CPU requests of a job, each with equal probability."""
    backoff_limit: Annotated[int, Meta(ge=0, le=1_000)] = 6
    """The backoffLimit of each Job: with one more eviction than this it fails."""


class LoanDaySection(Section, frozen=True):
    """The section `loanDay`."""

    usage: UsageFiles
    """Usage of the dimension cpu, in cores per replica. All days except the judged ones are known before the run."""
    services: OnlineServices
    returns: LoanReturn = field(name="return")
    """As of a loan in a configuration file."""
    judged_days: Annotated[int, Meta(ge=1, le=60)]
    """The last days of the usage."""
    nodes: Nodes = Nodes()
    threshold_percent: Percent = 65
    """As of a loan in a configuration file."""
    jobs: OfflineJobs = OfflineJobs()


class LoanDayFile(ScenarioHeader, frozen=True, kw_only=True):
    """A scenario file with the section."""

    loan_day: LoanDaySection
