"""The demand that a tide has seen: sampled by every process, stored by the leader, read by a process that starts."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import msgspec
import pytest

from domains.gpu.tide.demand import HISTORY_STEP_S
from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.snapshot import Snapshot
from domains.gpu.tide.state import ForecastOrigin, WaitingInference
from domains.gpu.tide.tide_demand import HISTORY_STEPS_MAX, STORE_S, DemandHistory, TideDemand
from multisched.framework.background import BackgroundPorts
from multisched.framework.moving import DocumentAnswer, DocumentReply
from multisched.testing.sim_loop import EPOCH, SimClock, SimLoop, simulate

DAY_STEPS = int(86_400 / HISTORY_STEP_S)
EMPTY = Snapshot((), {}, {}, (), 0, 0, (), (), 1, False)


def snapshot(running: int, waiting: int = 0) -> Snapshot:
    waits = (WaitingInference("w", waiting),) if waiting else ()
    return msgspec.structs.replace(EMPTY, inference_cards=running, waiting_inference=waits)


class Store:
    """The document of `Mover`; another process may write it in between."""

    def __init__(self, document: bytes | None = None) -> None:
        self.document = document
        self.is_read = False
        self.written: list[DemandHistory] = []

    def may_act(self) -> bool:
        return True

    async def read(self) -> bytes | None:
        self.is_read = True
        return self.document

    async def write(self, document: bytes) -> DocumentReply:
        if not self.is_read:
            return DocumentReply(DocumentAnswer.CONFLICT)
        self.written.append(msgspec.json.decode(document, type=DemandHistory))
        return DocumentReply(DocumentAnswer.WRITTEN)


async def at_once(work: Any) -> Any:
    return work()


def play(demand: TideDemand, store: Store, for_s: float, *, cards: int = 0, is_overtaken: bool = False) -> TideDemand:
    """Runs the task for so long, with a sample of `cards` each minute."""
    loop = SimLoop(1)

    async def story() -> None:
        clock = SimClock(loop)
        demand.state(snapshot(cards), clock.now().timestamp())
        ports = BackgroundPorts(clock, random.Random(1), at_once, mover=cast("Any", store))
        running = asyncio.create_task(demand.run(ports))
        end_s = loop.time() + for_s
        while loop.time() < end_s:
            await asyncio.sleep(60.0)
            store.is_read = store.is_read and not is_overtaken
            demand.state(snapshot(cards), clock.now().timestamp())
        running.cancel()

    simulate(story(), loop)
    return demand


def test_samples_keep_their_times_over_gaps_and_are_bounded() -> None:
    history = DemandHistory()
    for step, cards in ((100, 5), (101, 6), (104, 7), (103, 9)):
        history.add(step, cards)
    assert history.samples() == [(100 * HISTORY_STEP_S, 5.0), (101 * HISTORY_STEP_S, 6.0), (104 * HISTORY_STEP_S, 7.0)]
    history.add(104 + HISTORY_STEPS_MAX - 1, 8)
    assert (history.first_step, len(history.cards)) == (104, HISTORY_STEPS_MAX)
    history.add(104 + 3 * HISTORY_STEPS_MAX, 3)
    assert history.samples() == [((104 + 3 * HISTORY_STEPS_MAX) * HISTORY_STEP_S, 3.0)]


def test_demand_is_what_runs_and_waits_and_the_recent_demand_is_that_before() -> None:
    demand = TideDemand(TideSettings())
    assert demand.state(snapshot(3, 2), 1000.0).recent == ()
    found = demand.state(snapshot(4), 1020.0)
    assert [sample.cards for sample in found.recent] == [5]
    assert (found.running_cards, found.forecast.expected(1020.0), found.forecast.origin) == (4, 4, ForecastOrigin.NONE)


def test_leader_stores_means_of_steps() -> None:
    store = Store()
    play(TideDemand(TideSettings()), store, 2 * STORE_S, cards=7)
    assert set(store.written[-1].cards) == {7}


def test_stored_history_is_learned_from_after_a_restart() -> None:
    now_step = int(EPOCH.timestamp() // HISTORY_STEP_S)
    days = [40 if at % DAY_STEPS > DAY_STEPS // 2 else 10 for at in range(4 * DAY_STEPS)]
    stored = DemandHistory(now_step - len(days), days)
    demand = play(TideDemand(TideSettings()), Store(msgspec.json.encode(stored)), 300.0, cards=10)
    found = demand.state(snapshot(10), EPOCH.timestamp() + 400.0)
    assert found.forecast.origin is ForecastOrigin.HISTORY


@pytest.mark.parametrize(
    "document",
    [
        b"?",
        b"[]",
        b'{"cards": [-2]}',
        b'{"first_step": 99999999999, "cards": [1]}',
        b'{"cards": [' + b"1," * 20_000 + b"1]}",
    ],
)
def test_malformed_document_is_no_history(document: bytes) -> None:
    store = Store(document)
    play(TideDemand(TideSettings()), store, 2 * STORE_S, cards=7)
    assert set(store.written[-1].cards) == {7}


def test_document_that_the_former_leader_wrote_last_is_replaced() -> None:
    store = Store()
    play(TideDemand(TideSettings()), store, 2 * STORE_S, cards=7, is_overtaken=True)
    assert store.written
