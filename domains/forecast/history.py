"""History: the profiles that CSV files give, read once, and what was left out on the way.

Immutable and independent of any clock: the window reaches back from the newest sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from domains.forecast.history_file import LineProblem, read_history
from domains.forecast.profiles import Profiles
from domains.forecast.history_profiles import slot_profiles

MILLI: Final = 1000
"""Amounts of nodes and requests are integers in thousandths of the plain unit, so that sums of them are exact."""


class History(msgspec.Struct, frozen=True):
    """What files say."""

    profiles: Profiles | None = None
    """None: there are no files."""
    sample_count: int = 0
    problems: Sequence[LineProblem] = ()
    """The first bad lines, word for word."""
    problem_count: int = 0


def load_history(files: Sequence[str], *, percentile: float, window_days: float) -> History:
    """Reads the files. Raises HistoryError."""
    samples = read_history(files)
    return History(
        slot_profiles(samples, percentile=percentile, window_days=window_days),
        sample_count=samples.count,
        problems=tuple(samples.problems),
        problem_count=samples.problem_count,
    )
