"""The dashboards for operators: one that says at night what is wrong, and four that say where.

`deploy/monitoring/dashboards` is made of these values by `python -m tests.monitoring.build`.
"""

from __future__ import annotations

from typing import Final

from tests.monitoring.boards import domain, forecast, gangs_and_quotas, overview, process

BOARDS: Final = (overview.BOARD, domain.BOARD, forecast.BOARD, gangs_and_quotas.BOARD, process.BOARD)
