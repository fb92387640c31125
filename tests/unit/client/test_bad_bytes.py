"""Bytes that no API server should send: watches, lists and answers get over them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client.binder import ApiBinder
from multisched.client.errors import parse_status
from multisched.client.limits import WriteLimiter
from multisched.client.object_feed import ReflectorHandler
from multisched.client.reflector import Reflector
from multisched.client.stored_document import ConfigMapDocument
from multisched.client.volume_writer import ApiVolumeWriter
from multisched.framework.ports import ObjectRef, UnreachableError
from multisched.model.wire import Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.client.scripted import LoopClock, ScriptedTransport, Step, a_line, a_list, an_object
from tests.unit.shell.shell_kit import WorkerHarness

BAD = "@@"
NESTED = b'{"type":"ADDED","object":' + b"[" * 100_000


def corrupted(document: bytes) -> bytes:
    """With a byte that is no UTF-8 in place of BAD."""
    return document.replace(BAD.encode(), b"\xff")


class Keys:
    """A handler that keeps nothing but keys."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        self.seen.append(key)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        self.seen.append(f"-{key}")

    def replaced(self, version: str) -> None:
        self.seen.append(f"={version}")


def play(
    handler: ReflectorHandler, lists: Sequence[Response], watches: Sequence[Sequence[Step]], loop: SimLoop
) -> Reflector:
    """A reflector on this script for ten minutes."""
    transport = ScriptedTransport(lists=deque(lists), watches=deque(watches))
    made: list[Reflector] = []

    async def main() -> None:
        made.append(Reflector(transport, "/api/v1/pods", handler=handler, clock=LoopClock(), rng=random.Random(7)))
        with suppress(TimeoutError):
            async with asyncio.timeout(600):
                await made[0].run()

    simulate(main(), loop)
    return made[0]


def test_invalid_text_in_a_name_stops_neither_list_nor_watch() -> None:
    listed = a_list(10, an_object(f"a{BAD}", 3), an_object("b", 4))
    events = [corrupted(a_line("ADDED", an_object(f"c{BAD}", 11))), a_line("ADDED", an_object("d", 12))]
    keys = Keys()
    reflector = play(keys, [Response(200, corrupted(listed.body))], [events], SimLoop(1))
    assert keys.seen == ["default/a\ufffd", "default/b", "=10", "default/c\ufffd", "default/d"]
    assert reflector.statistics().lists == 1


def test_deeply_nested_line_is_malformed() -> None:
    keys = Keys()
    play(keys, [a_list(10)], [[NESTED], [a_line("ADDED", an_object("d", 12))]], SimLoop(1))
    assert keys.seen == ["=10", "default/d"]


def _pod(name: str, version: int) -> dict[str, Any]:
    document = an_object(name, version)
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}, "ports": [{"hostPort": 80}]}]
    document["metadata"] |= {"annotations": {"note": "x"}, "labels": {"app": "y"}}
    return document | {"spec": {"nodeName": "a", "containers": containers}, "status": {"phase": "Running"}}


_BYTES = st.sampled_from([0xFF, 0xC3, 0x00, 0x22, 0x5C, 0x7B, 0x39, 0x80])
_edits = st.lists(st.tuples(st.integers(0, 10_000), _BYTES), min_size=1, max_size=3)


def edited(line: bytes, edits: list[tuple[int, int]]) -> bytes:
    found = bytearray(line)
    for at, byte in edits:
        found[at % len(found)] = byte
    return bytes(found)


@given(st.lists(_edits, min_size=1, max_size=4))
def test_watch_continues_after_arbitrary_bytes(edits: list[list[tuple[int, int]]]) -> None:
    """Into the real ingest and cache."""
    loop = SimLoop(1)
    harness = WorkerHarness(loop, "a")
    lines = [edited(a_line("ADDED", _pod(f"p{n}", 20 + n)), some) for n, some in enumerate(edits)]
    watches = [[line] for line in lines]
    last = a_line("ADDED", _pod("last", 10**9))
    play(harness.pods, [a_list(10) for _ in range(9)], [*watches, *[[last] for _ in range(9)]], loop)
    assert harness.node_of("last") == "a"
    harness.cache.validate()


@given(_edits)
def test_list_is_repeated_after_arbitrary_bytes(edits: list[tuple[int, int]]) -> None:
    loop = SimLoop(1)
    harness = WorkerHarness(loop, "a")
    bad = Response(200, edited(a_list(10, _pod("p", 3)).body, edits))
    last = a_line("ADDED", _pod("last", 10**30))
    play(harness.pods, [bad, *[a_list(10**9, _pod("p", 3)) for _ in range(9)]], [[last] for _ in range(9)], loop)
    assert harness.node_of("last") == "a"
    harness.cache.validate()


_TRUE_POD = orjson.dumps(_pod("p", 3))
_TRUE_MAP = orjson.dumps({"metadata": {"name": "m", "resourceVersion": "3"}, "data": {"document": "{}"}})
_TRUE_STATUS = orjson.dumps({"kind": "Status", "code": 409, "reason": "Conflict", "message": "no"})


@given(
    st.one_of(st.binary(max_size=40), st.builds(edited, st.sampled_from([_TRUE_POD, _TRUE_MAP, _TRUE_STATUS]), _edits))
)
@pytest.mark.parametrize("status", [200, 409, 500])
def test_reader_recovers_from_arbitrary_response_bytes(status: int, body: bytes) -> None:
    loop = SimLoop(1)
    transport = ScriptedTransport(respond=lambda asked: Response(status, body))

    async def main() -> None:
        clock = LoopClock()
        limiter = WriteLimiter(clock, writes_per_s=100.0)
        with suppress(UnreachableError):
            await ApiBinder(transport, limiter).read("d", "p", timeout_s=1.0)
        with suppress(UnreachableError):
            await ConfigMapDocument(transport, limiter, "d", "m").read()
        await ApiVolumeWriter(transport, limiter).select_node(ObjectRef("PersistentVolumeClaim", "d", "c", "u"), 1, "n")

    simulate(main(), loop)
    parse_status(body)
