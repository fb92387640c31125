"""The workload `gpuTide`: runs policies on a simulated tide and reports how long inference waited, what was lost, and the use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec
import numpy as np

from domains.gpu.simulation.tide.cards import CardTable
from domains.gpu.simulation.tide.log import EventLog, TideMeter
from domains.gpu.simulation.tide.run import TideRun
from domains.gpu.simulation.tide.scenario import TideScenario, read_scenario
from domains.gpu.simulation.tide.section import GpuTideFile
from multisched.config.document import Document
from multisched.forecasting.time_units import DAY_S
from multisched.simulate.report import Plot, Report, Table, rounded, verdict_of
from multisched.simulate.scenario import Policy
from multisched.simulate.scenario_schema import API_VERSION

KIND: Final = "GpuTideReport"
STATIC: Final = "static"
"""The policy without a tide: a fixed part of the nodes is for inference."""
POLICIES: Final = ("tide", STATIC)
POINTS: Final = 288
"""Points of a plot."""
FIGURES: Final = (
    "inferenceWaitP99S",
    "inferenceWaitMaxS",
    "gpuHoursLostPercent",
    "useOfFluidBound",
    "useOverStatic",
    "evictedOverNeeded",
    "gangsBroken",
)
LEGEND: Final = (
    "wait: seconds from the creation of an inference pod until it has its cards; lost: work repeated and restarts, in percent of the "
    "GPU hours of training; use: card hours used over those of min(cards, inference + runnable training); over static: use over that "
    "of the policy static; evicted: cards evicted over those that inference then needed; broken: gangs that ran in part"
)


class TideOutcome(msgspec.Struct, frozen=True):
    """One run."""

    seed: int
    wait_p99_s: float
    wait_max_s: float
    lost_percent: float
    used_hours: float
    bound_hours: float
    evicted_over_needed: float
    evicted_cards: int
    overrides: int
    """Notices within the minimum run time, because demand exceeded the upper band."""
    gangs_broken: int
    is_learned: bool
    """The forecast was learned from days before."""
    lines: Mapping[str, tuple[float, ...]]
    """Plotted: POINTS values over the played days."""
    days: float
    """Length of what was played."""
    events: tuple[bytes, ...]
    failures: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return not self.failures and not self.gangs_broken


class TideSimulation(msgspec.Struct, frozen=True):
    """Implements `simulate.contribution.Simulation` and `RecordingSimulation`."""

    name: str
    policies: tuple[Policy, ...]
    seeds: tuple[int, ...]
    scenario: TideScenario
    is_recording: bool = False

    def recording(self) -> TideSimulation:
        return msgspec.structs.replace(self, is_recording=True)

    def events(self, outcomes: Mapping[str, Sequence[TideOutcome]]) -> Iterator[bytes]:
        """Yields the lines of the event log, run by run."""
        return (line for runs in outcomes.values() for run in runs for line in run.events)

    def runner(self) -> Callable[[Policy, int], TideOutcome]:
        return partial(play, self.scenario, is_recording=self.is_recording)

    def report(self, outcomes: Mapping[str, Sequence[TideOutcome]]) -> Report:
        section = self.scenario.section
        cards = section.nodes * section.cards_per_node
        days = next(run.days for runs in outcomes.values() for run in runs)
        policies = [{"name": name, **_figures(runs, outcomes.get(STATIC))} for name, runs in outcomes.items()]
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "scenario": self.name,
            "cards": cards,
            "days": rounded(days),
            "seeds": list(self.seeds),
            "forecast": {"scale": section.forecast.scale, "lateMinutes": section.forecast.late_minutes},
            "policies": policies,
        }
        head = ("policy", "wait p99", "wait max", "lost %", "use", "over static", "evicted", "broken")
        rows = tuple((one["name"], *(_cell(one[name]) for name in FIGURES)) for one in policies)
        intro = f"{self.name}: {cards} cards, {days:.3g} days; means over {len(self.seeds)} seeds, waits: the worst"
        table = Table(intro, head, rows, LEGEND)
        notes = tuple(dict.fromkeys(failure for runs in outcomes.values() for run in runs for failure in run.failures))
        if not all(run.is_learned for runs in outcomes.values() for run in runs):
            notes += ("the curve has no two days before the played ones: the forecast is the curve itself, smoothed",)
        waits = {str(one["name"]): float(one["inferenceWaitP99S"]) for one in policies}
        verdict = verdict_of("P99 wait of inference", waits, " s")
        return Report(self.name, document, tuple(outcomes), table, table, verdict, notes, self._plots(outcomes))

    def _plots(self, outcomes: Mapping[str, Sequence[TideOutcome]]) -> Mapping[str, Sequence[Plot]]:
        days = next(run.days for runs in outcomes.values() for run in runs)
        step_h = max(1, round(days * 24 / 8))
        labels = [f"{hour} h" for hour in range(0, round(days * 24), step_h)]
        cards = float(self.scenario.section.nodes * self.scenario.section.cards_per_node)

        def plot(title: str, line: str, marks: Sequence[float] = (), unit: str = "cards") -> Plot:
            lines = {
                name: np.mean([run.lines[line] for run in runs], axis=0).tolist() for name, runs in outcomes.items()
            }
            return Plot(title, lines, labels, marks, unit, "time since the start")

        return {
            "cards by use": [
                plot("Cards of inference", "inference", (cards,)),
                plot("Cards of training", "training", (cards,)),
                plot("Cards in use", "used", (cards,)),
            ],
            "waiting": [plot("Inference cards that wait, highest of each interval", "waiting")],
            "lost": [plot("Cards evicted so far", "evicted"), plot("GPU hours lost so far", "lost", unit="GPU hours")],
        }


def play(scenario: TideScenario, policy: Policy, seed: int, *, is_recording: bool = False) -> TideOutcome:
    """Plays one seed under one policy. Deterministic in its arguments."""
    played, section = scenario.played(seed), scenario.section
    is_static = policy.name == STATIC
    split = round(section.nodes * section.static_share) if is_static else None
    table = CardTable(policy, seed, section.nodes, section.cards_per_node, split)
    log = EventLog(policy.name, seed, is_wanted=is_recording)
    run = TideRun(played, table, log, is_static=is_static, seed=seed)
    run.run()
    meter, waits = run.meter, np.array(run.meter.waits_s or [0.0])
    return TideOutcome(
        seed,
        float(np.quantile(waits, 0.99)),
        float(waits.max()),
        100 * meter.lost_card_s / meter.training_card_s if meter.training_card_s else 0.0,
        meter.used_card_s / 3_600,
        meter.bound_card_s / 3_600,
        meter.evicted_over_needed,
        meter.evicted_cards,
        run.overrides,
        run.gangs_broken,
        run.is_learned or is_static,
        _lines(meter, played.begin_s, played.end_s - played.begin_s),
        (played.end_s - played.begin_s) / DAY_S,
        tuple(log.lines),
        table.failures(),
    )


def _lines(meter: TideMeter, begin_s: float, length_s: float) -> Mapping[str, tuple[float, ...]]:
    """Returns the plotted lines: of each interval the last sample, for what waits the highest."""
    samples = np.array(meter.samples, np.float64)
    edges = begin_s + np.arange(1, POINTS + 1) * length_s / POINTS
    last = np.clip(np.searchsorted(samples[:, 0], edges) - 1, 0, None)
    first = np.concatenate([[0], last[:-1]])
    _, demand, inference, training, evicted, lost = samples.T
    waiting = demand - inference
    highest = [waiting[begin : end + 1].max() for begin, end in zip(first.tolist(), last.tolist(), strict=True)]
    lines = {
        "inference": inference[last],
        "training": training[last],
        "used": inference[last] + training[last],
        "waiting": np.maximum(np.array(highest), 0),
        "evicted": evicted[last],
        "lost": lost[last] / 3_600,
    }
    return {name: tuple(values.tolist()) for name, values in lines.items()}


def _figures(runs: Sequence[TideOutcome], static: Sequence[TideOutcome] | None) -> dict[str, Any]:
    over = None
    if static is not None:
        over = fmean(run.used_hours / max(1e-9, other.used_hours) for run, other in zip(runs, static, strict=True))
    return {
        "inferenceWaitP99S": rounded(max(run.wait_p99_s for run in runs)),
        "inferenceWaitMaxS": rounded(max(run.wait_max_s for run in runs)),
        "gpuHoursLostPercent": rounded(fmean(run.lost_percent for run in runs)),
        "useOfFluidBound": rounded(fmean(_use(run) for run in runs)),
        "useOverStatic": None if over is None else rounded(over),
        "evictedOverNeeded": _finite(max(run.evicted_over_needed for run in runs)),
        "gangsBroken": sum(run.gangs_broken for run in runs),
        "runs": [
            {
                "seed": run.seed,
                "inferenceWaitP99S": rounded(run.wait_p99_s),
                "inferenceWaitMaxS": rounded(run.wait_max_s),
                "gpuHoursLostPercent": rounded(run.lost_percent),
                "useOfFluidBound": rounded(_use(run)),
                "usedCardHours": rounded(run.used_hours),
                "evictedOverNeeded": _finite(run.evicted_over_needed),
                "evictedCards": run.evicted_cards,
                "minRunTimeOverrides": run.overrides,
            }
            for run in runs
        ],
    }


def _use(run: TideOutcome) -> float:
    return run.used_hours / run.bound_hours if run.bound_hours else 1.0


def _finite(value: float) -> float | None:
    """Returns None for an infinite ratio, which JSON has not: evicted, but nothing of it needed."""
    return rounded(value) if value < float("inf") else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def read_tide(document: Document, file: GpuTideFile, policies: tuple[Policy, ...], path: Path) -> TideSimulation:
    """Reads a validated scenario with `gpuTide`; adds problems to the document."""
    scenario = read_scenario(document, file.gpu_tide, path.parent)
    return TideSimulation(file.name or path.stem, policies, file.seeds, scenario)
