"""History: the profiles that CSV files give, learned once, at the start, and what was left out on the way.

Immutable and independent of any clock: the window reaches back from the newest sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from domains.forecast.csv_lines import HistoryError, LineProblem, file_version
from domains.forecast.curves.profiles import Profiles
from domains.forecast.units import DAY_S

if TYPE_CHECKING:
    from domains.forecast.settings.fit import FitSettings


HISTORIES_KEPT: Final = 2
"""Per process; samples are let go of, a history is the profiles alone."""


class History(msgspec.Struct, frozen=True):
    """What files say."""

    profiles: Profiles | None = None
    """None: there are no files."""
    sample_count: int = 0
    problems: Sequence[LineProblem] = ()
    """The first bad lines, word for word."""
    problem_count: int = 0
    notes: Sequence[str] = ()
    """What the files are short of, and what stands in."""


def load_history(files: Sequence[str], *, fit: FitSettings, window_days: float) -> History:
    """Reads the files, unless this process has read the same ones before and they are unchanged since: what-if builds the
    domain anew for each question. Raises HistoryError.
    """
    return _loaded(tuple((name, *file_version(name)) for name in files), fit, window_days)


@lru_cache(maxsize=HISTORIES_KEPT)
def _loaded(files: tuple[tuple[str, int, int], ...], settings: FitSettings, window_days: float) -> History:
    from domains.forecast.history.coverage import profile_notes, reading_notes
    from domains.forecast.history.source import Reading, SourceError
    from domains.forecast.history.usage_csv import read_recorded
    from domains.forecast.learning.fit import fit

    try:
        found = read_recorded([name for name, _, _ in files], window_days)
    except SourceError as error:
        raise HistoryError(str(error)) from error
    newest_s = found.usage.start_s + found.usage.step_s * found.usage.values.shape[2]
    profiles = fit(found.usage, settings, 0, newest_s)
    steps = round(window_days * DAY_S / found.usage.step_s)
    notes = (*reading_notes(Reading(found.usage), steps), *profile_notes(profiles))
    return History(profiles, found.samples, found.problems, found.problem_count, notes)
