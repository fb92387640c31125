"""The unit of amounts used in the whole domain."""

from __future__ import annotations

from typing import Final

MILLI: Final = 1000
"""Capacities and requests are integers in thousandths of the plain unit, so their sums are exact."""
