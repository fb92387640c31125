"""TideDemand: the demand of inference as the planner sees it: now, recently, and expected. Owned by the background task.

Every process samples the demand, so that a standby knows it, too. The leader stores the samples in the API server
(`Mover.write`), and a process that starts reads them: a forecast needs days. A lost or malformed document means no history.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from domains.gpu.tide.demand import HISTORY_STEP_S, LearnedDemand, RecentDemand, expected_demand, learn_demand
from domains.gpu.tide.planner import TREND_S
from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.snapshot import Snapshot
from domains.gpu.tide.state import InferenceState
from multisched.framework.background import BackgroundPorts
from multisched.framework.moving import DocumentAnswer, Mover, replace_document
from multisched.framework.ports import UnreachableError

logger = logging.getLogger(__name__)

MARGIN_S: Final = 60.0
HISTORY_STEPS_MAX: Final = 8 * 7 * 288
"""Eight weeks of samples."""
RELEARN_S: Final = 3600.0
STORE_S: Final = 600.0
FIRST_LEARN_S: Final = 30.0
"""After the start: the first lists are busy enough."""
CARDS_MAX: Final = 10_000_000
INFERENCE: Final = "inference"
"""The one series of the forecast: the sum of all inference pods."""


class DemandHistory(msgspec.Struct):
    """Samples of the demand; the stored document."""

    first_step: int = 0
    """Number of the first step of HISTORY_STEP_S since 1970."""
    cards: list[int] = msgspec.field(default_factory=list)
    """Mean demand of each step; -1 where no process was running."""

    def add(self, step: int, cards: int) -> None:
        """Adds the mean of a step after the last one."""
        if not self.cards or step >= self.first_step + len(self.cards) + HISTORY_STEPS_MAX:
            self.first_step, self.cards = step, []
        gap = step - self.first_step - len(self.cards)
        if gap < 0:
            return
        self.cards += [*[-1] * gap, cards]
        surplus = len(self.cards) - HISTORY_STEPS_MAX
        if surplus > 0:
            del self.cards[:surplus]
            self.first_step += surplus

    def samples(self) -> list[tuple[float, float]]:
        """Returns (epoch seconds, cards)."""
        begin = self.first_step * HISTORY_STEP_S
        return [(begin + HISTORY_STEP_S * at, float(cards)) for at, cards in enumerate(self.cards) if cards >= 0]


class TideDemand:
    """The demand of one domain."""

    def __init__(self, settings: TideSettings) -> None:
        self._settings = settings
        self._recent = RecentDemand(max(settings.quiet_s, settings.horizon_s, TREND_S) + MARGIN_S)
        self._history = DemandHistory()
        self._step: tuple[int, int, int] = (0, 0, 0)
        """Number of the current step, and sum and number of its samples."""
        self._learned: LearnedDemand | None = None

    def state(self, snapshot: Snapshot, now_s: float) -> InferenceState:
        """Adds the demand of the snapshot, and returns what the planner sees."""
        demand = snapshot.inference_cards + sum(pod.cards for pod in snapshot.waiting_inference)
        recent = self._recent.samples
        self._recent.add(now_s, demand)
        self._sample(now_s, demand)
        return InferenceState(
            running_cards=snapshot.inference_cards,
            waiting=snapshot.waiting_inference,
            forecast=expected_demand(self._learned, self._settings, now_s, demand),
            recent=recent,
            models=snapshot.models,
            new_models=snapshot.new_models,
            pod_cards=snapshot.pod_cards,
        )

    def _sample(self, now_s: float, demand: int) -> None:
        step = int(now_s // HISTORY_STEP_S)
        number, total, count = self._step
        if step != number:
            if count:
                self._history.add(number, round(total / count))
            total = count = 0
        self._step = step, total + demand, count + 1

    # -- learning and storing ----------------------------------------------------------------------------------------------

    async def run(self, ports: BackgroundPorts) -> None:
        """Reads the stored history once, then learns from it and stores it from time to time, until cancelled."""
        if ports.mover is not None:
            await self._restore(ports.mover)
        await asyncio.sleep(FIRST_LEARN_S)
        learned_s = -RELEARN_S
        while True:
            if ports.clock.monotonic() - learned_s >= RELEARN_S:
                learned_s = ports.clock.monotonic()
                await self._learn(ports)
            await asyncio.sleep(STORE_S)
            if ports.mover is not None and ports.mover.may_act():
                await self._store(ports.mover)

    async def _learn(self, ports: BackgroundPorts) -> None:
        samples, settings, now_s = self._history.samples(), self._settings, ports.clock.now().timestamp()
        horizon_s, zone = settings.horizon_s, settings.zone
        try:
            learned = await ports.in_thread(
                lambda: learn_demand({INFERENCE: samples}, now_s=now_s, horizon_s=horizon_s, zone=zone)
            )
        except Exception:
            logger.exception("tide: the forecast could not be learned; the last one stays in use")
            return
        self._learned = learned

    async def _restore(self, mover: Mover) -> None:
        try:
            document = await mover.read()
            found = msgspec.json.decode(document, type=DemandHistory) if document else DemandHistory()
        except (UnreachableError, msgspec.DecodeError) as error:
            logger.warning("tide: the stored demand cannot be read", extra={"error": str(error)[:300]})
            return
        now = int(self._step[0])
        is_valid = all(-1 <= cards <= CARDS_MAX for cards in found.cards) and len(found.cards) <= HISTORY_STEPS_MAX
        if not is_valid or not 0 <= found.first_step <= found.first_step + len(found.cards) <= now + 1:
            logger.warning("tide: the stored demand is malformed, and is not used")
            return
        for step, cards in enumerate(self._history.cards, self._history.first_step):
            found.add(step, cards)
        self._history = found

    async def _store(self, mover: Mover) -> None:
        document = msgspec.json.encode(self._history)
        reply = await replace_document(mover, document)
        if reply.answer is not DocumentAnswer.WRITTEN:
            logger.info("tide: the demand was not stored", extra={"error": reply.message[:300]})
