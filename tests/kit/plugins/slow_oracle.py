"""A plugin that needs a remote response: it makes parallel cycles conflict."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Rows, Scores
from multisched.framework.points import CycleView
from multisched.model.objects import Pod

ANSWER_S = 0.005


class SlowOracle:
    """Requests a response about the feasible rows, waits 5 ms, and prefers the lowest row, so that all pods prefer the same
    node.
    """

    name = "SlowOracle"
    depends_on = Dependency.ATTEMPT
    response_timeout_s = 1.0

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return int(rows[0])

    async def response(self, request: object) -> object:
        await asyncio.sleep(ANSWER_S)
        return request

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        favourite = cycle.responses[self.name]
        return np.where(rows == favourite, 100, 0).astype(np.int64)

    def sign(self, pod: Pod) -> Hashable:
        return ""
