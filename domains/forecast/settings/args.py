"""The args of PeakForecast: parsing and checks. Every error names the setting and the fix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from domains.forecast.csv_lines import RESOURCES_MAX, HistoryError, dimensions_in, history_files
from domains.forecast.curves.capacity import Capacity, CapacityError, MeasuredCapacity, read_capacity
from domains.forecast.settings.by_dimension import QUANTILE_MAX, WEIGHT_MAX, by_dimension
from multisched.framework.plugin_args import Fields
from multisched.model.objects import CPU, MEMORY

if TYPE_CHECKING:
    from domains.forecast.settings.learning import LearningSettings
    from domains.forecast.settings.repair import RepairSettings
    from multisched.forecasting.fit_settings import FitSettings

PERCENTILE, WINDOW_DAYS = 95.0, 28.0
"""Defaults. Four weeks contain each weekday four times."""
WINDOW_DAYS_MAX = 3660
FILES_HOURS_MIN = 1e-6
"""Hours of samples needed of a series in `files`: a single sample suffices, because the files were named explicitly."""
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


class Mode(Enum):
    """Whether the plugin scores, filters or both; the values are those of the configuration."""

    SCORE = "score"
    FILTER = "filter"
    BOTH = "both"


class PeakSettings(msgspec.Struct, frozen=True):
    """All args of PeakForecast, checked."""

    files: tuple[str, ...] = ()
    percentile: float = PERCENTILE
    window_days: float = WINDOW_DAYS
    dimensions: tuple[str, ...] = ()
    """If empty: CPU, memory, and every dimension in the files."""
    capacities: Mapping[str, Capacity | MeasuredCapacity] = msgspec.field(default_factory=dict)
    mode: Mode = Mode.SCORE
    threshold_percent: float = THRESHOLD_PERCENT
    """Filter: limit of a node's predicted peak with the pod, in percent of its capacity."""
    weights: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Score: weight of a dimension; default 1."""
    history_dir: str = ""
    """Its files are included in `files`."""
    learning: LearningSettings | None = None
    """None: no refits."""
    repair: RepairSettings | None = None
    """None: plans use the defaults."""

    def fit_of_files(self) -> FitSettings:
        """Returns the fit settings for `files`: those of the section `fit`, but without the minimum of an hour of samples."""
        from multisched.forecasting.fit_settings import FitSettings

        chosen = (
            FitSettings(quantile=min(self.percentile / 100, QUANTILE_MAX))
            if self.learning is None
            else self.learning.fit
        )
        return msgspec.structs.replace(chosen, known_hours_min=FILES_HOURS_MIN)

    @classmethod
    def from_config(cls, args: Mapping[str, Any], path: str = "args") -> PeakSettings:
        """Parses the args. Raises PluginArgsError with all problems, each with its setting and fix."""
        with Fields(args, path, SETTINGS) as settings:
            return _read(settings)


def checked_settings(args: Mapping[str, Any], path: str = "args") -> PeakSettings:
    """Parses args for `config validate`: as `PeakSettings.from_config`, and also raises for missing files in `files`."""
    with Fields(args, path, SETTINGS) as settings:
        found = _read(settings)
        for at, name in settings.texts("files", FILES_MAX):
            if name in found.files and not Path(name).is_file():
                settings.refuse_at(at, f"{name}: there is no such file; name a readable CSV file")
        if found.learning is not None and Path(found.learning.profiles_file or "x").is_dir():
            settings.refuse("profilesFile", f"{found.learning.profiles_file} is a folder; name a file in it")
        return found


def settings_notes(args: Mapping[str, Any]) -> Iterator[str]:
    """Yields warnings about valid args that cannot work on this machine. `args` must pass `checked_settings`."""
    learning = PeakSettings.from_config(args).learning
    if learning is None or learning.history is None or not learning.profiles_file:
        return
    file = Path(learning.profiles_file)
    if not file.parent.is_dir():
        why = f"there is no folder {file.parent}"
    elif not os.access(file.parent, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        why = "you may not write there"
    else:
        return
    yield f"profilesFile: {file}: {why} on this machine; without it each start learns again, and scores by requests until then"


def _read(settings: Fields) -> PeakSettings:
    """Parses all settings; records problems in `settings`."""
    percentile = settings.above_zero("percentile", PERCENTILE, 100)
    learning = _learning(settings, percentile)
    learned = () if learning is None else learning.dimensions
    dimensions = settings.names("dimensions", RESOURCES_MAX) or tuple(one.name for one in learned if one.name)
    files = _files(settings)
    known = dimensions or _known(settings, files, learning)
    weights = tuple(by_dimension(settings, "weights", known, RESOURCES_MAX))
    return PeakSettings(
        files=files,
        percentile=percentile,
        window_days=settings.above_zero("windowDays", WINDOW_DAYS, WINDOW_DAYS_MAX),
        dimensions=dimensions,
        capacities=({} if learning is None else learning.capacities()) | dict(_capacities(settings, known)),
        mode=Mode(settings.choice("mode", Mode.SCORE.value, [mode.value for mode in Mode])),
        threshold_percent=settings.above_zero("thresholdPercent", THRESHOLD_PERCENT, THRESHOLD_PERCENT_MAX),
        weights={one.name: one.weight for one in learned}
        | {name: settings.below("weights", weights).number(name, 1.0, 0, WEIGHT_MAX) for name in weights},
        history_dir=settings.text("historyDir"),
        learning=learning,
        repair=_repair(settings, known),
    )


def _known(settings: Fields, files: Sequence[str], learning: LearningSettings | None) -> tuple[str, ...]:
    """Returns the dimensions if `dimensions` is empty: CPU, memory, and those of the files; empty if they cannot be known.

    Reads files only if a setting names a dimension other than CPU and memory.
    """
    always = (CPU, MEMORY)
    said = {name for mapping in _said(settings) if isinstance(mapping, Mapping) for name in mapping} - set(always)
    if not said:
        return always
    if learning is not None and learning.profiles_file:
        from domains.forecast.curves.profiles_file import ProfilesFileError, dimensions_of

        try:
            return tuple(sorted({*always, *dimensions_of(Path(learning.profiles_file).read_bytes())}))
        except (OSError, ProfilesFileError):
            return ()
    if not all(Path(name).is_file() for name in files):
        return ()
    return tuple(sorted({*always, *dimensions_in(files, said)}))


def _said(settings: Fields) -> Iterator[object]:
    """Yields the settings that are mappings by dimension."""
    yield from (settings.value("weights"), settings.value("capacities"))
    repair = settings.value("repair")
    if isinstance(repair, Mapping):
        yield repair.get("thresholdPercent")


def _files(settings: Fields) -> tuple[str, ...]:
    """Returns the files of `historyDir`, then those listed in `files`."""
    directory, listed = settings.value("historyDir"), settings.names("files", FILES_MAX)
    if settings.has("files") and not settings.value("files"):
        settings.refuse("files", "is empty; name at least one CSV file, or leave it out")
    try:
        found = history_files(directory) if directory and isinstance(directory, str) else []
    except HistoryError as error:
        settings.refuse("historyDir", str(error).removeprefix("historyDir "))
        return listed
    if len(found) + len(listed) > FILES_MAX:
        settings.refuse("historyDir", f"{len(found) + len(listed)} files, more than {FILES_MAX}; merge them")
    return (*found, *listed)


def _capacities(settings: Fields, dimensions: Sequence[str]) -> Iterator[tuple[str, Capacity]]:
    for name, capacity in by_dimension(settings, "capacities", dimensions, RESOURCES_MAX).items():
        try:
            yield name, read_capacity(capacity)
        except CapacityError as error:
            settings.refuse(f"capacities.{name}", str(error))


def _learning(settings: Fields, percentile: float) -> LearningSettings | None:
    if not any(settings.has(name) for name in LEARNING):
        return None
    from domains.forecast.settings.learning import learning_of

    return learning_of(settings, percentile)


def _repair(settings: Fields, dimensions: Sequence[str]) -> RepairSettings | None:
    if not settings.has("repair"):
        return None
    from domains.forecast.settings.repair import REPAIR, repair_of

    return repair_of(settings.below("repair", REPAIR), dimensions)
