"""The background task of ServerlessUnits: advances the time of the units, requeues pods that wait for them, and evicts stuck pods.

A pod whose sandbox does not start is evicted after `sandboxTimeout` if it has a controller, which then creates another pod. A pod without
one is never deleted. Only the leader writes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from domains.job.providers.breaker import BreakerState
from domains.job.providers.messages import Failure
from domains.job.providers.sandbox_ledger import Sandbox, SandboxLedger, Unit, owner_of
from domains.job.providers.sizes import Size
from multisched.framework.background import BackgroundPorts
from multisched.framework.moving import EvictAnswer, Mover
from multisched.framework.ports import ObjectRef, pod_ref
from multisched.model.objects import Pod
from multisched.model.pod_outcome import PodOutcome

logger = logging.getLogger(__name__)

WANTED_S: Final = 0.05
"""Interval of turns while pods wait for a unit: one token at 20 per second."""
IDLE_S: Final = 0.25
WOKEN_MAX: Final = 256
"""Maximum number of pods requeued in one turn."""
UNWANTED_TURNS: Final = 20
"""If no pod has taken a token of a unit in this many turns after pods were requeued for it, no pod is assumed to wait for it."""
EVENTS_MAX: Final = 1_000
"""Maximum number of failures that wait for their event; further ones are only counted."""
STUCK_S: Final = 1.0
"""Interval of checks for stuck pods."""
ACTION: Final = "Scheduling"
LEAST: Final = Size(1, 1)


class SandboxControl:
    """One per plugin. Only the process that leads the domain evicts pods and writes events."""

    def __init__(self, ledger: SandboxLedger, on_ready: Callable[[Unit, int], None]) -> None:
        """`on_ready`: called with a unit, and the number of pods that it accepts after pods were refused."""
        self._ledger = ledger
        self._on_ready = on_ready
        self._failures: deque[tuple[ObjectRef, str]] = deque(maxlen=EVENTS_MAX)
        self._unused_turns: dict[str, tuple[int, int]] = {}
        """Unit -> tokens taken from it until a turn, and the turns since."""
        self._states: dict[str, BreakerState] = {}
        self._reported: set[str] = set()
        """uids of stuck pods without a controller that have their event."""

    async def run(self, ports: BackgroundPorts) -> None:
        """Runs turns until cancelled. A separate task waits for writes, so that the time of the units advances meanwhile."""
        ledger = self._ledger
        async with asyncio.TaskGroup() as tasks:
            if ports.mover is not None:
                tasks.create_task(self._write(ports.mover))
            while True:
                ledger.now_s = ports.clock.monotonic()
                ledger.expire()
                for unit in ledger.units:
                    self._wake(unit)
                await asyncio.sleep(WANTED_S if any(unit.is_wanted for unit in ledger.units) else IDLE_S)

    def failed(self, outcome: PodOutcome, failure: Failure) -> None:
        """Notes a failed sandbox for an event."""
        message = outcome.message or outcome.reason or outcome.pod.phase
        self._failures.append((pod_ref(outcome.pod), f"{failure.value}: {message}"))

    def _wake(self, unit: Unit) -> None:
        """Announces as many pods as the unit accepts now, if any were refused."""
        now_s = self._ledger.now_s
        state = unit.breaker.state
        if state is not self._states.get(unit.name, BreakerState.CLOSED):
            self._states[unit.name] = state
            unit.version += 1
            logger.warning("serverless unit", extra={"unit": unit.name, "breaker": state.value})
        if not unit.is_wanted or unit.breaker.ready_in_s(now_s) > 0:
            self._unused_turns.pop(unit.name, None)
            return
        count = unit.accepts(now_s)
        if not count or (unit.waits_first and not unit.has_quota(LEAST)):
            return
        taken, turns = self._unused_turns.get(unit.name, (-1, 0))
        turns = turns + 1 if taken == unit.taken else 0
        self._unused_turns[unit.name] = unit.taken, turns
        if turns > UNWANTED_TURNS:
            unit.is_wanted = False
            return
        unit.version += 1
        self._on_ready(unit, min(count, WOKEN_MAX))

    async def _write(self, mover: Mover) -> None:
        while True:
            if mover.may_act():
                self._report(mover)
                await self._evict_stuck(mover)
            await asyncio.sleep(STUCK_S)

    def _report(self, mover: Mover) -> None:
        while self._failures:
            ref, note = self._failures.popleft()
            mover.record_event("Warning", ref, "SandboxFailed", note, action=ACTION)

    # -- stuck pods ------------------------------------------------------------------------------------------------

    async def _evict_stuck(self, mover: Mover) -> None:
        now_s = self._ledger.now_s
        stuck = [
            (uid, unit)
            for uid, one in self._ledger.sandboxes.items()
            if (unit := _unit_of_waiting(one)) is not None and now_s - one.since_s >= unit.settings.sandbox_timeout_s
        ]
        self._reported &= {uid for uid, _ in stuck}
        for uid, unit in stuck:
            pod = mover.placed_pod(uid)
            if pod is None or pod.phase != "Pending" or pod.is_deleting or not mover.may_act():
                continue
            if pod.owner is None:
                self._leave(mover, pod, unit)
            else:
                await self._evict(mover, pod, unit)

    def _leave(self, mover: Mover, pod: Pod, unit: Unit) -> None:
        if pod.uid not in self._reported:
            self._reported.add(pod.uid)
            note = f"unit {unit.name} has started no sandbox, and no controller would create the pod again; delete it"
            mover.record_event("Warning", pod_ref(pod), "SandboxStuck", note, action=ACTION)

    async def _evict(self, mover: Mover, pod: Pod, unit: Unit) -> None:
        timeout_s = unit.settings.sandbox_timeout_s
        unit.spare(owner_of(pod), math.inf)  # before the reply: the pod's replacement may be here earlier
        reply = await mover.evict(pod_ref(pod), timeout_s=mover.write_timeout_s)
        if reply.answer is EvictAnswer.EVICTED:
            unit.evicted += 1
            note = f"evicted: unit {unit.name} has started no sandbox within {timeout_s:g} s"
            mover.record_event("Warning", pod_ref(pod), "SandboxTimeout", note, action=ACTION)
            return
        unit.spared.pop(owner_of(pod), None)
        if reply.answer is EvictAnswer.REFUSED and pod.uid not in self._reported:
            self._reported.add(pod.uid)
            note = f"unit {unit.name} has started no sandbox, and the eviction was refused: {reply.message}"
            mover.record_event("Warning", pod_ref(pod), "SandboxStuck", note, action=ACTION)


def _unit_of_waiting(one: Sandbox) -> Unit | None:
    """Returns the unit of a bound pod that has not started; None for any other."""
    return one.unit if one.is_bound and not one.is_started else None
