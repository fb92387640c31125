"""History: the profiles that CSV files give, read once, and what was left out on the way.

Immutable and independent of any clock: the window reaches back from the newest sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from domains.forecast.history_file import LineProblem, Samples, read_history
from domains.forecast.history_profiles import DAY_S, slot_profiles
from domains.forecast.profiles import Profiles

MILLI: Final = 1000
"""Amounts of nodes and requests are integers in thousandths of the plain unit, so that sums of them are exact."""

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
    days: float = 0.0
    """From the oldest sample of the window to the newest."""


def load_history(files: Sequence[str], *, percentile: float, window_days: float) -> History:
    """Reads the files, unless this process has read the same ones before and they are unchanged since: a simulation builds
    the program once for every order. Raises HistoryError.
    """
    return _loaded(tuple((name, *_stamp(name)) for name in files), percentile, window_days)


def _stamp(name: str) -> tuple[int, int]:
    """When the file was written, and its size; zeros for one that cannot be read, which reading tells."""
    try:
        found = Path(name).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=HISTORIES_KEPT)
def _loaded(files: tuple[tuple[str, int, int], ...], percentile: float, window_days: float) -> History:
    samples = read_history([name for name, _, _ in files])
    return History(
        slot_profiles(samples, percentile=percentile, window_days=window_days),
        sample_count=samples.count,
        problems=tuple(samples.problems),
        problem_count=samples.problem_count,
        days=_days(samples, window_days),
    )


def _days(samples: Samples, window_days: float) -> float:
    oldest_s = min((min(series.seconds) for series in samples.series.values()), default=samples.newest_s)
    return min(window_days, max(0.0, (samples.newest_s - oldest_s) / DAY_S)) if samples.count else 0.0
