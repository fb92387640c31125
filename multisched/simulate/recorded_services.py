"""The engine's own workload: services whose replicas have recorded usage; its figures are about the load of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from multisched.simulate.contribution import run_extensions
from multisched.simulate.judge import judge
from multisched.simulate.recorded_report import RecordedOutcome, report_of
from multisched.simulate.recorded_run import run_policy
from multisched.simulate.report import Report
from multisched.simulate.scenario import Policy, Scenario


class RecordedServices(msgspec.Struct, frozen=True):
    """Implements `contribution.Simulation`."""

    scenario: Scenario

    @property
    def policies(self) -> tuple[Policy, ...]:
        return self.scenario.policies

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.scenario.seeds

    def runner(self) -> Callable[[Policy, int], RecordedOutcome]:
        scenario, extensions = self.scenario, run_extensions(self.scenario)

        def run(policy: Policy, seed: int) -> RecordedOutcome:
            result = run_policy(scenario, policy, seed, extensions)
            fields = {key: value for report in result.reports for key, value in report.fields.items()}
            notes = tuple(note for report in result.reports for note in report.notes)
            figures = judge(scenario, result)
            return RecordedOutcome(
                seed, figures, result.moves, result.created, result.unplaced, result.failures, fields, notes
            )

        return run

    def report(self, outcomes: Mapping[str, Sequence[RecordedOutcome]]) -> Report:
        return report_of(self.scenario, outcomes)
