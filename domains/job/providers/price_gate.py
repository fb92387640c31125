"""PriceGate: decides which waiting pods may use units with `waitFirst`: pods for which waiting for other nodes takes too long.

A pod with a deadline may use them if it would miss the deadline after the wait that DeadlineSort predicts for other nodes; a pod
without one, `maxWait` after its creation. Decided every PERIOD_S. The permission ends only when the pod would be CLOSES_S early, so
that a pod seldom changes its class.
"""

from __future__ import annotations

import asyncio
from typing import Final

from domains.job.domain_waits import DomainWaits, Outlook, never
from domains.job.providers.sandbox_ledger import SandboxLedger, Unit, size_of
from domains.job.providers.sizes import Size
from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.model.go_duration import go_duration
from multisched.model.objects import Pod

PERIOD_S: Final = 3.0
"""Period of decisions, the same as that of predictions."""
CLOSES_S: Final = 30.0
BATCH: Final = 500
"""Pods checked before the task yields to others."""


class PriceGate:
    """One per plugin."""

    def __init__(self, context: PluginContext, ledger: SandboxLedger) -> None:
        self._context = context
        self._ledger = ledger
        self._waits = context.shared.of(DomainWaits)
        self._decided = set[str]()
        """uids of the last decision; the plugin of another domain may share the units."""

    async def run(self, ports: BackgroundPorts) -> None:
        """Decides until cancelled; returns at once if no unit has `waitFirst`."""
        if not self._ledger.priced:
            return
        waits = self._waits
        try:
            while True:
                waits.unpriced, waits.accepts_late = (
                    self._ledger.unpriced,
                    self._accepts,
                )  # another instance may have ended
                await self.decide(ports.clock.now().timestamp())
                await asyncio.sleep(PERIOD_S)
        finally:
            waits.unpriced, waits.accepts_late = None, never

    async def decide(self, now_s: float) -> None:
        """Checks all waiting pods once. `now_s`: seconds since the epoch."""
        seen = set[str]()
        for number, pod in enumerate(self._context.queue.pods()):
            seen.add(pod.uid)
            if self._context.hold.placed(pod.uid) is None:
                outlook = self._waits.outlook(pod, now_s)
                for unit in self._ledger.priced:
                    _decide(unit, pod, outlook, now_s)
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
        absent, self._decided = self._decided - seen, seen
        for unit in self._ledger.priced:
            for uid in absent:
                unit.payers.pop(uid, None)
            unit.kept -= absent
            unit.is_wanted |= bool(unit.payers)

    def note(self, pod: Pod, now_s: float) -> str:
        """Returns why the pod waits for other nodes, or no longer does, with the price of each unit; empty without such units."""
        outlook = self._waits.outlook(pod, now_s)
        return "; ".join(_note(unit, pod, outlook, now_s) for unit in self._ledger.priced)

    def _accepts(self) -> bool:
        ledger = self._ledger
        return any(
            unit.breaker.ready_in_s(ledger.now_s) <= 0
            and unit.has_quota(Size(1, 1))
            and next(ledger.rows_of([unit]), None) is not None
            for unit in ledger.priced
        )


def may_pay(unit: Unit, pod: Pod, outlook: Outlook, now_s: float) -> bool:
    """Reports whether the pod may use the unit instead of waiting for other nodes."""
    assert unit.settings.max_wait_s is not None, "a unit with waitFirst"
    is_open = pod.uid in unit.payers
    if outlook.deadline_s is None:
        return now_s - pod.created_s >= unit.settings.max_wait_s
    late_s = outlook.late_s(now_s)
    return is_open if late_s is None else late_s > (-CLOSES_S if is_open else 0.0)


def _decide(unit: Unit, pod: Pod, outlook: Outlook, now_s: float) -> None:
    is_open, opens = pod.uid in unit.payers, may_pay(unit, pod, outlook, now_s)
    if opens:
        unit.payers[pod.uid] = pod  # its last version
        unit.kept.discard(pod.uid)
    else:
        unit.payers.pop(pod.uid, None)
        unit.kept.add(pod.uid)
    unit.version += opens is not is_open


def _note(unit: Unit, pod: Pod, outlook: Outlook, now_s: float) -> str:
    """Names price, predicted wait and deadline."""
    per_hour = unit.per_hour(size_of(pod))
    price = f"serverless unit {unit.name} costs {per_hour:.4g} per hour for this pod"
    if outlook.median_s is not None:
        price += f", {per_hour * outlook.median_s / 3600.0:.4g} for its median run"
    verdict = "the pod may use it" if pod.uid in unit.payers else "the pod waits for other nodes"
    if outlook.deadline_s is None:
        left_s = (unit.settings.max_wait_s or 0.0) - (now_s - pod.created_s)
        why = f"it has no deadline, and maxWait is over in {go_duration(round(left_s))}"
        return f"{price}; {verdict}: {why if left_s > 0 else 'it has no deadline, and maxWait is over'}"
    wait = "unknown" if outlook.wait_s is None else go_duration(round(outlook.wait_s))
    left_s = outlook.deadline_s - now_s
    deadline = f"in {go_duration(round(left_s))}" if left_s > 0 else f"passed {go_duration(round(-left_s))} ago"
    needs = f"1.1 times the P90 of run time and start-up {go_duration(round(outlook.finish_s))}"
    return f"{price}; {verdict}: predicted wait elsewhere {wait}, {needs}, deadline {deadline}"
