"""Coverage: what a reading, and the profiles learned from it, are short of, in words that name the fallback and the fix. Pure.

What is measured badly must not silently count as little use. Reported are a dimension without a sample, less history
than asked for, steps finer than the samples, and series too short for their own week.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from domains.forecast.curves.profiles import Origin, Profiles
from domains.forecast.curves.usage import Samples
from domains.forecast.history.source import Reading
from domains.forecast.units import DAY_S
from multisched.model.plural import verb

WHOLE_SHARE: Final = 0.9
"""Of the window: with so much of it there is nothing to tell."""
SPACING_ROWS: Final = 256
"""Series that are looked at for the distance of their samples."""
NAMES_SHOWN: Final = 3


def reading_notes(reading: Reading, steps: int) -> Iterator[str]:
    """`steps`: of the window that was asked for."""
    usage, totals = reading.usage, reading.totals
    tables = [(name, usage.values[:, number]) for number, name in enumerate(usage.dimensions)]
    if totals is not None:
        tables += [(name, totals.values[:, number]) for number, name in enumerate(totals.dimensions)]
    for name, values in tables:
        known = np.isfinite(values)
        at = np.flatnonzero(known.any(axis=0))
        if not len(at):
            if not any(name == other and np.isfinite(rest).any() for other, rest in tables):
                yield f"{name}: no sample in the whole window; what pods use of it is not known and counts as nothing"
            continue
        covered = int(at[-1] - at[0]) + 1
        if covered < WHOLE_SHARE * steps:
            asked = steps * usage.step_s / DAY_S
            yield f"{name}: {covered * usage.step_s / DAY_S:.1f} days of samples, {asked:.1f} were asked for (windowDays)"
        apart = _spacing(values)
        if apart > 1:
            yield (
                f"{name}: samples lie {apart * usage.step_s:g} s apart, so that {apart - 1} of {apart} steps are gaps;"
                f" set stepSeconds: {apart * usage.step_s:g}"
            )


def _spacing(values: Samples) -> int:
    """Steps from a sample of a series to its next, the median; 1 where samples fill their steps."""
    rows, steps = np.nonzero(np.isfinite(values[:SPACING_ROWS]))
    apart = np.diff(steps)[np.diff(rows) == 0]
    return int(np.median(apart)) if len(apart) else 1


def profile_notes(profiles: Profiles) -> Iterator[str]:
    """Which profiles are no weeks of their own services."""
    for number, name in enumerate(profiles.dimensions):
        origin = profiles.origin[:, number]
        known = int(np.count_nonzero(origin != Origin.NONE))
        flat = np.flatnonzero(origin == Origin.QUANTILE)
        if len(flat):
            shown = ", ".join(profiles.services[service] for service in flat[:NAMES_SHOWN].tolist())
            more = ", …" if len(flat) > NAMES_SHOWN else ""
            have = verb(len(flat), "has", "have")
            yield (
                f"{name}: {len(flat)} of {known} services {have} too few days of samples, and one quantile stands for their"
                f" whole week: {shown}{more}"
            )


def weight_notes(reading: Reading, profiles: Profiles) -> Iterator[str]:
    """Of which services the totals of nodes tell no weight: they moved too seldom, with others, or too little."""
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
                f"{name}: who stood where tells no weight of {len(unknown)} of {len(services)} services, and they count as"
                f" using nothing of it: {', '.join(unknown[:NAMES_SHOWN])}{more}"
            )
