"""A scenario with `gpuTide` as values: what its files hold, and what one seed plays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from domains.gpu.simulation.tide.curve import BEGIN_S, Curve, read_curve, read_time, shape_curve
from domains.gpu.simulation.tide.jobs import Job, drawn, played, read_jobs
from domains.gpu.simulation.tide.section import GpuTideSection
from domains.gpu.tide.settings import TideSettings, tide_settings
from multisched.config.document import Document, Problem
from multisched.forecasting.time_units import DAY_S
from multisched.framework.plugin_args import PluginArgsError

SETTINGS_PATH: Final = "gpuTide.settings"
DEFAULT_SETTINGS: Final[Mapping[str, Any]] = {"notice": "60s", "grace": "30s"}
_ANY_INFERENCE: Final[Mapping[str, Any]] = {"selector": {"matchLabels": {"app": "inference"}}}


class Played(msgspec.Struct, frozen=True):
    """The input of one run."""

    section: GpuTideSection
    settings: TideSettings
    curve: Curve
    begin_s: float
    end_s: float
    jobs: tuple[Job, ...]

    @property
    def cards(self) -> int:
        return self.section.nodes * self.section.cards_per_node


class TideScenario(msgspec.Struct, frozen=True):
    """The scenario with its files, for all seeds."""

    section: GpuTideSection
    settings: TideSettings
    curve: Curve | None
    """The curve of the file; None: the curve is computed from the shape."""
    jobs: tuple[Job, ...]
    """The jobs of the file; empty: they are drawn at random."""
    first_s: float = 0.0
    """The moment of the file of jobs at which the played days begin."""

    def played(self, seed: int) -> Played:
        """Returns what a seed plays. Deterministic."""
        section, inference = self.section, self.section.inference
        if self.curve is None:
            begin_s = BEGIN_S
            curve = shape_curve(inference.shape, inference.peak, section.days, section.history_days, seed)
        else:
            curve = self.curve
            begin_s = max(float(curve.at_s[0]), float(curve.at_s[-1]) - section.days * DAY_S)
        end_s = begin_s + section.days * DAY_S if self.curve is None else float(curve.at_s[-1])
        cards = section.nodes * section.cards_per_node
        length_s = end_s - begin_s
        left_card_s = max(1.0, (cards - curve.mean(begin_s, end_s)) * length_s)
        load = section.jobs.load
        if self.jobs:
            jobs = played(self.jobs, self.first_s, begin_s, length_s, load, left_card_s)
        else:
            jobs = drawn(begin_s, length_s, load, left_card_s, cards, seed)
        return Played(section, self.settings, curve, begin_s, end_s, jobs)


def read_scenario(document: Document, section: GpuTideSection, folder: Path) -> TideScenario:
    """Reads the files of the section; adds problems to the document."""
    of_curve, of_jobs = list[Problem](), list[Problem]()
    curve = None if section.inference.curve is None else read_curve(folder / section.inference.curve, of_curve)
    jobs = () if section.jobs.file is None else read_jobs(folder / section.jobs.file, of_jobs)
    document.problems += of_curve + of_jobs
    low, high = section.jobs.hook_answer
    if not 0 <= low <= high:
        document.add(
            ("gpuTide", "jobs", "hookAnswerSeconds"), f"[{low:g}, {high:g}] is no range; write for instance [30, 60]"
        )
    if section.inference.pod_cards > section.cards_per_node:
        text = f"{section.inference.pod_cards} cards do not fit a node of {section.cards_per_node}; lower it"
        document.add(("gpuTide", "inference", "podCards"), text)
    shape = section.inference.shape
    if curve is None and shape.mean_over_peak <= shape.low:
        text = f"{shape.mean_over_peak:g} is not above low, {shape.low:g}; raise it, or lower low"
        document.add(("gpuTide", "inference", "shape", "meanOverPeak"), text)
    first_s = jobs[0].arrives_s if jobs else 0.0
    if section.jobs.begin is not None:
        found_s = read_time(section.jobs.begin)
        if found_s is None or not jobs or not first_s <= found_s <= jobs[-1].arrives_s:
            text = (
                f"{section.jobs.begin!r} is no time between the first and the last job of the file; write such a time"
            )
            document.add(("gpuTide", "jobs", "from"), text)
        first_s = found_s or first_s
    return TideScenario(section, _settings(document, section), curve, jobs, first_s)


def _settings(document: Document, section: GpuTideSection) -> TideSettings:
    args = {**DEFAULT_SETTINGS, **section.settings}
    inference = args.get("inference", {})
    if isinstance(inference, Mapping):
        args["inference"] = {**_ANY_INFERENCE, **inference}
    try:
        return tide_settings(args, SETTINGS_PATH)
    except PluginArgsError as error:
        for problem in error.problems:
            document.add(("gpuTide", "settings"), f"{problem.path.removeprefix(SETTINGS_PATH + '.')}: {problem.reason}")
    return TideSettings()
