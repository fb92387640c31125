"""When the keeper of locks of nodes needs the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from domains.gpu.dialects import hami
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.lock_keeper import LockKeeper
from multisched.framework.ports import LockAnswer, LockHolder, LockReply
from multisched.testing.builders import make_node
from multisched.testing.sim_loop import SimClock, SimLoop, simulate

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
REGISTER = {hami.REGISTER: "GPU-0,10,24000,100,A10,0,true:"}


class Locks:
    """Implements `NodeLocks`. `text`: the lock that each node has in the API server."""

    may_write = True

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[str] = []

    async def change(self, node: str, key: str, wanted: Callable[[str, datetime], str | None]) -> LockReply:
        self.asked.append(node)
        text = wanted(self.text, NOW)
        if text is None:
            return LockReply(LockAnswer.KEPT)
        self.text = text
        return LockReply(LockAnswer.DONE)

    async def holder(self, namespace: str, name: str) -> LockHolder | None:
        return None


def test_writer_of_locks_is_made_at_the_first_lock() -> None:
    loop, ledger, made = SimLoop(1), GpuLedger(), list[Locks]()

    def writer() -> Locks:
        made.append(Locks("no time"))
        return made[-1]

    async def story() -> None:
        keeper = LockKeeper(ledger, writer, None, None)
        ledger.locks.watch("gpu", keeper.wake)
        ledger.set_node(0, make_node("n", annotations=REGISTER))
        running = asyncio.create_task(keeper.run(SimClock(loop)))
        await asyncio.sleep(600.0)
        keeper.wake()
        await asyncio.sleep(1.0)
        assert made == [], "no node has a lock"

        ledger.set_node(0, make_node("n", annotations={**REGISTER, hami.LOCK: "no time"}))
        await asyncio.sleep(1.0)
        running.cancel()
        assert "" in {one.text for one in made}, "the malformed lock is removed"

    simulate(story(), loop)


def test_lock_that_replaced_a_stale_one_unseen_is_kept() -> None:
    """The watch still shows the stale lock. Another scheduler has removed it, and has locked the node for its own pod."""
    loop, ledger, locks = SimLoop(1), GpuLedger(), Locks("2026-11-28T12:00:00Z,default,foreign")

    async def story() -> None:
        ledger.set_node(0, make_node("n", annotations={**REGISTER, hami.LOCK: "no time"}))
        running = asyncio.create_task(LockKeeper(ledger, lambda: locks, None, None).run(SimClock(loop)))
        await asyncio.sleep(5.0)
        running.cancel()
        assert locks.asked
        assert locks.text == "2026-11-28T12:00:00Z,default,foreign"

    simulate(story(), loop)
