"""Notes about missing data in a reading and in profiles, with the fallback used and the fix. Pure.

Missing data must not silently count as low use. Notes report dimensions without samples, less history than requested,
steps shorter than the sample interval, and series too short for a weekly profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from domains.forecast.history.source import Reading
from multisched.forecasting.profiles import Origin, Profiles
from multisched.forecasting.time_units import DAY_S
from multisched.forecasting.usage import Samples
from multisched.model.plural import verb

WHOLE_SHARE: Final = 0.9
"""No note is made if samples cover at least this share of the window."""
SPACING_ROWS: Final = 256
"""Number of series used to find the sample interval."""
NAMES_SHOWN: Final = 3


def reading_notes(reading: Reading, steps: int) -> Iterator[str]:
    """Yields notes about missing samples in a reading. `steps`: length of the requested window."""
    usage, totals = reading.usage, reading.totals
    tables = [(name, usage.values[:, number]) for number, name in enumerate(usage.dimensions)]
    if totals is not None:
        tables += [(name, totals.values[:, number]) for number, name in enumerate(totals.dimensions)]
    for name, values in tables:
        known = np.isfinite(values)
        at = np.flatnonzero(known.any(axis=0))
        if not len(at):
            if not any(name == other and np.isfinite(rest).any() for other, rest in tables):
                yield f"{name}: no sample in the whole window; the use of pods is unknown and counts as zero"
            continue
        covered = int(at[-1] - at[0]) + 1
        if covered < WHOLE_SHARE * steps:
            asked = steps * usage.step_s / DAY_S
            yield f"{name}: {covered * usage.step_s / DAY_S:.1f} days of samples, {asked:.1f} were requested (windowDays)"
        apart = _spacing(values)
        if apart > 1:
            yield (
                f"{name}: samples are {apart * usage.step_s:g} s apart, so {apart - 1} of {apart} steps are gaps;"
                f" set stepSeconds: {apart * usage.step_s:g}"
            )


def _spacing(values: Samples) -> int:
    """Returns the median distance between consecutive samples of a series, in steps; 1 if there are no gaps."""
    rows, steps = np.nonzero(np.isfinite(values[:SPACING_ROWS]))
    apart = np.diff(steps)[np.diff(rows) == 0]
    return int(np.median(apart)) if len(apart) else 1


def profile_notes(profiles: Profiles) -> Iterator[str]:
    """Yields notes about services whose profile is one quantile for the whole week."""
    for number, name in enumerate(profiles.dimensions):
        origin = profiles.origin[:, number]
        known = int(np.count_nonzero(origin != Origin.NONE))
        flat = np.flatnonzero(origin == Origin.QUANTILE)
        if len(flat):
            shown = ", ".join(profiles.services[service] for service in flat[:NAMES_SHOWN].tolist())
            more = ", …" if len(flat) > NAMES_SHOWN else ""
            have = verb(len(flat), "has", "have")
            yield (
                f"{name}: {len(flat)} of {known} services {have} too few days of samples, and one quantile is used for"
                f" the whole week: {shown}{more}"
            )


def weight_notes(reading: Reading, profiles: Profiles) -> Iterator[str]:
    """Yields notes about services whose weight cannot be determined from node totals."""
    if reading.totals is None:
        return
    services = sorted({interval.service for interval in reading.totals.placement_intervals})
    numbers = profiles.numbers()
    for name in reading.totals.dimensions:
        column = profiles.dimensions.index(name) if name in profiles.dimensions else -1
        unknown = [
            service
            for service in services
            if column < 0 or service not in numbers or profiles.origin[numbers[service], column] == Origin.NONE
        ]
        if unknown:
            more = ", …" if len(unknown) > NAMES_SHOWN else ""
            yield (
                f"{name}: past placements do not determine the weight of {len(unknown)} of {len(services)} services,"
                f" and their use counts as zero: {', '.join(unknown[:NAMES_SHOWN])}{more}"
            )
