"""The PodDisruptionBudgets of a simulated cluster: they select apps, and their statuses are updated as by a controller."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from multisched.cluster.api.server import ApiServer
from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode_objects import decode_disruption_budget
from multisched.model.objects import Pod
from multisched.model.wire import JSON, MERGE_PATCH, Response

MAY_BE_AWAY = {"app-0": 0, "app-1": 1, "app-2": 3}
"""App -> maxUnavailable; the other apps have no budget."""
PROTECTED, FREE = ("app-0", "app-1"), ("app-3", "app-4")

KEPT_EVERY_S = 0.5
BUDGETS_PATH = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

Send = Callable[[str, str, Mapping[str, Any], str], Awaitable[Response]]
"""(method, path, document, content type): sends a request, repeated while the server is away."""


class Budgets:
    """The budgets of one run."""

    def __init__(self, server: ApiServer, send: Send, pods: Callable[[], Collection[Pod]]) -> None:
        self._store = server.store
        self._send = send
        self._pods = pods
        self._written: dict[str, tuple[int, int]] = {}

    async def build(self) -> None:
        for app, most in MAY_BE_AWAY.items():
            spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": most}
            answer = await self._send("POST", BUDGETS_PATH, {"metadata": {"name": app}, "spec": spec}, JSON)
            if answer.status not in (201, 409):
                raise AssertionError(answer.body)

    async def run_controller(self) -> None:
        """Updates the statuses until cancelled. Pods that are being deleted count as unhealthy until they are removed."""
        while True:
            placed = [pod for pod in self._pods() if pod.node and not pod.is_terminal]
            expected = Counter(pod.labels.get("app", "") for pod in placed)
            going = Counter(pod.labels.get("app", "") for pod in placed if pod.is_deleting)
            for app in MAY_BE_AWAY:
                await self._write(app, expected[app], going[app])
            await asyncio.sleep(KEPT_EVERY_S)

    async def _write(self, app: str, expected: int, going: int) -> None:
        if self._written.get(app) == (expected, going):
            return
        most = MAY_BE_AWAY[app]
        status = {
            "expectedPods": expected,
            "currentHealthy": expected - going,
            "desiredHealthy": max(0, expected - most),
            "disruptionsAllowed": min(max(0, most - going), expected),
        }
        answer = await self._send("PATCH", f"{BUDGETS_PATH}/{app}/status", {"status": status}, MERGE_PATCH)
        if answer.status == 200:
            self._written[app] = expected, going

    def differences(self, known: Collection[ClusterObject]) -> list[str]:
        """Returns differences between the budgets that a process knows and the server's store (I4)."""
        stored = [
            decode_disruption_budget(one.raw)
            for _, one in self._store.collection("poddisruptionbudgets.policy").items()
        ]
        # A restored backup may bring another one back (`Disks.create_oversized`).
        there = {b.name: b.version for b in stored if b.name in MAY_BE_AWAY}
        here = {b.name: b.version for b in known if b.name in MAY_BE_AWAY}
        return [] if there == here else [f"I4: budgets are known at {here}, the API has them at {there}"]
