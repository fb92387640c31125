"""The section `repair` of a policy: PeakForecast repairs in windows of the judged days, with one budget for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from domains.forecast.peak_forecast import PeakForecast
from domains.forecast.settings.repair import read_repair
from domains.forecast.settings.windows import TroughWindows
from multisched.config.document import Document, Path, render_path
from multisched.config.sections import Section
from multisched.config.structure import nearest
from multisched.framework.plugin_args import PluginArgsError
from multisched.simulate.policies import plugins_of
from multisched.simulate.scenario import Policy, Scenario
from multisched.simulate.scenario_time import DAY_S

MOVES_MAX: Final = 10_000
REPAIR_MINUTES: Final = 1
"""Interval between two plans in one window, and timeout for a replacement to become ready: nothing else happens meanwhile."""


class RepairSection(Section, frozen=True):
    """The section as it is written."""

    windows: Any
    """The same as `repair.windows` in the args of PeakForecast: `[{from: "05:00", to: "07:00"}]`; in UTC unless a zone is named."""
    moves_per_100_replicas: Annotated[float, Meta(gt=0, le=1_000)] = 3.0
    """Over all judged days, relative to the initial number of replicas, rounded down."""
    moves_per_window: Annotated[int, Meta(ge=1, le=MOVES_MAX)] | None = None
    """Default: the whole budget, so the first window may spend all of it."""
    threshold_percent: Any = "auto"
    """The same as `repair.thresholdPercent` in the args of PeakForecast."""


class Repair(msgspec.Struct, frozen=True):
    """The settings of PeakForecast's repair in the judged days."""

    args: Mapping[str, Any]
    """The section `repair:` of its args, without the moves per window."""
    moves_per_100_replicas: float
    """Over all judged days."""
    moves_per_window: int | None

    def moves(self, replicas: int) -> tuple[int, int]:
        """Returns the allowed moves over all judged days, and in one window."""
        whole = math.floor(self.moves_per_100_replicas * replicas / 100 + 1e-9)
        return whole, whole if self.moves_per_window is None else self.moves_per_window


class RepairWindow(msgspec.Struct, frozen=True):
    """A repair window on a judged day, in epoch seconds."""

    opens_s: float
    closes_s: float


def read_repair_section(document: Document, at: Path, section: RepairSection, policy: Policy) -> Repair | None:
    """Returns what the section allows; None after adding its problems to the document."""
    domains = policy.configuration.domains
    ours = next(domain for domain in domains if policy.scheduler_name in domain.scheduler_names)
    name = PeakForecast.name
    if name not in plugins_of(ours):
        document.add(at, f"policy {policy.name!r} does not run {name}, which repairs; remove repair, or enable it")
        return None
    args = {
        "mode": "apply",
        "windows": section.windows,
        "thresholdPercent": section.threshold_percent,
        "intervalMinutes": REPAIR_MINUTES,
        "readyMinutes": REPAIR_MINUTES,
    }
    try:
        read_repair(args, render_path(at))
    except PluginArgsError as error:
        document.add(at, str(error))
        return None
    return Repair(args, section.moves_per_100_replicas, section.moves_per_window)


def check_repair(document: Document, at: Path, repair: Repair, scenario: Scenario) -> None:
    """Adds problems of the section that depend on the usage, the judged days and the replicas."""
    thresholds, known = repair.args.get("thresholdPercent"), scenario.usage.dimensions
    for name in thresholds if isinstance(thresholds, Mapping) else ():
        if name not in known:
            text = f"the usage has no dimension {name!r}; it has {', '.join(known)}"
            place = (*at, "thresholdPercent", name)
            document.add(place, text, suggestion=nearest(name, known), of_key=True)
    in_all, in_window = repair.moves(scenario.replicas)
    if not repair_windows(repair, scenario):
        document.add((*at, "windows"), "none opens on a judged day; write one that does")
    if in_all < 1:
        text = f"allows no move of {scenario.replicas} replicas; write more"
        document.add((*at, "movesPer100Replicas"), text)
    elif in_window > in_all:
        text = f"{in_window} are more than the {in_all} that movesPer100Replicas allows in all; write fewer"
        document.add((*at, "movesPerWindow"), text)


def repair_windows(repair: Repair, scenario: Scenario) -> list[RepairWindow]:
    """Returns windows that open on judged days, in order of time; windows that opened before the judged days do not count."""
    days = (scenario.judged_to_s - scenario.judged_from_s) // DAY_S
    first = datetime.fromtimestamp(scenario.judged_from_s - DAY_S, UTC).date()
    spans = {
        span for one in TroughWindows.from_config(repair.args["windows"]).windows for span in one.spans(first, days + 2)
    }
    inside = (span for span in spans if scenario.judged_from_s <= span.opens_s < scenario.judged_to_s)
    return [RepairWindow(span.opens_s, span.closes_s) for span in sorted(inside)]
