"""The args of PeakForecast, read and checked: every refusal names the setting and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from domains.forecast.capacity import Capacity, MeasuredCapacity, SettingError, read_capacity
from domains.forecast.history_file import RESOURCES_MAX, HistoryError, history_files

if TYPE_CHECKING:
    from domains.forecast.fit_settings import FitSettings
    from domains.forecast.learning_settings import LearningSettings
    from domains.forecast.repair_settings import RepairSettings

PERCENTILE, WINDOW_DAYS = 95.0, 28.0
"""Defaults: four weeks see every weekday four times."""
WINDOW_DAYS_MAX = 3660
QUANTILE_MAX = 0.999
"""The largest sample of all is no quantile."""
FILES_HOURS_MIN = 1e-6
"""Whoever names files means them: one sample says something."""
SETTINGS = (
    "historyDir",
    "files",
    "percentile",
    "windowDays",
    "dimensions",
    "capacities",
    "mode",
    "thresholdPercent",
    "weights",
    "history",
    "fit",
    "profilesFile",
    "repair",
)  # fmt: skip
LEARNING = ("history", "fit", "profilesFile")
FILES_MAX = 10_000
THRESHOLD_PERCENT = 100.0
THRESHOLD_PERCENT_MAX = 1000
WEIGHT_MAX = 100


class Mode(Enum):
    """What the plugin does; the values are the words in the configuration."""

    SCORE = "score"
    FILTER = "filter"
    BOTH = "both"


class PeakSettings(msgspec.Struct, frozen=True):
    """Where history is and how it is read, and what the plugin does with it."""

    files: tuple[str, ...] = ()
    percentile: float = PERCENTILE
    window_days: float = WINDOW_DAYS
    dimensions: tuple[str, ...] = ()
    """Empty: CPU, memory, and every resource in the files."""
    capacities: Mapping[str, Capacity | MeasuredCapacity] = msgspec.field(default_factory=dict)
    mode: Mode = Mode.SCORE
    threshold_percent: float = THRESHOLD_PERCENT
    """Filter: a node's predicted peak, in percent of its capacity, may not pass this with the pod."""
    weights: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Score: how much a dimension counts; 1 where nothing is said."""
    history_dir: str = ""
    """Whose files are among `files`."""
    learning: LearningSettings | None = None
    """None: nothing is learned while the program runs."""
    repair: RepairSettings | None = None
    """None: plans go by the defaults."""

    def fit_of_files(self) -> FitSettings:
        """How profiles are made of `files`: as of `history`, but that less than an hour of samples counts as well."""
        from domains.forecast.fit_settings import FitSettings

        chosen = (
            FitSettings(quantile=min(self.percentile / 100, QUANTILE_MAX))
            if self.learning is None
            else self.learning.fit
        )
        return msgspec.structs.replace(chosen, known_hours_min=FILES_HOURS_MIN)

    @classmethod
    def from_config(cls, args: Mapping[str, Any]) -> PeakSettings:
        """Raises SettingError naming the setting and the fix; HistoryError for a directory that cannot be read."""
        for name in args:
            if name not in SETTINGS:
                raise SettingError(f"args.{name}: unknown; known here: {', '.join(SETTINGS)}")
        directory, files = args.get("historyDir"), _texts(args, "files")
        if directory is not None and not isinstance(directory, str):
            raise SettingError("args.historyDir: write the path of a directory")
        found = (*(history_files(directory) if directory else ()), *files)
        if len(found) > FILES_MAX:
            raise SettingError(f"args.files: {len(found)} files, more than {FILES_MAX}; merge them")
        capacities = args.get("capacities") or {}
        if not isinstance(capacities, Mapping):
            raise SettingError("args.capacities: write a mapping from dimension to capacity")
        percentile = _number(args, "percentile", PERCENTILE, 100)
        learning = _learning(args, percentile)
        told = () if learning is None else learning.dimensions
        measured = {} if learning is None else learning.capacities()
        dimensions = _texts(args, "dimensions") or tuple(one.name for one in told)
        if len(dimensions) > RESOURCES_MAX:
            raise SettingError(f"args.dimensions: {len(dimensions)} names, more than {RESOURCES_MAX}; leave some out")
        _refuse_strangers("capacities", capacities, dimensions)
        _refuse_strangers("weights", args.get("weights") or {}, dimensions)
        return cls(
            files=found,
            percentile=percentile,
            window_days=_number(args, "windowDays", WINDOW_DAYS, WINDOW_DAYS_MAX),
            dimensions=dimensions,
            capacities=measured | {name: read_capacity(name, setting) for name, setting in capacities.items()},
            mode=mode_of(args),
            threshold_percent=_number(args, "thresholdPercent", THRESHOLD_PERCENT, THRESHOLD_PERCENT_MAX),
            weights={one.name: one.weight for one in told} | _weights(args),
            history_dir=directory or "",
            learning=learning,
            repair=_repair(args),
        )


def _texts(args: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = args.get(name) or ()
    if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(t, str) and t for t in found):
        raise SettingError(f"args.{name}: write a list of texts")
    if len(set(found)) != len(found):
        raise SettingError(f"args.{name}: names one of them twice")
    return tuple(found)


def _learning(args: Mapping[str, Any], percentile: float) -> LearningSettings | None:
    if all(args.get(name) is None for name in LEARNING):
        return None
    from domains.forecast.learning_settings import read_learning

    return read_learning(args, percentile)


def _repair(args: Mapping[str, Any]) -> RepairSettings | None:
    if args.get("repair") is None:
        return None
    from domains.forecast.repair_settings import read_repair

    return read_repair(args["repair"])


def _refuse_strangers(setting: str, found: Collection[object], dimensions: Sequence[str]) -> None:
    """Where the dimensions are named, a capacity or a weight of another one is a slip: it would count for nothing."""
    for name in found if dimensions else ():
        if name not in dimensions:
            near = difflib.get_close_matches(str(name), dimensions, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(dimensions)}"
            raise SettingError(f"args.{setting}.{name}: no dimension is called so; {hint}")


def args_problems(args: Mapping[str, Any]) -> list[str]:
    """What is wrong with the args, each with its path, for `config validate`; that a file of `files` is not there, too."""
    try:
        settings = PeakSettings.from_config(args)
    except SettingError as error:
        return [line if line.startswith("args.") else f"args.{line}" for line in str(error).splitlines()]
    except HistoryError as error:
        return [f"args.historyDir: {str(error).removeprefix('historyDir ')}"]
    return [
        f"args.files[{number}]: {name}: there is no such file; name a readable CSV file"
        for number, name in enumerate(_texts(args, "files"))
        if name in settings.files and not Path(name).is_file()
    ]


def mode_of(args: Mapping[str, Any]) -> Mode:
    """Raises SettingError."""
    found = args.get("mode", Mode.SCORE.value)
    words = [mode.value for mode in Mode]
    if found not in words:
        raise SettingError(f"args.mode: {found!r} is not known; write one of {', '.join(words)}")
    return Mode(found)


def _weights(args: Mapping[str, Any]) -> dict[str, float]:
    found = args.get("weights") or {}
    if not isinstance(found, Mapping):
        raise SettingError("args.weights: write a mapping from dimension to weight")
    for name, weight in found.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= WEIGHT_MAX:
            raise SettingError(f"args.weights.{name}: {weight!r} is no number from 0 to {WEIGHT_MAX}")
    if len(found) > RESOURCES_MAX:
        raise SettingError(f"args.weights: {len(found)} names, more than {RESOURCES_MAX}; leave some out")
    return {str(name): float(weight) for name, weight in found.items()}


def _number(args: Mapping[str, Any], name: str, default: float, largest: float) -> float:
    found = args.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= largest:
        raise SettingError(f"args.{name}: {found!r} is not above 0 and at most {largest}")
    return float(found)
