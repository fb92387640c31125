"""The amounts that a lender can lend: arithmetic of reserves for its growth, and of idle capacity. Pure functions; amounts are int64[rows]
or float64[rows].

Unrequested capacity: the amount by which the lender's requests may grow before lent capacity can be returned is kept free, in total over
all rows on loan. Idle capacity: the threshold, less the expected use (the current use plus the growth of the forecast), less its usual
error. Sources: Koordinator's batch resources subtract the current use; "Take it to the limit" (EuroSys 2021) the predicted peak.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from multisched.framework.node_view import Float64, Int64

DAY_S: Final = 86_400.0
STEP_S: Final = 30.0
HISTORY_STEPS: Final = int(DAY_S / STEP_S) + 120
"""Number of steps of a day, and 120 more."""
RISE_SHARE: Final = 0.99
LEARNED_MIN_S: Final = 3_600.0
"""With less history than this, no rise is expected."""
BINS: Final = 1_000
UNKNOWN_RETURN_ERROR: Final = 0.10
UNKNOWN_LEND_ERROR: Final = 0.20
"""The error that is expected before any was measured, as a share of allocatable."""
RETURN_SHARE: Final = 0.99
"""Share of the errors that the margin covers for the time until lent capacity is returned. A larger error puts a node over the threshold.
"""
LEND_AHEAD_S: Final = 900.0
LEND_SHARE: Final = 0.90
"""Share of the errors that the margin covers for the run time of new work. A larger error costs an eviction, and only if no pod ends in
time.
"""


class RequestHistory:
    """The sum of the lender's requests on the rows of a loan, during the last day."""

    def __init__(self) -> None:
        self._sums: deque[float] = deque(maxlen=HISTORY_STEPS)

    def add(self, amount: float) -> None:
        """Adds the sum for one step of STEP_S seconds."""
        self._sums.append(amount)

    @property
    def is_known(self) -> bool:
        """Reports whether there is enough history to expect a rise."""
        return len(self._sums) * STEP_S >= LEARNED_MIN_S

    def rise(self, within_s: float) -> float:
        """Returns how much the sum is expected to rise within this many seconds: the larger one of the 99th percentile of all rises and the
        largest rise within half an hour of this time yesterday. 0 without enough history.
        """
        if not self.is_known:
            return 0.0
        sums = np.array(self._sums)
        steps = max(1, int(np.ceil(within_s / STEP_S)))
        if len(sums) <= steps:
            return 0.0
        windows = np.lib.stride_tricks.sliding_window_view(sums, steps + 1)
        rises = windows.max(axis=1) - windows[:, 0]
        usual = float(np.quantile(rises, RISE_SHARE))
        at = len(sums) - int(DAY_S / STEP_S)
        half = int(1_800 / STEP_S)
        yesterday = rises[max(0, at - half) : at + half] if at >= 0 else rises[:0]
        return max(usual, float(yesterday.max(initial=0.0)))


def shared_out(total: float, unused: Int64) -> Int64:
    """Returns int64[rows]: the total divided among the rows in proportion to their unused amounts, rounded up."""
    whole = np.maximum(0, unused)
    if total <= 0 or not whole.sum():
        return np.zeros(len(unused), np.int64)
    found: Int64 = np.ceil(whole * (total / whole.sum())).astype(np.int64)
    return found


class UseErrors:
    """The errors of expected use: how far the use of rows exceeded the expectation within a given time, relative to allocatable. Older
    errors count less: those of a day ago count 1/e.
    """

    def __init__(self, within_s: float, share: float, unknown: float) -> None:
        """`share`: share of the errors that the margin covers; `unknown`: the margin before any error was measured."""
        self.within_s, self._share, self._unknown = within_s, share, unknown
        self._names: tuple[str, ...] = ()
        steps = max(1, int(np.ceil(within_s / STEP_S)))
        self._used: deque[Float64] = deque(maxlen=steps + 1)
        self._expected: deque[Float64] = deque(maxlen=steps + 1)
        """For each of the last steps, float64[names]: the highest use that was expected within the time; NaN where unknown."""
        self._counts: Float64 = np.zeros(BINS + 1)
        """Errors by size; those of a day ago count 1/e."""
        self._learned_steps = 0

    def add(self, names: tuple[str, ...], used: Float64, expected: Float64) -> None:
        """Adds one step of STEP_S. float64[names], relative to allocatable."""
        if names != self._names:
            self._rename(names)
        self._used.append(used)
        self._expected.append(expected)
        if len(self._used) < (self._used.maxlen or 0):
            return
        errors = np.max(self._used, axis=0) - self._expected[0]
        errors = errors[~np.isnan(errors)]
        if len(errors):
            bins = np.ceil(np.clip(errors, 0.0, 1.0) * BINS).astype(np.intp)
            self._counts *= 1.0 - STEP_S / DAY_S
            self._counts += np.bincount(bins, minlength=BINS + 1)
            self._learned_steps += 1

    def margin(self) -> float:
        """Returns the expected error, relative to allocatable."""
        if self._learned_steps * STEP_S < LEARNED_MIN_S:
            return self._unknown
        sums = self._counts.cumsum()
        return int(np.searchsorted(sums, self._share * sums[-1])) / BINS

    def _rename(self, names: tuple[str, ...]) -> None:
        """Keeps the values of rows that still exist."""
        before = {name: number for number, name in enumerate(self._names)}
        at = np.array([before.get(name, len(before)) for name in names], np.intp)
        for kept in (self._used, self._expected):
            renamed = [np.append(one, np.nan)[at] for one in kept]
            kept.clear()
            kept.extend(renamed)
        self._names = names


class UseOutlook:
    """The expected use of rows on loan, for two periods. Lent capacity can be recalled within the first period, so held capacity must be
    returned only for the use expected in it. Work that begins now runs during the second period, so the use expected in it is not lent to
    new work.
    """

    def __init__(self, return_s: float) -> None:
        self._errors = (
            UseErrors(return_s, RETURN_SHARE, UNKNOWN_RETURN_ERROR),
            UseErrors(max(return_s, LEND_AHEAD_S), LEND_SHARE, UNKNOWN_LEND_ERROR),
        )
        self.ahead_s = (0.0, *(one.within_s for one in self._errors))
        """Periods, in seconds, for which predictions are needed."""

    def needs(
        self, names: tuple[str, ...], allocatable: Int64, used: Float64, predicted: Sequence[Float64] | None
    ) -> tuple[Float64, Float64]:
        """Adds the use of one step of STEP_S seconds.

        Returns float64[rows] twice: the use to expect before lent capacity can be returned, and before work that begins now ends.
        `predicted`: the highest predicted use within each of `ahead_s`; None without a forecast.
        """
        whole = np.maximum(allocatable, 1)
        found = []
        for number, errors in enumerate(self._errors, 1):
            expected = used if predicted is None else expected_use(used, predicted[0], predicted[number])
            errors.add(names, used / whole, expected / whole)
            found.append(expected + errors.margin() * allocatable)
        return found[0], np.maximum(found[0], found[1])


def expected_use(used: Float64, now: Float64, later: Float64) -> Float64:
    """Returns float64[rows]: the highest expected use, computed from the present use and the growth of the predicted use from `now` to
    `later`.

    The predicted use is a sum of high quantiles of pods, so it is above the usual use, and so is its growth. It is scaled down to the
    present use, never up.
    """
    scale = np.where(now > 0, np.minimum(1.0, used / np.maximum(now, 1.0)), 1.0)
    found: Float64 = used + np.maximum(0.0, later - now) * scale
    return found


def idle_offer(limit: Float64, needs: tuple[Float64, Float64], held: Int64) -> Int64:
    """Returns int64[rows]: the idle capacity that may be held there.

    `limit`: of the use of all pods; `needs`: see `UseOutlook.needs`; `held`: the idle capacity held now. Held capacity is recalled only if
    the lender needs it within the first period; further capacity is offered only if the lender does not need it within the second.
    """
    keep, fresh = (np.floor(np.maximum(0.0, limit - one)).astype(np.int64) for one in needs)
    found: Int64 = np.maximum(fresh, np.minimum(held, keep))
    return found
