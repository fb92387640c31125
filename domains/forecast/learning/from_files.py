"""History: profiles learned from CSV files once, at start, and the skipped lines.

Immutable and independent of the clock: the window ends with the newest sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from domains.forecast.csv_lines import HistoryError, LineProblem, file_version
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.time_units import DAY_S

if TYPE_CHECKING:
    from multisched.forecasting.fit_settings import FitSettings


HISTORIES_KEPT: Final = 2
"""Cached histories per process; they contain profiles only, no samples."""


class History(msgspec.Struct, frozen=True):
    """Result of learning from files."""

    profiles: Profiles | None = None
    """None: there are no files."""
    sample_count: int = 0
    problems: Sequence[LineProblem] = ()
    """The first skipped lines."""
    problem_count: int = 0
    notes: Sequence[str] = ()
    """Messages about missing data and the fallbacks used."""


def load_history(files: Sequence[str], *, fit: FitSettings, window_days: float) -> History:
    """Learns profiles from the files. Raises HistoryError.

    Caches results by file names, sizes and modification times, because what-if rebuilds the domain for each request.
    """
    return _loaded(tuple((name, *file_version(name)) for name in files), fit, window_days)


@lru_cache(maxsize=HISTORIES_KEPT)
def _loaded(files: tuple[tuple[str, int, int], ...], settings: FitSettings, window_days: float) -> History:
    from domains.forecast.history.coverage import profile_notes, reading_notes
    from domains.forecast.history.source import Reading, SourceError
    from domains.forecast.history.usage_csv import read_recorded
    from multisched.forecasting.fit import fit

    try:
        found = read_recorded([name for name, _, _ in files], window_days)
    except SourceError as error:
        raise HistoryError(str(error)) from error
    newest_s = found.usage.start_s + found.usage.step_s * found.usage.values.shape[2]
    profiles = fit(found.usage, settings, 0, newest_s)
    steps = round(window_days * DAY_S / found.usage.step_s)
    notes = (*reading_notes(Reading(found.usage), steps), *profile_notes(profiles))
    return History(profiles, found.samples, found.problems, found.problem_count, notes)
