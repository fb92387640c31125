"""Units of time and amounts that the whole domain counts in."""

from __future__ import annotations

from typing import Final

MILLI: Final = 1000
"""Amounts of nodes and requests are integers in thousandths of the plain unit, so that sums of them are exact."""

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
