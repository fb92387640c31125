"""How much a lender can spare: the arithmetic of reserves for its growth, and of idle capacity. Pure; amounts are int64 or float64[rows].

Unrequested capacity: what the lender's requests may grow by before capacity can be returned is kept free, once for all rows on loan.
Idle capacity: the threshold, less the expected use (the current use plus the growth of the forecast), less its usual error.
Sources: Koordinator's batch resources subtract the current use; "Take it to the limit" (EuroSys 2021) the predicted peak.
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
"""A day and an hour."""
RISE_SHARE: Final = 0.99
LEARNED_MIN_S: Final = 3_600.0
"""With less history, no rise is known."""
BINS: Final = 1_000
UNKNOWN_RETURN_ERROR: Final = 0.10
UNKNOWN_LEND_ERROR: Final = 0.20
"""Of allocatable: the errors that are expected before any were measured."""
RETURN_SHARE: Final = 0.99
"""Of errors that are covered until capacity can be back: an error that is not covered takes a node over the threshold."""
LEND_AHEAD_S: Final = 900.0
LEND_SHARE: Final = 0.90
"""Of errors that are covered for the time of new work: an error that is not covered costs an eviction, and only if no pod ends."""


class RequestHistory:
    """The lender's requests on the rows of a loan, as a sum, for a day."""

    def __init__(self) -> None:
        self._sums: deque[float] = deque(maxlen=HISTORY_STEPS)

    def add(self, amount: float) -> None:
        """Adds the sum of one step of STEP_S."""
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
    """Returns int64[rows]: the total in proportion to what is unused on each row, rounded up."""
    whole = np.maximum(0, unused)
    if total <= 0 or not whole.sum():
        return np.zeros(len(unused), np.int64)
    found: Int64 = np.ceil(whole * (total / whole.sum())).astype(np.int64)
    return found


class UseErrors:
    """How much higher rows were used within a given time than expected, relative to allocatable. Errors of about a day count."""

    def __init__(self, within_s: float, share: float, unknown: float) -> None:
        """`share`: of errors that the margin covers; `unknown`: the margin before errors are known."""
        self.within_s, self._share, self._unknown = within_s, share, unknown
        self._names: tuple[str, ...] = ()
        steps = max(1, int(np.ceil(within_s / STEP_S)))
        self._used: deque[Float64] = deque(maxlen=steps + 1)
        self._expected: deque[Float64] = deque(maxlen=steps + 1)
        """Of the last steps, float64[names]: use, and the highest use expected within the time; NaN where unknown."""
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
        """Returns the error to expect, relative to allocatable."""
        if self._learned_steps * STEP_S < LEARNED_MIN_S:
            return self._unknown
        sums = self._counts.cumsum()
        return int(np.searchsorted(sums, self._share * sums[-1])) / BINS

    def _rename(self, names: tuple[str, ...]) -> None:
        """Keeps what is known of rows that are still there."""
        before = {name: number for number, name in enumerate(self._names)}
        at = np.array([before.get(name, len(before)) for name in names], np.intp)
        for kept in (self._used, self._expected):
            renamed = [np.append(one, np.nan)[at] for one in kept]
            kept.clear()
            kept.extend(renamed)
        self._names = names


class UseOutlook:
    """What rows on loan will need. Two times matter. Within the first, capacity on loan can be recalled, so held capacity must be returned
    only for what is needed within it. Within the second, work that begins now is still running, so what is needed within it is not
    lent to new work.
    """

    def __init__(self, return_s: float) -> None:
        self._errors = (
            UseErrors(return_s, RETURN_SHARE, UNKNOWN_RETURN_ERROR),
            UseErrors(max(return_s, LEND_AHEAD_S), LEND_SHARE, UNKNOWN_LEND_ERROR),
        )
        self.ahead_s = (0.0, *(one.within_s for one in self._errors))
        """Times for which predictions are wanted."""

    def needs(
        self, names: tuple[str, ...], allocatable: Int64, used: Float64, predicted: Sequence[Float64] | None
    ) -> tuple[Float64, Float64]:
        """Adds the use of one step of STEP_S; returns float64[rows] twice: what is needed before capacity on loan can be back, and
        before new work will have ended.

        `predicted`: the highest predicted use within each of `ahead_s`; None if there is no forecast.
        """
        whole = np.maximum(allocatable, 1)
        found = []
        for number, errors in enumerate(self._errors, 1):
            expected = used if predicted is None else expected_use(used, predicted[0], predicted[number])
            errors.add(names, used / whole, expected / whole)
            found.append(expected + errors.margin() * allocatable)
        return found[0], np.maximum(found[0], found[1])


def expected_use(used: Float64, now: Float64, later: Float64) -> Float64:
    """Returns float64[rows]: the highest use to expect, by the present use and the growth of the predicted use from now to later.

    The predicted use is a sum of high quantiles of pods, so it is above the usual use, and so is its growth. It is scaled down to the
    present use, never up.
    """
    scale = np.where(now > 0, np.minimum(1.0, used / np.maximum(now, 1.0)), 1.0)
    found: Float64 = used + np.maximum(0.0, later - now) * scale
    return found


def idle_offer(limit: Float64, needs: tuple[Float64, Float64], held: Int64) -> Int64:
    """Returns int64[rows]: what pods that use idle capacity may use there.

    `limit`: for all pods together; `needs`: see `UseOutlook`; `held`: what they hold. What is held stays until the lender needs it
    within the time of the return; beyond that only what is free for longer is offered.
    """
    keep, fresh = (np.floor(np.maximum(0.0, limit - one)).astype(np.int64) for one in needs)
    found: Int64 = np.maximum(fresh, np.minimum(held, keep))
    return found
