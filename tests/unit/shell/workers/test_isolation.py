"""Isolated plugins: the same answers as inline, and whatever goes wrong in the worker costs one attempt."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from multisched.framework.caching import SignPlugin
from multisched.framework.dependency import Isolation
from multisched.framework.isolation import IsolatedError, IsolatedPlugin, Isolator
from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView, FilterPlugin, Plugin, PreFilterPlugin, ScorePlugin
from multisched.framework.registry import BuiltPlugin, PluginSet, PluginSetupError, PluginUse, Registry
from multisched.framework.remote import RemotePlugin
from multisched.framework.scalar import ScalarPlugin
from multisched.framework.status import Code
from multisched.framework.traits import Traits
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.shell.object_watch import watched_kinds
from multisched.shell.workers import plugin_processes
from multisched.shell.workers.plugin_processes import PROCESSES_MAX
from multisched.shell.workers.plugin_threads import ABANDONED_THREADS_MAX, THREADS_MAX
from multisched.shell.workers.plugin_workers import PluginWorkers
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_cache, make_context, make_node, make_pod, make_view
from tests.leaping_loop import leap
from tests.unit.cycle.cycle_kit import ByName
from tests.unit.shell.workers.isolated_plugins import FULL, Roomy

PATH = "tests.unit.shell.workers.isolated_plugins"
BOTH = pytest.mark.parametrize("isolation", [Isolation.THREAD, Isolation.PROCESS])
T = TypeVar("T")
Make = Callable[..., IsolatedPlugin]
TIMEOUT_S = 60.0
"""No machine takes that long to answer; the tests of what hangs leap over it."""


@pytest.fixture
async def workers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PluginWorkers]:
    monkeypatch.setattr(plugin_processes, "READY_MAX_S", TIMEOUT_S * 10)  # a busy machine takes long to start a process
    Roomy.released.clear()
    workers = PluginWorkers()
    yield workers
    Roomy.released.set()
    await workers.close()


@pytest.fixture
def make(workers: PluginWorkers) -> Make:
    def made(isolation: Isolation, name: str = "Roomy", timeout_s: float = TIMEOUT_S, **more: str) -> IsolatedPlugin:
        path = f"{PATH}:{name}"
        args = {"limit": 2, **more} if name == "Roomy" else {}
        use = PluginUse(path, args=args, isolation=isolation, timeout_s=timeout_s)
        registry = Registry()
        plugin = Isolator(workers)(registry.build(use, make_context()), use, registry.factory(path))
        assert isinstance(plugin, IsolatedPlugin)
        return plugin

    return made


async def leaping_until_done(waited: asyncio.Future[T]) -> T:
    """Leaps again and again: when a deadline begins, the worker alone knows."""
    while not waited.done():
        leap(TIMEOUT_S)
        await asyncio.sleep(0.01)
    return await waited


def three_nodes() -> ClusterCache:
    """n0 is full by the plugin's count, n2 has twice the CPU of n1."""
    cache = make_cache(make_node(f"n{number}", cpu_milli=1000 * max(1, number), pods=9) for number in range(3))
    for name in ("a", "b"):
        cache.assume(make_pod(name), 0)
    return cache


async def asked(plugin: IsolatedPlugin, cache: ClusterCache, pod: Pod) -> tuple[list[int], list[int], CycleView]:
    """Codes and scores of all rows, as the cycle reads them, with the view that holds the answer."""
    view, rows = make_view(cache), all_rows(cache)
    view.responses = {plugin.name: await plugin.response(plugin.request(view, pod, rows))}
    codes, scores = plugin.filter(view, pod, rows), plugin.score(view, pod, rows)
    assert codes.dtype == np.uint8
    assert scores.dtype == np.int64
    return codes.tolist(), scores.tolist(), view


@BOTH
async def test_isolated_results_equal_the_plugin_results(make: Make, isolation: Isolation) -> None:
    plugin = make(isolation)
    codes, scores, _ = await asked(plugin, three_nodes(), make_pod("p"))

    assert [plugin.reasons.status(code).message for code in codes] == [FULL, "", ""]
    assert plugin.reasons.status(codes[0]).code is Code.UNSCHEDULABLE
    assert scores == [0, 50, 100]


@BOTH
async def test_isolated_plugin_sees_changes_between_requests(make: Make, isolation: Isolation) -> None:
    plugin, cache = make(isolation), three_nodes()
    await asked(plugin, cache, make_pod("p"))
    cache.remove("uid-a")
    cache.assume(make_pod("c"), 2)
    cache.assume(make_pod("d"), 2)

    codes, scores, _ = await asked(plugin, cache, make_pod("p"))

    assert [bool(code) for code in codes] == [False, False, True]
    assert scores == [100, 100, 0]


@BOTH
@pytest.mark.parametrize(
    ("pod", "words", "scores"),
    [
        ("skip", ["", "", ""], [50, 50, 100]),
        ("refuse", ["not today"] * 3, [0, 0, 0]),
        ("narrow", [FULL, "", "node(s) didn't satisfy plugin(s) [Roomy]"], [0, 100, 0]),
        ("unscored", [FULL, "", ""], [0, 0, 0]),
        ("print", [FULL, "", ""], [0, 50, 100]),
    ],
)
async def test_pre_filter_and_pre_score_run_with_filter_and_score(
    make: Make, isolation: Isolation, pod: str, words: list[str], scores: list[int]
) -> None:
    plugin = make(isolation)
    codes, found, _ = await asked(plugin, three_nodes(), make_pod(pod))

    assert [plugin.reasons.status(code).message for code in codes] == words
    assert found == scores


@BOTH
@pytest.mark.parametrize(
    ("pod", "point", "words"),
    [
        ("raise", "Filter", "RuntimeError: boom"),
        ("raise-in-score", "Score", "ValueError: no score today"),
        ("wrong-shape", "Filter", "returned uint8[4], not uint8[3]"),
        ("wrong-type", "Filter", "returned float64[3], not uint8[3]"),
        ("exit", "Filter", "SystemExit: 3"),
    ],
)
async def test_isolated_failure_names_its_point_and_the_worker_continues(
    make: Make, isolation: Isolation, pod: str, point: str, words: str
) -> None:
    plugin = make(isolation)
    with pytest.raises(IsolatedError) as failed:
        await asked(plugin, three_nodes(), make_pod(pod))

    assert (failed.value.point, failed.value.text) == (point, words)
    assert (await asked(plugin, three_nodes(), make_pod("p")))[1] == [0, 50, 100]


async def test_hung_plugin_thread_is_abandoned_and_others_answer(make: Make, workers: PluginWorkers) -> None:
    plugin, cache = make(Isolation.THREAD), three_nodes()
    hung = asyncio.create_task(asked(plugin, cache, make_pod("hang")))
    await asyncio.sleep(0)

    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]
    assert not hung.done()
    leap(TIMEOUT_S)
    with pytest.raises(IsolatedError, match="no answer within 60 s; its thread is abandoned"):
        await hung
    assert workers.threads[0].abandoned == 1


async def test_too_many_hung_threads_stop_requests_until_one_returns(make: Make, workers: PluginWorkers) -> None:
    plugin, cache = make(Isolation.THREAD), three_nodes()
    hung = [asked(plugin, cache, make_pod(f"hang-{number}")) for number in range(ABANDONED_THREADS_MAX)]
    found = await leaping_until_done(asyncio.gather(*hung, return_exceptions=True))
    assert all(isinstance(one, IsolatedError) and "no answer within" in one.text for one in found)
    with pytest.raises(IsolatedError, match="4 of its threads hang; it is not called until one of them ends"):
        await asked(plugin, cache, make_pod("p"))

    Roomy.released.set()
    async with asyncio.timeout(TIMEOUT_S):
        while workers.threads[0].abandoned:  # noqa: ASYNC110 - threads end when they end
            await asyncio.sleep(0.001)
    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]


async def test_threads_are_daemons_and_end_with_the_program(make: Make, workers: PluginWorkers) -> None:
    others = set(threading.enumerate())  # those of an earlier test may still be ending
    await asked(make(Isolation.THREAD), three_nodes(), make_pod("p"))
    (ours,) = [thread for thread in threading.enumerate() if thread.name == "plugin Roomy" and thread not in others]
    assert ours.daemon

    await workers.close()
    await asyncio.to_thread(ours.join, TIMEOUT_S)
    assert not ours.is_alive()


async def test_hung_plugin_process_is_killed_and_replaced(make: Make, workers: PluginWorkers, tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    plugin, cache = make(Isolation.PROCESS, hangs=str(hangs)), three_nodes()
    hung = asyncio.create_task(asked(plugin, cache, make_pod("hang")))

    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]
    async with asyncio.timeout(TIMEOUT_S):
        while not hangs.exists():  # noqa: ASYNC110 - a leap before it is asked would pass its start's deadline
            await asyncio.sleep(0.001)
    with pytest.raises(IsolatedError, match="no answer within 60 s; its process is killed and replaced"):
        await leaping_until_done(hung)
    assert workers.processes[0].killed == 1
    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]
    assert PROCESSES_MAX >= 2


async def test_dead_plugin_process_is_replaced(make: Make, workers: PluginWorkers) -> None:
    plugin, cache = make(Isolation.PROCESS), three_nodes()
    with pytest.raises(IsolatedError, match="its process died: exit code 7"):
        await asked(plugin, cache, make_pod("die"))

    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]
    assert workers.processes[0].killed == 1


@pytest.mark.parametrize(("name", "point"), [("Roomy", "Filter"), ("ScoresOnly", "Score")])
@pytest.mark.parametrize(("isolation", "pod"), [(Isolation.THREAD, "hang"), (Isolation.PROCESS, "die")])
async def test_worker_without_a_response_fails_at_the_first_extension_point(
    make: Make, isolation: Isolation, pod: str, name: str, point: str
) -> None:
    plugin, cache = make(isolation, name), three_nodes()
    answer = asyncio.ensure_future(plugin.response(plugin.request(make_view(cache), make_pod(pod), all_rows(cache))))
    with pytest.raises(IsolatedError) as failed:
        await (leaping_until_done(answer) if isolation is Isolation.THREAD else answer)
    assert failed.value.point == point


async def test_unbuildable_plugin_in_a_process_reports_why(make: Make) -> None:
    plugin = make(Isolation.PROCESS, "Unbuildable")
    with pytest.raises(IsolatedError, match="cannot be built in its process: OSError: no licence on this machine"):
        await plugin.response(plugin.request(make_view(three_nodes()), make_pod("p"), np.arange(3)))


async def test_plugin_process_not_ready_in_time_is_killed(make: Make, workers: PluginWorkers) -> None:
    plugin = make(Isolation.PROCESS, "SlowToBuild")
    request = plugin.request(make_view(three_nodes()), make_pod("p"), np.arange(3))
    with pytest.raises(IsolatedError) as failed:
        await leaping_until_done(asyncio.ensure_future(plugin.response(request)))
    assert (failed.value.point, failed.value.text) == (
        "Filter",
        f"its process was not ready within {plugin_processes.READY_MAX_S:g} s",
    )
    assert workers.processes[0].killed == 1


async def test_oversized_response_ends_its_process(
    make: Make, workers: PluginWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, cache = make(Isolation.PROCESS), three_nodes()
    monkeypatch.setattr(plugin_processes, "ANSWER_BYTES_MAX", 64)
    with pytest.raises(IsolatedError) as failed:
        await asked(plugin, cache, make_pod("p"))
    assert failed.value.point == "Filter"
    told = re.fullmatch(r"its process answered (\d{2,}) bytes, more than 64", failed.value.text)
    assert told is not None
    monkeypatch.setattr(plugin_processes, "ANSWER_BYTES_MAX", int(told[1]))
    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]
    monkeypatch.undo()
    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]
    assert workers.processes[0].killed == 1


async def test_unstartable_plugin_process_reports_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, cache = make(Isolation.PROCESS), three_nodes()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(IsolatedError, match="its process died: it could not be started"):
        await asked(plugin, cache, make_pod("p"))
    monkeypatch.undo()
    assert (await asked(plugin, cache, make_pod("p")))[1] == [0, 50, 100]


async def test_event_loop_continues_while_a_plugin_blocks(make: Make) -> None:
    """Eight calls block at once, until the loop, which has turned meanwhile, comes to let them go."""
    plugin, cache = make(Isolation.THREAD), three_nodes()
    busy = [asyncio.create_task(asked(plugin, cache, make_pod("meet"))) for _ in range(THREADS_MAX)]
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not any(task.done() for task in busy)

    await asyncio.to_thread(Roomy.meeting.wait, TIMEOUT_S)
    assert [scores for _, scores, _ in await asyncio.gather(*busy)] == [[0, 50, 100]] * THREADS_MAX


@BOTH
async def test_isolated_plugin_declared_not_to_read_pods_gets_none(make: Make, isolation: Isolation) -> None:
    plugin = make(isolation, "NodesOnly")
    request = plugin.request(make_view(three_nodes()), make_pod("sneaky"), np.arange(3))
    with pytest.raises(IsolatedError, match=r"declare Dependency\.ROW"):
        await plugin.response(request)


class TestRecheck:
    """At commit an isolated plugin cannot be asked again: rows that changed in what it reads are refused."""

    async def recheck(self, plugin: IsolatedPlugin, change: Callable[[ClusterCache], object]) -> list[bool]:
        cache, pod = make_cache(make_node(f"n{number}", cpu_milli=1000, pods=9) for number in range(3)), make_pod("p")
        view, rows = make_view(cache), all_rows(cache)
        view.responses = {plugin.name: await plugin.response(plugin.request(view, pod, rows))}
        change(cache)
        return [bool(code) for code in plugin.recheck(view, pod, rows)]

    async def test_unchanged_node_needs_no_recheck(self, make: Make) -> None:
        assert await self.recheck(make(Isolation.THREAD), lambda cache: None) == [False, False, False]

    async def test_added_pod_is_rechecked(self, make: Make) -> None:
        def change(cache: ClusterCache) -> None:
            cache.assume(make_pod("early"), 1)

        assert await self.recheck(make(Isolation.THREAD), change) == [False, True, False]
        assert await self.recheck(make(Isolation.THREAD, "NodesOnly"), change) == [False, False, False]

    async def test_changed_node_is_rechecked(self, make: Make) -> None:
        def change(cache: ClusterCache) -> None:
            cache.set_node(make_node("n2", cpu_milli=500, pods=9))

        for name in ("Roomy", "NodesOnly"):
            assert await self.recheck(make(Isolation.THREAD, name), change) == [False, False, True]

    async def test_rows_outside_the_request_are_left_to_the_next_attempt(self, make: Make) -> None:
        """A preemption looks at rows without room, about which nobody was asked."""
        plugin, cache, pod = make(Isolation.THREAD), three_nodes(), make_pod("p")
        view, rows = make_view(cache), all_rows(cache)
        view.responses = {plugin.name: await plugin.response(plugin.request(view, pod, rows[:1]))}

        assert plugin.recheck(view, pod, rows).astype(bool).tolist() == [True, False, False]


class Scalar:
    name = "Scalar"

    def filter(self, pod: Pod, node: object) -> bool:
        return True

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> object: ...

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None: ...


class ReadsClaims(Roomy):
    traits = Traits(reads_objects=(ObjectKind.PERSISTENT_VOLUME_CLAIM,))

    def __init__(self) -> None:
        super().__init__({})


class OnlySorts:
    name = "OnlySorts"

    def sort_key(self, entry: object) -> tuple[int]:
        return (0,)


class Asks(Roomy):
    response_timeout_s = 1.0

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object: ...

    async def response(self, request: object) -> object: ...


class Extends(Roomy):
    def add_pod(self, *args: object) -> None: ...

    def remove_pod(self, *args: object) -> None: ...


@pytest.mark.parametrize(
    ("plugin", "isolation", "words"),
    [
        (OnlySorts(), Isolation.THREAD, "only Filter and Score can be isolated"),
        (Asks({}), Isolation.THREAD, "it awaits its response"),
        (Extends({}), Isolation.THREAD, "AddPod and RemovePod"),
        (ScalarPlugin(Scalar()), Isolation.PROCESS, "Reserve would run in another instance"),
        (ReadsClaims(), Isolation.PROCESS, "it reads objects"),
    ],
)
def test_unisolatable_plugin_is_refused_at_build(plugin: Plugin, isolation: Isolation, words: str) -> None:
    with pytest.raises(PluginSetupError, match=words):
        Isolator(PluginWorkers())(plugin, PluginUse("x:Y", isolation=isolation), lambda: plugin)


def test_plugin_process_gets_no_context() -> None:
    def factory(context: object) -> Plugin:
        return Roomy({})

    use = PluginUse("x:Y", isolation=Isolation.PROCESS)
    with pytest.raises(PluginSetupError, match="takes a context"):
        Isolator(PluginWorkers())(Roomy({}), use, factory)


@pytest.mark.parametrize("wrap", [lambda plugin: plugin, ScalarPlugin])
def test_isolated_plugin_reads_are_watched(wrap: Callable[[object], Plugin]) -> None:
    use = PluginUse("x:Y", isolation=Isolation.THREAD)
    adapter = Isolator(PluginWorkers())(wrap(ReadsClaims()), use, ReadsClaims)
    profile = PluginSet([BuiltPlugin(adapter, use), BuiltPlugin(ByName(), PluginUse("ByName"))])
    assert watched_kinds([profile]) == (ObjectKind.PERSISTENT_VOLUME_CLAIM,)


def test_isolated_adapter_has_the_extension_points_of_its_plugin() -> None:
    use = PluginUse("x:Y", isolation=Isolation.THREAD, timeout_s=2.5)
    adapter = Isolator(PluginWorkers())(ScalarPlugin(Scalar()), use, Scalar)

    assert isinstance(adapter, FilterPlugin)
    assert isinstance(adapter, RemotePlugin)
    assert isinstance(adapter, SignPlugin)
    assert not isinstance(adapter, ScorePlugin)
    assert not isinstance(adapter, PreFilterPlugin)
    assert hasattr(adapter, "reserve")
    assert adapter.sign(make_pod("p")) == adapter.sign(make_pod("q"))
