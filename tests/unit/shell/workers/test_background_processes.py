"""Processes of background tasks: what is computed there costs the loop nothing, and whatever they do they end with it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, Final

import anyio
import numpy as np
import pytest

from multisched.framework.background import BackgroundProcessError, ProcessPorts
from multisched.framework.measures import MeterSettings
from multisched.shell.workers.background_process import MEMORY_BYTES_MAX, NICENESS
from multisched.shell.workers.background_processes import ChildProcess

FACTORY: Final = "tests.unit.shell.workers.test_background_processes:Clerk"


class Clerk:
    """Counts what it is asked, and does as it is told."""

    def __init__(self, settings: Any, ports: ProcessPorts) -> None:
        self._settings = settings
        self._ports = ports
        self._asked = 0

    async def answer(self, question: Any) -> object:
        self._asked += 1
        match question if isinstance(question, str) else "":
            case "who":
                return os.getpid(), self._asked, self._settings
            case "print":
                print("among the replies")
                return "printed"
            case "place":
                return os.nice(0), await anyio.Path("/proc/self/oom_score_adj").read_text()
            case "raise":
                raise ZeroDivisionError("no weights")
            case "die":
                os._exit(3)
            case "hang":
                await self._ports.in_thread(lambda: signal.pause())
            case "hoard":
                return len(np.ones(MEMORY_BYTES_MAX, np.uint8))
            case "meter":
                return type(self._ports.meters.meter(MeterSettings("http://127.0.0.1:1"))).__name__
        return question


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_background_process_answers_in_sequence_and_keeps_state() -> None:
    child = ChildProcess(FACTORY, {"a": 1}, 0)
    assert child.pid is None, "nothing is started before something is asked"
    try:
        found = await asyncio.gather(*(child.ask("who") for _ in range(3)))
        assert found == [(child.pid, 1, {"a": 1}), (child.pid, 2, {"a": 1}), (child.pid, 3, {"a": 1})]
        assert await child.ask("print") == "printed"
        assert await child.ask("meter") == "PrometheusMeter"
        much = np.arange(5_000_000.0)
        np.testing.assert_array_equal(await child.ask(much), much)
        assert child.started == 1
    finally:
        await child.close()


async def test_background_process_has_low_priority() -> None:
    child = ChildProcess(FACTORY, None, 0)
    try:
        nice, oom_score = await child.ask("place")
        assert nice == min(19, os.nice(0) + NICENESS)
        assert oom_score.strip() == "1000"
    finally:
        await child.close()


@pytest.mark.parametrize(
    ("question", "words"),
    [("raise", "ZeroDivisionError: no weights"), ("die", "its process died: exit code 3"), ("hoard", "MemoryError")],
)
async def test_background_process_failure_is_reported_and_the_next_request_starts_another(
    question: str, words: str
) -> None:
    child = ChildProcess(FACTORY, None, 0)
    try:
        before, *_ = await child.ask("who")
        with pytest.raises(BackgroundProcessError, match=words):
            await child.ask(question)
        after, asked, _ = await child.ask("who")
        assert (after != before, asked, child.started) == (True, 1, 2)
        assert not is_alive(before)
    finally:
        await child.close()


async def test_hung_background_process_is_killed_with_its_request() -> None:
    child = ChildProcess(FACTORY, None, 0)
    pid, *_ = await child.ask("who")
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.2):
            await child.ask("hang")
    assert not is_alive(pid)
    assert child.pid is None


async def test_background_process_that_cannot_start_reports_why() -> None:
    child = ChildProcess("tests.unit.shell.workers.test_background_processes:Nobody", None, 0)
    with pytest.raises(BackgroundProcessError, match="Nobody"):
        await child.ask("who")
    assert child.pid is None


async def test_background_process_ends_with_its_parent() -> None:
    child = ChildProcess(FACTORY, None, 0)
    await child.ask("who")
    process = child._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.to_thread(process.wait, 60) == 0
    await child.close()
