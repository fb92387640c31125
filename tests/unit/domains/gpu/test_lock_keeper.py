"""When the keeper of locks of nodes needs the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from domains.gpu.dialects import hami
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.lock_keeper import LockKeeper
from multisched.framework.ports import LockAnswer, LockHolder, LockReply
from multisched.testing.builders import make_node
from multisched.testing.sim_loop import SimClock, SimLoop, simulate


class Locks:
    """Implements `NodeLocks` for locks that are always free to be changed."""

    may_write = True

    def __init__(self) -> None:
        self.changed: list[str] = []

    async def change(self, node: str, key: str, wanted: Callable[[str, datetime], str | None]) -> LockReply:
        self.changed.append(node)
        return LockReply(LockAnswer.DONE)

    async def holder(self, namespace: str, name: str) -> LockHolder | None:
        return None


def test_writer_of_locks_is_made_at_the_first_lock() -> None:
    loop, ledger, made = SimLoop(1), GpuLedger(), list[Locks]()

    def writer() -> Locks:
        made.append(Locks())
        return made[-1]

    async def story() -> None:
        keeper = LockKeeper(ledger, writer, None, None)
        ledger.locks.watch("gpu", keeper.wake)
        ledger.set_node(0, make_node("n", annotations={hami.REGISTER: "GPU-0,10,24000,100,A10,0,true:"}))
        running = asyncio.create_task(keeper.run(SimClock(loop)))
        await asyncio.sleep(600.0)
        keeper.wake()
        await asyncio.sleep(1.0)
        assert made == [], "no node has a lock"

        register = {hami.REGISTER: "GPU-0,10,24000,100,A10,0,true:"}
        ledger.set_node(0, make_node("n", annotations={**register, hami.LOCK: "no time"}))
        await asyncio.sleep(1.0)
        running.cancel()
        assert [node for one in made for node in one.changed][:1] == ["n"], "the malformed lock is removed"

    simulate(story(), loop)
