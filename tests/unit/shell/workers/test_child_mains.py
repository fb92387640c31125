"""What runs in a child process, run here: frames and pickles in, answers out, and its end when whoever asked is gone.

The system calls by which a process becomes a child are the only stand-ins; the pipes are real.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import select
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from types import SimpleNamespace
from typing import Any, BinaryIO, Final

import numpy as np
import pytest
from msgspec.structs import replace

from multisched.framework.dependency import Isolation
from multisched.framework.isolation import IsolatedPlugin, IsolatedRequest, IsolatedResponse, Isolator
from multisched.framework.registry import PluginUse, Registry
from multisched.shell.workers import background_process, child_pipes, plugin_process
from multisched.shell.workers.background_process import Opening, Reply
from multisched.shell.workers.plugin_process import LENGTH_BYTES, frame
from multisched.shell.workers.plugin_workers import PluginWorkers
from multisched.testing.builders import make_cache, make_context, make_node, make_pod, make_view
from tests.unit.shell.workers.isolated_plugins import FULL

PATIENCE_S: Final = 30.0
"""For what must happen, on a machine however slow."""
ROOMY: Final = "tests.unit.shell.workers.isolated_plugins:Roomy"
CLERK: Final = "tests.unit.shell.workers.test_background_processes:Clerk"
LIMIT: Final = 123_456_789


class Child:
    """The pipes of a child, and the system calls by which `module` acts on its own process."""

    def __init__(self, module: Any, patch: pytest.MonkeyPatch) -> None:
        stdin, asking = os.pipe()
        answering, stdout = os.pipe()
        self.stdin, self.asking = os.fdopen(stdin, "rb"), os.fdopen(asking, "wb", buffering=0)
        self.responses, self.replies = os.fdopen(answering, "rb", buffering=0), os.fdopen(stdout, "wb")
        self.exits: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.calls: list[tuple[Any, ...]] = []
        self.system = SimpleNamespace(
            fdopen=lambda number, mode: {(stdout, "wb"): self.replies}[number, mode],
            dup=lambda number: {1: stdout}[number],
            dup2=self.noted("dup2"),
            nice=self.noted("nice"),
            sched_setscheduler=self.noted("sched_setscheduler"),
            sched_param=lambda priority: priority,
            SCHED_BATCH="batch",
            _exit=self.exits.put,
        )
        for one in (module, child_pipes):
            patch.setattr(one, "os", self.system, raising=False)
        patch.setattr(module, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=self.stdin)))

    def noted(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, *arguments))

    def read(self, count: int) -> bytes:
        """So many bytes of the answers."""
        found = b""
        while len(found) < count:
            assert select.select([self.responses], [], [], PATIENCE_S)[0], "no answer"
            piece = self.responses.read(count - len(found))
            assert piece, "the answers ended"
            found += piece
        return found

    def close(self) -> None:
        for end in (self.responses, self.replies, self.stdin):
            end.close()


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """A plugin's process, serving."""
    child = Child(plugin_process, monkeypatch)
    ended = threading.Event()

    def serve() -> None:
        try:
            plugin_process.main()
        except EOFError:  # of the empty frame below
            pass
        finally:
            child.replies.close()
            ended.set()

    threading.Thread(target=serve, daemon=True).start()
    yield child
    child.asking.write(bytes(LENGTH_BYTES))
    assert ended.wait(PATIENCE_S)
    child.asking.close()
    assert child.exits.get(timeout=PATIENCE_S) == 0, "it ends with whoever asked"
    child.close()


def told(child: Child) -> Any:
    return pickle.loads(child.read(int.from_bytes(child.read(LENGTH_BYTES), "big")))


def asked(child: Child, *message: Any) -> Any:
    child.asking.write(frame(message))
    return told(child)


def a_question(pod: str) -> IsolatedRequest:
    """About three nodes, of which the first is full."""
    cache = make_cache(make_node(f"n{number}", cpu_milli=1000 * max(1, number), pods=9) for number in range(3))
    for name in ("a", "b"):
        cache.assume(make_pod(name), 0)
    use = PluginUse(ROOMY, args={"limit": 2}, isolation=Isolation.PROCESS)
    registry = Registry()
    plugin = Isolator(PluginWorkers())(registry.build(use, make_context()), use, registry.factory(ROOMY))
    assert isinstance(plugin, IsolatedPlugin)
    request = plugin.request(make_view(cache), make_pod(pod), np.arange(3))
    assert isinstance(request, IsolatedRequest)
    return request


def test_isolated_plugin_process_builds_and_answers(isolated: Child) -> None:
    assert asked(isolated, "build", (ROOMY, {"limit": 2})) == ""
    request = a_question("p")
    first, *others = request.records
    isolated.asking.write(frame(("records", [first])))
    isolated.asking.write(frame(("records", others)))
    assert asked(isolated, "sync", None) == ""
    answer = asked(isolated, "ask", (replace(request, records=()), [0, 1, 2]))
    assert isinstance(answer, IsolatedResponse)
    assert (answer.failed_at, answer.failure) == ("", "")
    (refusal,) = answer.statuses.values()
    assert refusal[1] == (FULL,)
    assert (answer.codes > 0).tolist() == [True, False, False]
    assert answer.scores.tolist() == [0, 50, 100]
    assert isolated.calls == [("dup2", 2, 1)], "what it prints does not meet its answers"


def test_in_tree_plugin_is_built_by_name_without_args(isolated: Child) -> None:
    assert asked(isolated, "build", ("NodeName", {})) == ""
    failure = asked(isolated, "build", ("NodeNmae", {}))
    assert failure.startswith("PluginSetupError: ")
    assert "NodeNmae" in failure
    assert asked(isolated, "build", (ROOMY, {})).startswith("TypeError: ")


def test_isolated_plugin_exceptions_are_returned(isolated: Child) -> None:
    assert asked(isolated, "build", (ROOMY, {"limit": 2})) == ""
    request = a_question("exit")
    isolated.asking.write(frame(("records", request.records)))
    answer = asked(isolated, "ask", (replace(request, records=()), [0, 1, 2]))
    assert (answer.failed_at, answer.failure) == ("Filter", "SystemExit: 3")
    unknown = asked(isolated, "ask", (replace(request, records=()), [7]))
    assert (unknown.failed_at, unknown.failure) == ("Filter", "KeyError: 7")


class BackgroundChild(Child):
    """A background task's process: its limits are told, and none is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(background_process, patch)
        self.most = LIMIT
        self.written: dict[str, str] = {}
        limits = SimpleNamespace(
            RLIMIT_DATA="data",
            RLIM_INFINITY=-1,
            getrlimit=lambda what: {"data": (5, self.most)}[what],
            setrlimit=self.noted("setrlimit"),
        )
        patch.setattr(background_process, "resource", limits)
        patch.setattr(background_process, "Path", self.path)

    def path(self, name: str) -> Any:
        return SimpleNamespace(write_text=lambda text: self.written.__setitem__(name, text))


@pytest.fixture
def background_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[BackgroundChild]:
    child = BackgroundChild(monkeypatch)
    yield child
    child.asking.close()
    assert child.exits.get(timeout=PATIENCE_S) == 0, "it ends with whoever asked"
    child.close()


@pytest.mark.parametrize(
    ("most", "bound"),
    [(-1, background_process.MEMORY_BYTES_MAX), (LIMIT, LIMIT), (2**40, background_process.MEMORY_BYTES_MAX)],
)
def test_background_process_lowers_its_priority_and_memory_limit(
    background_task: BackgroundChild, most: int, bound: int
) -> None:
    background_task.most = most
    background_task.asking.write(pickle.dumps(Opening("nowhere.at_all:Clerk", None, 1)))
    background_process.main()
    assert pickle.load(background_task.responses) == Reply(failure="ModuleNotFoundError: No module named 'nowhere'")
    assert background_task.calls == [
        ("dup2", 2, 1),
        ("nice", background_process.NICENESS),
        ("setrlimit", "data", (bound, bound)),
        ("sched_setscheduler", 0, "batch", 0),
    ]
    assert background_task.written == {"/proc/self/oom_score_adj": "1000"}


def test_process_with_an_unbuildable_task_ends_although_stdin_is_open(
    background_task: BackgroundChild,
) -> None:
    """A process ends with its main thread unless other threads are to be waited for."""
    before = {one for one in threading.enumerate() if not one.daemon}
    background_task.asking.write(pickle.dumps(Opening("nowhere.at_all:Clerk", None, 1)))
    background_process.main()
    assert {one for one in threading.enumerate() if not one.daemon} <= before


def test_background_process_works_without_batch_scheduling(
    background_task: BackgroundChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(background_task.system, "sched_setscheduler", refuse)
    background_task.asking.write(pickle.dumps(Opening("nowhere.at_all:Clerk", None, 1)))
    background_process.main()
    assert pickle.load(background_task.responses).failure.startswith("ModuleNotFoundError")


async def test_assistant_answers_in_sequence(background_task: BackgroundChild) -> None:
    serving = asyncio.create_task(background_process._serve(background_task.stdin, background_task.replies))
    background_task.asking.write(pickle.dumps(Opening(CLERK, {"a": 1}, 7)))

    async def answer(request: Any) -> Reply:
        background_task.asking.write(pickle.dumps(request))
        async with asyncio.timeout(PATIENCE_S):
            reply = await asyncio.to_thread(pickle.load, background_task.responses)
        assert isinstance(reply, Reply)
        return reply

    assert await answer("who") == Reply((os.getpid(), 1, {"a": 1}))
    assert await answer("meter") == Reply("PrometheusMeter")
    assert await answer("who") == Reply((os.getpid(), 3, {"a": 1}))
    failed = await answer("raise")
    assert failed == Reply(failure="ZeroDivisionError: no weights")
    assert await asyncio.to_thread(background_task.exits.get, timeout=PATIENCE_S) == 1, "a thread of it may hang"
    serving.cancel()


def test_each_meter_has_its_own_random_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Meter:
        def __init__(self, settings: Any, rng: Any, *, rests: float) -> None:
            self.settings, self.chance, self.rests = settings, rng.random(), rests
            made.append(self)

    monkeypatch.setattr(background_process, "PrometheusMeter", Meter)
    for seed in (1, 1, 2):
        background_process._made(Opening("tests.unit.shell.workers.test_child_mains:Metered", ["x", "y"], seed))
    assert [(meter.settings, meter.rests) for meter in made] == [("x", 0.0), ("y", 0.0)] * 3
    chances = [meter.chance for meter in made]
    assert chances[:2] == chances[2:4], "the seed says all"
    assert len(set(chances)) == 4


class Metered:
    """Opens a meter for each of its settings."""

    def __init__(self, settings: list[Any], ports: Any) -> None:
        for one in settings:
            assert ports.meters.meter(one) is not None

    async def response(self, request: object) -> object:
        return request


def test_error_text_length_is_limited() -> None:
    words = background_process._words(ValueError("x" * 5_000))
    assert words.startswith("ValueError: x")
    assert len(words) == background_process.ERROR_CHARS_MAX


def test_a_reply_is_sent_at_once() -> None:
    class Flushed(BytesIO):
        sent = b""

        def flush(self) -> None:
            self.sent = self.getvalue()

    replies: BinaryIO = Flushed()
    child_pipes.send(replies, Reply("found"))
    assert isinstance(replies, Flushed)
    assert pickle.loads(replies.sent) == Reply("found")
