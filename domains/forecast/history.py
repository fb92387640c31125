"""History: what one replica of each service needs at its peak, per resource, learned once from samples.

Immutable after construction and independent of any clock: the window reaches back from the newest sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from domains.forecast.history_file import LineProblem, Samples, read_history

DAY_S = 86_400.0
MILLI = 1000
"""Amounts are integers in thousandths of the unit in the files, so that sums of them are exact."""


class History:
    """Peaks per service and resource, and what was left out on the way."""

    def __init__(
        self,
        peaks: Mapping[str, Mapping[str, int]],
        *,
        sample_count: int = 0,
        problems: Sequence[LineProblem] = (),
        problem_count: int = 0,
    ) -> None:
        self.peaks = peaks
        """Service -> resource -> milli-units."""
        self.resources = frozenset(resource for service in peaks.values() for resource in service)
        self.sample_count = sample_count
        self.problems = tuple(problems)
        """The first bad lines, word for word."""
        self.problem_count = problem_count
        self.largest_milli = {r: max(p.get(r, 0) for p in peaks.values()) for r in self.resources}
        """Resource -> the peak of one replica of its heaviest service."""

    def __len__(self) -> int:
        """Services."""
        return len(self.peaks)

    def peak(self, namespace: str, service: str) -> Mapping[str, int] | None:
        """Resource -> milli-units at the peak of one replica. `namespace/service` in the files goes before `service`."""
        return self.peaks.get(f"{namespace}/{service}") or self.peaks.get(service)


NO_HISTORY = History({})


def load_history(files: Sequence[str], *, percentile: float, window_days: float) -> History:
    """Reads the files and keeps one number per series. Raises HistoryError."""
    samples = read_history(files)
    return History(
        peaks_of(samples, percentile=percentile, window_days=window_days),
        sample_count=samples.count,
        problems=samples.problems,
        problem_count=samples.problem_count,
    )


def peaks_of(samples: Samples, *, percentile: float, window_days: float) -> dict[str, dict[str, int]]:
    """Service -> resource -> milli-units: the percentile, linearly interpolated, over the window's samples.

    A series without a sample in the window has no peak: it is a service that ended.
    """
    oldest_s = samples.newest_s - window_days * DAY_S
    peaks: dict[str, dict[str, int]] = {}
    for (service, resource), series in samples.series.items():
        values = np.frombuffer(series.values)[np.frombuffer(series.seconds) > oldest_s]
        if len(values):
            peaks.setdefault(service, {})[resource] = round(float(np.percentile(values, percentile)) * MILLI)
    return peaks
