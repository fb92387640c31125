"""How much a lender can spare: the arithmetic of reserves for its growth, and of idle capacity. Pure; amounts are int64 or float64[rows].

Unrequested capacity: the lender's growth within the time in which it cannot get capacity back is kept free, once for all rows on loan.
Idle capacity: what the threshold leaves of the highest of the predicted use, and of the current use with the rise that was usual.
Sources: Koordinator's batch resources subtract the current use; "Take it to the limit" (EuroSys 2021) the predicted peak.
"""

from __future__ import annotations

from collections import deque
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
UNKNOWN_RISE: Final = 0.10
"""Of allocatable: the rise of use that is expected before one was measured."""


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
        """Returns how much the sum is expected to rise within so many seconds: the larger one of the 99th percentile of all rises, and of
        the rise at this time yesterday, an hour around it included. 0 without enough history.
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


class UseHistory:
    """How much the use of rows rose within a given time, relative to allocatable: one high quantile over the rows per step, for a day."""

    def __init__(self, within_s: float) -> None:
        self._steps = max(1, int(np.ceil(within_s / STEP_S)))
        self._shares: deque[dict[str, float]] = deque(maxlen=self._steps + 1)
        """Row names -> use / allocatable, of the last steps."""
        self._rises: deque[float] = deque(maxlen=HISTORY_STEPS)

    def add(self, shares: dict[str, float]) -> None:
        """Adds the use of each node, relative to its allocatable, of one step."""
        self._shares.append(shares)
        if len(self._shares) <= self._steps:
            return
        before = self._shares[0]
        rises = [share - before[name] for name, share in shares.items() if name in before]
        if rises:
            self._rises.append(max(0.0, float(np.quantile(rises, RISE_SHARE))))

    def rise(self) -> float:
        """Returns the rise to expect, relative to allocatable."""
        if len(self._rises) * STEP_S < LEARNED_MIN_S:
            return UNKNOWN_RISE
        return float(np.quantile(np.array(self._rises), RISE_SHARE))


def idle_offer(
    allocatable: Int64, threshold_percent: int, used: Float64, rise: float, predicted: Float64 | None, headroom: int
) -> Int64:
    """Returns int64[rows]: what pods that use idle capacity may use there.

    `used`: by all other pods now; `rise`: relative to allocatable, to expect of that; `predicted`: their highest use before capacity
    could be back; None: not known.
    """
    limit = allocatable * (threshold_percent / 100.0)
    spare = limit - used - rise * allocatable
    if predicted is not None:
        spare = np.minimum(limit - predicted, limit - used)
    found: Int64 = np.floor(np.maximum(0.0, spare - headroom)).astype(np.int64)
    return found
