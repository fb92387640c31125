"""The contribution of the forecast domain to `multisched simulate`: the policy `peak-forecast`, and `repair` of a policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from domains.forecast.simulation.fits import FitCache
from domains.forecast.simulation.repair_section import RepairSection, check_repair, read_repair_section
from domains.forecast.simulation.run import ForecastRun
from multisched.simulate.contribution import Contribution, PolicySection
from multisched.simulate.scenario import Policy, Scenario
from multisched.simulate.scenario_time import DAY_S

NAMES_SHOWN = 5
WEEK_DAYS = 7


def extension(scenario: Scenario) -> Callable[[Policy], ForecastRun]:
    """Returns the function that makes the hooks of a run; the runs of a process share their fits."""
    fits = FitCache(scenario)
    return lambda policy: ForecastRun(scenario, policy, fits)


def notes(scenario: Scenario) -> list[str]:
    """Returns remarks on histories from which PeakForecast can learn little."""
    usage, found = scenario.usage, list[str]()
    names = (*usage.services, *usage.pods)
    used = sorted({series for own in scenario.series for series in own})
    is_missing = np.isnan(usage.values[:, :, : usage.step_at(scenario.known_until_s)])
    unknown = [names[series] for series in used if is_missing[series].all()]
    if unknown:
        more = ", …" if len(unknown) > NAMES_SHOWN else ""
        text = f"{len(unknown)} names have no history: {', '.join(unknown[:NAMES_SHOWN])}{more}"
        found.append(f"{text}; PeakForecast uses its fallbacks for them, last their requests")
    days = (scenario.known_until_s - usage.start_s) / DAY_S
    if days < WEEK_DAYS:
        text = f"the history has {days:.1f} days, less than a week"
        found.append(f"{text}; PeakForecast cannot distinguish weekdays, and with less than two days not hours either")
    return found


SIMULATION = Contribution(
    policies={"peak-forecast": {"base": "forecast"}},
    default_policies=("peak-forecast",),
    policy_sections={"repair": PolicySection(RepairSection, read_repair_section, check_repair)},
    extension=extension,
    notes=notes,
)
