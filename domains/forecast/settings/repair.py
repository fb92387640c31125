"""The args of PeakForecast for repair, below `repair:`, and the limits of a plan, derived from them and from a request.

    repair:
      thresholdPercent: {cpu: 90, log: 80}   # or one number for all; a dimension that is not named has 100;
                                             # or auto: as low as the moves reach (`repair/target.py`)
      movesPerWindow: 50
      movesPerNode: 10
      movesPerService: 10
      swellPercent: 10
      pods: own                              # all: also those that other schedulers place

Immutable. Imported only when a plan is made, or if the configuration has the section.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from domains.forecast.settings.by_dimension import by_dimension
from domains.forecast.settings.repair_limits import RepairLimits
from domains.forecast.settings.repair_runs import EXECUTION, ExecutionSettings, read_execution
from multisched.framework.plugin_args import Fields
from multisched.framework.repair import ALL_DIMENSIONS, RepairRefusedError, RepairRequest
from multisched.model.near_names import did_you_mean

PLANNING: Final = ("thresholdPercent", "movesPerWindow", "movesPerNode", "movesPerService", "swellPercent", "pods")
"""The settings of plans."""
REPAIR: Final = (*PLANNING, *EXECUTION)
"""All settings below `repair:`."""
THRESHOLD_PERCENT: Final = 100.0
THRESHOLD_PERCENT_MAX: Final = 1_000.0
MOVES_MAX: Final = 10_000
AUTO: Final = "auto"
"""Value of `thresholdPercent`: find the lowest thresholds."""
AUTO_PERCENT: Final = 1.0
"""With AUTO, thresholds are not lowered below this."""
SWELL_PERCENT_MAX: Final = 100.0
DIMENSIONS_MAX: Final = 64


class Movable(Enum):
    """Which pods may be moved; the values are those of the configuration."""

    OWN = "own"
    """Pods with a schedulerName of the domain, whose replacements are scheduled by this domain."""
    ALL = "all"
    """All pods on the domain's nodes. If another scheduler places the replacement, it may choose the old node again."""


class RepairSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The section `repair:`, checked."""

    threshold_percent: Mapping[str, float] = {}
    """Dimension -> threshold; the key ALL_DIMENSIONS applies to dimensions that are not named."""
    is_lowest: bool = False
    """True for `thresholdPercent: auto`: plans use the lowest thresholds that the allowed moves reach."""
    moves_per_window: int = 50
    moves_per_node: int = 10
    moves_per_service: int = 10
    swell_percent: float = 10.0
    """See `RepairLimits.swell`."""
    movable: Movable = Movable.OWN
    execution: ExecutionSettings = ExecutionSettings()


def read_repair(document: object, path: str = "args.repair") -> RepairSettings:
    """Parses the section. Raises PluginArgsError with all problems."""
    with Fields(document, path, REPAIR) as settings:
        return repair_of(settings)


def repair_of(settings: Fields, dimensions: Sequence[str] = ()) -> RepairSettings:
    """Parses `settings`, which has the fields of REPAIR; records problems in it. `dimensions`: empty if not yet known."""
    defaults = RepairSettings()
    return RepairSettings(
        threshold_percent=_thresholds(settings, dimensions),
        is_lowest=settings.value("thresholdPercent") == AUTO,
        moves_per_window=settings.integer("movesPerWindow", defaults.moves_per_window, 0, MOVES_MAX),
        moves_per_node=settings.integer("movesPerNode", defaults.moves_per_node, 0, MOVES_MAX),
        moves_per_service=settings.integer("movesPerService", defaults.moves_per_service, 0, MOVES_MAX),
        swell_percent=settings.number("swellPercent", defaults.swell_percent, 0.0, SWELL_PERCENT_MAX),
        movable=Movable(settings.choice("pods", Movable.OWN.value, [one.value for one in Movable])),
        execution=read_execution(settings),
    )


def _thresholds(settings: Fields, dimensions: Sequence[str]) -> Mapping[str, float]:
    found = settings.value("thresholdPercent")
    if found is None:
        return {}
    if found == AUTO:
        return {ALL_DIMENSIONS: AUTO_PERCENT}
    is_by_dimension = isinstance(found, Mapping)
    found = (
        by_dimension(settings, "thresholdPercent", dimensions, DIMENSIONS_MAX)
        if is_by_dimension
        else {ALL_DIMENSIONS: found}
    )
    for name, percent in found.items():
        if not _is_threshold(percent):
            at = f"thresholdPercent.{name}" if name else "thresholdPercent"
            fix = f"write a percentage above 0, at most {THRESHOLD_PERCENT_MAX:g}, one per dimension: {{log: 90}}, or auto"
            settings.refuse(at, f"{percent!r} is not a threshold; {fix}")
    return {name: float(percent) for name, percent in found.items() if _is_threshold(percent)}


def _is_threshold(percent: Any) -> bool:
    is_number = isinstance(percent, int | float) and not isinstance(percent, bool)
    return is_number and 0 < percent <= THRESHOLD_PERCENT_MAX


def limits_of(settings: RepairSettings, request: RepairRequest, dimensions: Sequence[str]) -> RepairLimits:
    """Returns the limits of a plan. Raises RepairRefusedError for an invalid request."""
    for name, percent in request.threshold_percent.items():
        if name != ALL_DIMENSIONS:
            _require_dimension(name, dimensions)
        if not _is_threshold(percent):
            at = f"{name}={percent:g}" if name else f"{percent:g}"
            raise RepairRefusedError(
                f"threshold {at}: write a percentage above 0 and at most {THRESHOLD_PERCENT_MAX:g}"
            )
    moves = (request.moves, request.moves_per_node, request.moves_per_service)
    for what, number in zip(("moves", "moves per node", "moves per service"), moves, strict=True):
        if number is not None and not 0 <= number <= MOVES_MAX:
            raise RepairRefusedError(f"{what}: {number} is not within 0..{MOVES_MAX}")
    default = settings.threshold_percent.get(ALL_DIMENSIONS, THRESHOLD_PERCENT)
    default = request.threshold_percent.get(ALL_DIMENSIONS, default)
    # A requested threshold for all dimensions overrides configured thresholds of single dimensions.
    stated = {} if ALL_DIMENSIONS in request.threshold_percent else settings.threshold_percent
    thresholds = (request.threshold_percent.get(name, stated.get(name, default)) / 100 for name in dimensions)
    return RepairLimits(
        tuple(thresholds),
        moves_per_window=settings.moves_per_window if request.moves is None else request.moves,
        moves_per_node=settings.moves_per_node if request.moves_per_node is None else request.moves_per_node,
        moves_per_service=settings.moves_per_service
        if request.moves_per_service is None
        else request.moves_per_service,
        swell=settings.swell_percent / 100,
    )


def unknown_dimensions(settings: RepairSettings, dimensions: Sequence[str]) -> tuple[str, ...]:
    """Returns the configured dimensions that the profiles do not have."""
    return tuple(n for n in settings.threshold_percent if n != ALL_DIMENSIONS and n not in dimensions)


def _require_dimension(name: str, dimensions: Sequence[str]) -> None:
    if name in dimensions:
        return
    hint = did_you_mean(name, dimensions, f"known here: {', '.join(dimensions)}")
    raise RepairRefusedError(f"threshold {name}: not a dimension of the forecast; {hint}")
