"""The workload `loanDay`: plays policies of lending idle capacity, and reports what they gain, disturb and lose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from statistics import fmean
from typing import Any, Final

import msgspec
import numpy as np

from domains.job.simulation.loans.fleet import Fleet, Lender, fluid
from domains.job.simulation.loans.offline import JobSource
from domains.job.simulation.loans.run import CURRENT_USE, DAILY_PEAK, FORECAST, LoanRun
from domains.job.simulation.loans.section import LoanDaySection
from multisched.forecasting.profiles import Profiles
from multisched.plugins.loans.offers import STEP_S
from multisched.simulate.bare_core import BareCore
from multisched.simulate.report import Plot, Report, Table, rounded, verdict_of
from multisched.simulate.scenario import Policy
from multisched.simulate.scenario_schema import API_VERSION

KIND: Final = "LoanDayReport"
POLICIES: Final = (FORECAST, DAILY_PEAK, CURRENT_USE)
HOUR_S: Final = 3_600.0
FIGURES: Final = (
    "gain",
    "gainOfBound",
    "gainOverDailyPeak",
    "lentOfBound",
    "overPercent",
    "recalls",
    "late",
    "evicted",
    "failedJobs",
    "lostPercent",
    "lostOverBest",
)
HEAD: Final = (
    "gain",
    "of bound",
    "over daily",
    "lent",
    "over %",
    "recalls",
    "late",
    "evicted",
    "failed",
    "lost %",
    "over best",
)
LEGEND: Final = (
    "gain: use with lending over use without; of bound: over the gain of a fluid that knows the use of each node within notice and grace; "
    "over daily: over the gain of daily-peak; lent: core-hours lent over those of the fluid; over %: time of nodes that lent work takes "
    "over the threshold; late: recalls not complete at their deadline; failed: jobs without a retry left; lost %: work lost by evictions, "
    "of the work lent; over best: over the least that could be lost on each node at the time"
)


class LoanOutcome(msgspec.Struct, frozen=True):
    """One run. Hours are those of cores."""

    seed: int
    online_hours: float
    lent_hours: float
    bound_hours: float
    over_share: float
    recalls: int
    late: int
    notices: int
    withdrawn: int
    evicted: int
    finished: int
    failed: int
    lost_hours: float
    best_lost_hours: float
    lines: Mapping[str, tuple[float, ...]]
    """Shares of all nodes, evenly spaced over the judged days."""
    failures: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not self.failures

    @property
    def gain(self) -> float:
        """Use with lending over use without."""
        return 1.0 + self.lent_hours / self.online_hours

    @property
    def bound_gain(self) -> float:
        return 1.0 + self.bound_hours / self.online_hours


class LoanSimulation(msgspec.Struct, frozen=True):
    """Implements `simulate.contribution.Simulation`."""

    name: str
    policies: tuple[Policy, ...]
    seeds: tuple[int, ...]
    section: LoanDaySection
    fleet: Fleet

    def runner(self) -> Callable[[Policy, int], LoanOutcome]:
        return partial(play, self.section, self.fleet, cache(self.fleet.learned))

    def report(self, outcomes: Mapping[str, Sequence[LoanOutcome]]) -> Report:
        section, fleet = self.section, self.fleet
        daily = outcomes.get(DAILY_PEAK)
        policies = [{"name": name, **_figures(runs, daily)} for name, runs in outcomes.items()]
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "scenario": self.name,
            "nodes": fleet.nodes,
            "coresPerNode": rounded(fleet.node_milli / 1000.0),
            "pods": sum(fleet.replicas),
            "judgedDays": section.judged_days,
            "thresholdPercent": section.threshold_percent,
            "seeds": list(self.seeds),
            "policies": policies,
        }
        rows = tuple((one["name"], *(_cell(one[name]) for name in FIGURES)) for one in policies)
        intro = (
            f"{self.name}: {fleet.nodes} nodes of {fleet.node_milli / 1000:.1f} cores, {sum(fleet.replicas)} pods,"
            f" {section.judged_days} days, threshold {section.threshold_percent} %; means over {len(self.seeds)} seeds"
        )
        table = Table(intro, ("policy", *HEAD), rows, LEGEND)
        notes = tuple(dict.fromkeys(failure for runs in outcomes.values() for run in runs for failure in run.failures))
        gains = {str(one["name"]): float(one["gain"]) for one in policies}
        verdict = verdict_of("use with lending over use without", gains, most=True)
        return Report(self.name, document, tuple(outcomes), table, table, verdict, notes, self._plots(outcomes))

    def _plots(self, outcomes: Mapping[str, Sequence[LoanOutcome]]) -> Mapping[str, Sequence[Plot]]:
        days = [f"day {number + 1}" for number in range(self.section.judged_days)]

        def plot(title: str, line: str) -> Plot:
            lines = {
                name: np.mean([run.lines[line] for run in runs], axis=0).tolist() for name, runs in outcomes.items()
            }
            return Plot(title, lines, days, unit="share", axis="day")

        return {
            "lending": [
                plot("Used by jobs on loan, share of all cores", "lent"),
                plot("Used by the lender, share of all cores", "online"),
            ]
        }


def play(
    section: LoanDaySection, fleet: Fleet, learned: Callable[[], Sequence[Profiles]], policy: Policy, seed: int
) -> LoanOutcome:
    """Plays one seed under one policy. Deterministic in its arguments."""
    core = BareCore(policy, seed)
    services = section.services
    lender = Lender(fleet, learned(), services.noise, services.noise_lasts, np.random.default_rng([seed, 45]))
    jobs = JobSource(section.jobs, policy.scheduler_name, np.random.default_rng([seed, 46]))
    run = LoanRun(section, policy, core, lender, jobs)
    run.run()
    found, counts = run.figures, run.recalls.counts
    bound = fluid(lender.use, run.limit_milli, run.returns.notice_s + run.returns.grace_s)
    lines = dict(zip(("online", "lent"), np.array(found.samples).T, strict=True))
    per_hour = 1_000.0 * HOUR_S
    return LoanOutcome(
        seed,
        found.online / per_hour,
        found.lent / per_hour,
        float(bound.sum()) * STEP_S / per_hour,
        found.over_s / found.node_s,
        counts.recalls,
        counts.late,
        counts.notices,
        counts.withdrawn,
        counts.evicted,
        found.finished,
        found.failed,
        counts.lost_core_s / HOUR_S,
        found.best_lost_core_s / HOUR_S,
        {name: tuple(values.tolist()) for name, values in lines.items()},
        core.failures(),
    )


def _figures(runs: Sequence[LoanOutcome], daily: Sequence[LoanOutcome] | None) -> dict[str, Any]:
    found = [_of_run(run, None if daily is None else daily[number]) for number, run in enumerate(runs)]
    return {**{name: _mean([one[name] for one in found]) for name in FIGURES}, "runs": found}


def _of_run(run: LoanOutcome, daily: LoanOutcome | None) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "gain": rounded(run.gain),
        "boundGain": rounded(run.bound_gain),
        "gainOfBound": rounded(run.gain / run.bound_gain),
        "gainOverDailyPeak": None if daily is None else rounded(run.gain / daily.gain),
        "onlineCoreHours": rounded(run.online_hours),
        "lentCoreHours": rounded(run.lent_hours),
        "boundCoreHours": rounded(run.bound_hours),
        "lentOfBound": rounded(run.lent_hours / run.bound_hours) if run.bound_hours else None,
        "overPercent": rounded(100.0 * run.over_share),
        "recalls": run.recalls,
        "late": run.late,
        "notices": run.notices,
        "withdrawn": run.withdrawn,
        "evicted": run.evicted,
        "finishedJobs": run.finished,
        "failedJobs": run.failed,
        "lostCoreHours": rounded(run.lost_hours),
        "lostPercent": rounded(100.0 * run.lost_hours / run.lent_hours) if run.lent_hours else None,
        "lostOverBest": rounded(run.lost_hours / run.best_lost_hours) if run.best_lost_hours else None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return rounded(fmean(known)) if known else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
