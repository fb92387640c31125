"""Units of time, in seconds."""

from __future__ import annotations

from typing import Final

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
