"""Units of time and amounts used in the whole domain."""

from __future__ import annotations

from typing import Final

MILLI: Final = 1000
"""Capacities and requests are integers in thousandths of the plain unit, so their sums are exact."""

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
