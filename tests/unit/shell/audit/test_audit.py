"""The audit on a real program over the embedded API server, in virtual time: what it finds, mends, and leaves alone."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import orjson
import pytest

from domains.gpu.card_arrays import MEMORY, SIZE
from domains.gpu.gpu_ledger import GpuLedger
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import MERGE_PATCH, LineStream, Response
from multisched.queueing.transitions import QueueState
from multisched.shell.audit import auditor as audit_module
from multisched.shell.audit.auditor import PAGE_PAUSE_S, AuditStatistics
from multisched.shell.program import Program, ProgramPorts
from multisched.shell.telemetry import read
from multisched.state.cluster_cache import PlacedPod, PodState
from multisched.state.columns.resources import SCORING
from multisched.testing.builders import GPU
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimLoop, simulate
from tests.kit.checkers.invariants import differences
from tests.kit.world.backup import restore_backup
from tests.unit.shell.program_kit import PODS, BentLines, Site
from tests.unit.state.state_kit import FlakyTickets

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
- name: gpu
lease: {enabled: false}
"""
TWO_PERIODS_S = 130.0
CONTENT = "multisched.shell.audit.content"

T = TypeVar("T")


class DeafTransport(DirectTransport):
    """Watches through it lose, without a word, the lines that `loses` names."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.loses: Callable[[bytes], bool] = lambda line: False
        self.lost = 0
        self.false_answers: list[str] = []
        """Pods whose next binding is answered with 201 and never done."""
        self.after: Callable[[str, str], Awaitable[None]] | None = None
        """What passes between the server's answer to a request and its arrival."""
        self.replays: dict[str, Response] = {}
        """Beginning of a path -> an older answer, by a server that lags."""

    async def request(self, method: str, path: str, **options: Any) -> Response:
        name = path.removeprefix(f"{PODS}/").partition("/binding")[0]
        if "/binding" in path and name in self.false_answers:
            self.false_answers.remove(name)
            return Response(201, b"{}", {})
        for beginning, old in self.replays.items():
            if path.startswith(beginning):
                return old
        answer = await super().request(method, path, **options)
        if self.after is not None:
            await self.after(method, path)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        async with super().stream(path, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s) as lines:
            yield BentLines(lines, self._heard)

    def _heard(self, line: bytes) -> bytes:
        is_lost = self.loses(line)
        self.lost += is_lost
        return b"" if is_lost else line


class Stage(Site):
    """Three nodes (one with GPUs), a running program, and an API to act on."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.transport = DeafTransport(self.server)
        self.has_loaded_beside = False
        """The judge has been imported by what was to run beside the loop."""
        self.configuration: Configuration = loading.parse(CONFIGURATION, "test")
        ports = ProgramPorts(
            self.transport,
            self.clock,
            random.Random(1),
            "tester",
            "kube-system",
            observer=lambda domain: QuietObserver(),
            background_threads=lambda: self._beside,
        )
        self.program = Program(self.configuration, ports)

    async def _beside(self, work: Callable[[], T]) -> T:
        """At once: virtual time does not wait for threads."""
        was_there = CONTENT in sys.modules
        found = work()
        self.has_loaded_beside |= not was_there and CONTENT in sys.modules
        return found

    async def add_pod(self, name: str, *, cpu: str = "500m", **fields: Any) -> None:
        """With a port of its host, which the cache holds too."""
        await super().add_pod(name, cpu=cpu, port=8000 + len(name), **fields)

    def uid(self, name: str) -> str:
        return self.server.store.collection("pods").objects[f"default/{name}"].uid

    @property
    def found(self) -> AuditStatistics:
        return self.program.audit.statistics()

    def is_true(self) -> bool:
        return differences(self.program, self.server) == []


def play(scene: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    """Runs a scene with two bound pods, one of them on a GPU, and a waiting one."""
    loop = SimLoop(seed=1)

    async def main() -> None:
        stage = Stage(loop)
        for name in ("a", "b"):
            await stage.add_node(name)
        await stage.add_node("gpu", gpus=2)
        running = loop.create_task(stage.program.run())
        await stage.add_pod("service")
        await stage.add_pod("train", scheduler="gpu-scheduler", limits={GPU: "1"})
        await stage.add_pod("huge", cpu="100")
        await asyncio.sleep(5.0)
        assert stage.is_true()
        try:
            await scene(stage)
        finally:
            stage.program.stop()
            await running

    simulate(main(), loop)


def test_audits_find_nothing_in_a_quiet_cluster() -> None:
    async def scene(stage: Stage) -> None:
        await asyncio.sleep(900.0)

        assert stage.found.audits >= 14
        assert (stage.found.differences, stage.found.failures) == (0, 0)

    play(scene)


def test_judge_is_imported_in_a_thread_before_the_first_audit_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, CONTENT, raising=False)
    was_there: list[bool] = []

    async def note(method: str, path: str) -> None:
        if method == "GET" and path.startswith("/api/v1/pods") and "limit=" in path:
            was_there.append(CONTENT in sys.modules)

    async def scene(stage: Stage) -> None:
        assert CONTENT not in sys.modules, "a program that starts does not pay for it"
        stage.transport.after = note
        await asyncio.sleep(TWO_PERIODS_S)
        assert stage.found.audits >= 1
        assert set(was_there) == {True}
        assert stage.has_loaded_beside

    play(scene)


def test_changes_in_flight_are_no_differences() -> None:
    """Pods come and go all the time, while every watch line of pods is 30 ms late."""

    async def scene(stage: Stage) -> None:
        async def change() -> None:
            for number in range(200):
                await stage.add_pod(f"pod-{number % 7}")
                await asyncio.sleep(0.15)
                await stage.delete_pod(f"pod-{number % 7}")

        changing = asyncio.ensure_future(change())
        while not changing.done():
            assert await stage.program.audit.once() == []
            await asyncio.sleep(0.37)
        await changing

        assert stage.found.audits >= 50
        assert stage.found.differences == 0

    play(scene)


async def _delete_pending(stage: Stage) -> None:
    await stage.delete_pod("huge")


async def _delete_bound(stage: Stage) -> None:
    await stage.delete_pod("service")


async def _add_pending(stage: Stage) -> None:
    await stage.add_pod("unheard")


async def _add_bound(stage: Stage) -> None:
    await stage.add_pod("foreign", scheduler="another")
    await stage.bind("foreign", "a")


async def _delete_node(stage: Stage) -> None:
    await stage.send("DELETE", "/api/v1/nodes/b")


async def _add_node(stage: Stage) -> None:
    await stage.add_node("c")


async def _shrink_node(stage: Stage) -> None:
    document = await stage.send("GET", "/api/v1/nodes/b")
    document["status"]["allocatable"]["cpu"] = "1"
    await stage.send("PUT", "/api/v1/nodes/b/status", document)


@pytest.mark.parametrize(
    "change",
    [_delete_pending, _delete_bound, _add_pending, _add_bound, _delete_node, _add_node, _shrink_node],
    ids=lambda change: change.__name__.strip("_"),
)
def test_lost_watch_event_is_found_and_repaired_within_two_periods(
    change: Callable[[Stage], Coroutine[Any, Any, None]],
) -> None:
    async def scene(stage: Stage) -> None:
        stage.transport.loses = lambda line: b'"BOOKMARK"' not in line
        await change(stage)
        await asyncio.sleep(0.5)
        stage.transport.loses = lambda line: False
        assert stage.transport.lost
        assert not stage.is_true()

        await asyncio.sleep(125.0)

        assert stage.is_true()
        assert stage.found.lost >= 1
        assert stage.found.inner == 0

    play(scene)


def test_unseen_pod_is_bound_after_the_audit() -> None:
    async def scene(stage: Stage) -> None:
        stage.transport.loses = lambda line: b'"unheard"' in line and b'"ADDED"' in line
        await stage.add_pod("unheard")
        await asyncio.sleep(125.0)

        pod = await stage.send("GET", f"{PODS}/unheard")
        assert pod["spec"]["nodeName"] in ("a", "b")

    play(scene)


def _placed(program: Program, uid: str) -> PlacedPod:
    entry = program.cache.placed(uid)
    assert entry is not None
    return entry


def _forget_a_pod(program: Program, uid: str) -> None:
    program.cache.remove(uid)


def _move_a_pod(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    program.cache.remove(uid)
    node = "a" if entry.node == "b" else "b"
    program.cache.place(msgspec.structs.replace(entry.pod, node=node))


def _add_cpu_to_a_row(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    columns = program.cache.nodes._resources
    columns._requested[columns._index["cpu"], entry.row] += 250


def _lose_a_port(program: Program, uid: str) -> None:
    program.cache.nodes._ports._by_port.clear()


def _give_devices_back(program: Program, uid: str) -> None:
    for ledger in program.cache.ledgers:
        ledger.release(uid)


def _count_a_device_as_free(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    (ledger,) = [one for one in program.cache.ledgers if isinstance(one, GpuLedger)]
    cards = ledger.arrays._cards
    cards[MEMORY, :2, entry.row] = cards[SIZE, :2, entry.row]


def _hold_for_a_stranger(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    program.cache.ledgers.restore(msgspec.structs.replace(entry.pod, uid="stranger"), entry.row)


def _lose_from_the_queue(program: Program, uid: str) -> None:
    for worker in program.router.workers():
        for entry in list(worker.queue.entries()):
            assert worker.queue.remove(entry.uid) is QueueState.UNSCHEDULABLE


def _offer_more_cpu(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    columns = program.cache.nodes._resources
    columns._allocatable[columns._index["cpu"], entry.row] += 250


def _cordon_a_row(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    program.cache.nodes._unschedulable[entry.row] = True


def _count_more_in_scores(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    program.cache.nodes._resources._requested[SCORING.start, entry.row] += 5


def _lose_from_its_row(program: Program, uid: str) -> None:
    program.cache.nodes.remove_pod(_placed(program, uid).row, uid)


def _count_another_on_the_row(program: Program, uid: str) -> None:
    entry = _placed(program, uid)
    program.cache.nodes.remove_pod(entry.row, uid)
    program.cache.nodes.add_pod(entry.row, msgspec.structs.replace(entry.pod, name="another"))


CORRUPTIONS: list[tuple[Callable[[Program, str], None], str, str, str]] = [
    (_forget_a_pod, "service", "pod default/service", "not in the cache"),
    (_move_a_pod, "service", "pod default/service", "' in the API, on '"),
    (_add_cpu_to_a_row, "service", "row NODE", "cpu"),
    (_lose_a_port, "service", "row NODE", "port"),
    (_offer_more_cpu, "service", "row NODE", "allocatable cpu is 4250, the node says 4000"),
    (_cordon_a_row, "service", "row NODE", "unschedulable is True, the node says False"),
    (_count_more_in_scores, "service", "row NODE", "scoring columns say"),
    (_lose_from_its_row, "service", "row NODE", "lacks pod default/service"),
    (_count_another_on_the_row, "service", "row NODE", "has pod default/another, its entry says PlacedPod("),
    (_give_devices_back, "train", "ledger default/train", "ledger gpu-devices holds None, its pod says"),
    (_count_a_device_as_free, "train", "ledger gpu", "for the row, the sum of its pods is"),
    (_hold_for_a_stranger, "train", "ledger stranger", "for a pod that is on no node"),
    (_lose_from_the_queue, "huge", "queue default/huge", "pending, and in no queue"),
]


@pytest.mark.parametrize(
    ("corrupt", "pod", "found", "told"), CORRUPTIONS, ids=[one[0].__name__.strip("_") for one in CORRUPTIONS]
)
def test_corrupted_cache_is_repaired_within_two_periods(
    corrupt: Callable[[Program, str], None], pod: str, found: str, told: str
) -> None:
    """Nothing else is told: what stands beside it is as it should be."""

    async def scene(stage: Stage) -> None:
        await stage.add_pod("other", cpu="100m")
        await stage.add_pod("train-2", scheduler="gpu-scheduler", limits={GPU: "1"})
        await asyncio.sleep(1.0)
        where = stage.program.cache.placed(stage.uid(pod))
        node = "" if where is None else where.node
        corrupt(stage.program, stage.uid(pod))
        assert not stage.is_true()

        differences = [*await stage.program.audit.once(), *await stage.program.audit.once()]
        await asyncio.sleep(1.0)

        assert stage.is_true()
        others = {f"row {one}" for one in ("a", "b", "gpu")} if corrupt is _lose_a_port else set()
        keys = {f"{one.kind} {one.key}" for one in differences}
        assert keys - others == {found.replace("NODE", node)} - others
        assert any(told in one.what for one in differences)
        assert stage.found.differences == len(differences) <= 3
        assert stage.found.audits == 2

    play(scene)


def test_repaired_difference_is_a_first_suspicion_when_it_recurs() -> None:
    async def scene(stage: Stage) -> None:
        uid = stage.uid("huge")
        (worker,) = (one for one in stage.program.router.workers() if uid in one.queue)
        for _ in range(2):
            pod = worker.queue.pod(uid)
            assert pod is not None
            _lose_from_the_queue(stage.program, uid)
            assert await stage.program.audit.once() == []
            worker.queue.add(pod, asyncio.get_running_loop().time())
            assert await stage.program.audit.once() == []
            await asyncio.sleep(1.0)

    play(scene)


def test_differences_are_counted_by_cause_over_all_audits() -> None:
    """With the API (an event was lost), and of the cache with itself (a defect of ours)."""
    ours = {_add_cpu_to_a_row, _give_devices_back, _count_a_device_as_free, _hold_for_a_stranger, _lose_from_the_queue}

    async def scene(stage: Stage) -> None:
        lost = inner = 0
        for corrupt, pod, _, _ in 2 * [one for one in CORRUPTIONS if one[0] in {_forget_a_pod, *ours}]:
            corrupt(stage.program, stage.uid(pod))
            found = [*await stage.program.audit.once(), *await stage.program.audit.once()]
            assert {one.kind == "pod" for one in found} == {corrupt not in ours}
            lost, inner = (lost, inner + len(found)) if corrupt in ours else (lost + len(found), inner)
            assert (stage.found.lost, stage.found.inner, stage.found.unbound) == (lost, inner, 0)
            await asyncio.sleep(0.2)
        assert stage.found.differences == lost + inner >= 12
        assert stage.found.audits == 24

    play(scene)


def test_content_of_each_object_is_compared_once_per_cycle_of_audits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_module, "CONTENT_PODS", 2)

    async def scene(stage: Stage) -> None:
        cache = stage.program.cache
        rounds = len(cache) // 2 + 1
        placed = list(cache)
        for entry in placed:  # of the same version, and with another label
            cache.place(msgspec.structs.replace(entry.pod, labels={"odd": entry.pod.name}))
        found = [await stage.program.audit.once() for _ in range(rounds)]
        keys = [one.key for differences in found for one in differences if one.kind == "pod"]
        assert sorted(keys) == sorted(entry.pod.key for entry in placed)
        assert len(found[0]) < len(placed), "a part of them at a time"
        assert await stage.program.audit.once() == []

    play(scene)


def test_failed_ledger_is_trusted_again_after_its_comparison() -> None:
    async def scene(stage: Stage) -> None:
        ledgers = stage.program.cache.ledgers
        tickets = FlakyTickets()
        ledgers.register(tickets)
        tickets.raises = "set_node"
        await _add_node(stage)
        await asyncio.sleep(125.0)
        assert list(ledgers.broken) == ["tickets"]

        tickets.raises = ""
        await asyncio.sleep(125.0)
        assert not ledgers.broken
        assert tickets.nodes == {row for row, _ in stage.program.cache.nodes.live_rows()}

    play(scene)


def test_pod_on_a_row_without_a_node_is_reported_by_row() -> None:
    async def scene(stage: Stage) -> None:
        cache, uid = stage.program.cache, stage.uid("service")
        await stage.add_node("spare")
        await asyncio.sleep(1.0)
        row = cache.nodes.row_of("spare")
        assert row is not None
        await stage.send("DELETE", "/api/v1/nodes/spare")
        await asyncio.sleep(1.0)
        cache.nodes.add_pod(row, _placed(stage.program, uid).pod)

        (found,) = await stage.program.audit.once()

        cache.nodes.remove_pod(row, uid)
        assert (found.kind, found.key) == ("row", str(row))
        assert found.what.startswith(f"row {row} has pod default/service, its entry says ")

    play(scene)


def test_invented_cache_pod_is_dropped() -> None:
    async def scene(stage: Stage) -> None:
        entry = stage.program.cache.placed(stage.uid("service"))
        assert entry is not None
        fields = {f: getattr(entry.pod, f) for f in entry.pod.__struct_fields__}
        phantom = type(entry.pod)(**fields | {"uid": "phantom", "name": "phantom"})
        stage.program.cache.place(phantom)

        await asyncio.sleep(125.0)

        assert stage.program.cache.placed("phantom") is None
        assert entry.state is PodState.CONFIRMED
        assert stage.is_true()

    play(scene)


def test_invented_cache_node_and_object_are_dropped() -> None:
    """The API has no such thing, and the reflector knows of none: no new list would bring its end."""

    async def scene(stage: Stage) -> None:
        program = stage.program
        disk = program.objects.ingests[ObjectKind.PERSISTENT_VOLUME]
        metadata = {"name": "phantom", "uid": "uid-phantom", "resourceVersion": "1"}
        raw = msgspec.Raw(orjson.dumps({"metadata": metadata, "spec": {}, "status": {}}))
        program.nodes.upsert("phantom", raw)
        disk.upsert("phantom", raw)
        assert program.cache.nodes.row_of("phantom") is not None
        assert program.cache.objects.volume("phantom") is not None

        differences = [*await program.audit.once(), *await program.audit.once()]

        assert [(one.kind, one.key) for one in differences] == [("node", "phantom"), (disk.kind.value, "phantom")]
        assert all("version 1 in the cache, not in the list of version" in one.what for one in differences)
        assert program.cache.nodes.row_of("phantom") is None
        assert program.cache.objects.volume("phantom") is None
        assert stage.is_true()

    play(scene)


async def _label_pod(stage: Stage) -> None:
    await stage.change_metadata("service", labels={"color": "blue"})


@pytest.mark.parametrize(
    ("kind", "change"),
    [("pods", _label_pod), ("pods", _add_pending), ("pods", _add_bound), ("nodes", _add_node)],
    ids=["a label", "a pending pod", "a bound pod", "a node"],
)
def test_newer_cache_object_is_no_difference(kind: str, change: Callable[[Stage], Awaitable[None]]) -> None:
    """It came or changed while the list was on its way."""

    async def scene(stage: Stage) -> None:
        holding = asyncio.Event()

        async def answer_late(method: str, path: str) -> None:
            if path.startswith(f"/api/v1/{kind}?limit"):
                await holding.wait()

        stage.transport.after = answer_late
        auditing = asyncio.ensure_future(stage.program.audit.once())
        await asyncio.sleep(1.0)
        await change(stage)
        await asyncio.sleep(1.0)
        assert stage.is_true()
        holding.set()

        assert await auditing == []
        assert stage.found.audits == 1

    play(scene)


def test_audit_of_a_small_cluster_is_short() -> None:
    """It lets others go on between its steps, and does not sleep but between pages."""

    async def scene(stage: Stage) -> None:
        await stage.program.audit.once()
        assert stage.found.audits == 1
        assert stage.found.last_s <= 20 * PAGE_PAUSE_S

    play(scene)


def test_answered_bind_that_never_happened_is_found_by_the_next_audit() -> None:
    """A proxy may answer what the API server has never seen; no watch will ever say so."""

    async def scene(stage: Stage) -> None:
        false = ["lied", "lied-too", "deleted"]
        stage.transport.false_answers = list(false)
        for name in false:
            await stage.add_pod(name)
        await asyncio.sleep(1.0)
        assert stage.transport.false_answers == []
        assert stage.program.cache.is_assumed(stage.uid("lied"))
        await stage.delete_pod("deleted")
        await asyncio.sleep(130.0)

        for name in ("lied", "lied-too"):
            pod = await stage.send("GET", f"{PODS}/{name}")
            assert pod["spec"].get("nodeName")
        assert (stage.found.unbound, stage.found.differences) == (2, 2)
        assert stage.is_true()

    play(scene)


def test_number_of_answered_binds_read_per_audit_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "READS_MAX", 1)

    async def scene(stage: Stage) -> None:
        stage.transport.false_answers = ["lied", "lied-too"]
        for name in ("lied", "lied-too"):
            await stage.add_pod(name)
        await asyncio.sleep(6.0)
        for unbound in (1, 2, 2):
            found = await stage.program.audit.once()
            assert [one.what.startswith("its bind to '") for one in found] == [True] * (len(found))
            assert stage.found.unbound == unbound

    play(scene)


def test_deleting_pod_with_an_answered_bind_is_removed_after_a_lost_deletion() -> None:
    """It is pending no more, and confirmed nowhere: no list names it (seed 11 of 2026-11-23)."""

    async def scene(stage: Stage) -> None:
        stage.transport.false_answers = ["left"]
        stage.transport.loses = lambda line: b'"left"' in line and b'"DELETED"' in line
        await stage.add_pod("left", cpu="3500m")
        await stage.change_metadata("left", finalizers=["sim/keeper"])
        await asyncio.sleep(1.0)
        uid = stage.uid("left")
        assert stage.program.cache.is_assumed(uid)
        await stage.delete_pod("left")
        await asyncio.sleep(1.0)
        assert uid not in stage.program.pods.pending
        await stage.change_metadata("left", finalizers=[])
        assert stage.program.cache.is_assumed(uid)
        await asyncio.sleep(TWO_PERIODS_S)

        assert stage.program.cache.placed(uid) is None
        assert stage.found.lost == 1
        assert stage.is_true()

    play(scene)


def test_late_bind_confirmation_is_not_undone() -> None:
    async def scene(stage: Stage) -> None:
        stage.transport.loses = lambda line: b'"late"' in line and b'"nodeName"' in line
        await stage.add_pod("late")
        await asyncio.sleep(130.0)

        assert stage.found.unbound == 0
        assert stage.found.lost
        assert stage.is_true()

    play(scene)


def test_list_of_a_stale_server_is_ignored_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """The suspicion of the audit before, whose list was true when it was made, is not confirmed by the same old list."""

    async def scene(stage: Stage) -> None:
        old: list[Response] = []
        lists = "/api/v1/pods?limit"

        async def go_meanwhile(method: str, path: str) -> None:
            if path.startswith(lists):
                old.append(await stage.api.request("GET", path))
                await stage.delete_pod("service")
                await asyncio.sleep(1.0)

        stage.transport.after = go_meanwhile
        assert await stage.program.audit.once() == []
        stage.transport.after = None
        counted = stage.found
        assert (counted.audits, counted.failures, counted.differences) == (1, 0, 0)

        stage.transport.replays[lists] = old[0]
        caplog.clear()
        assert await stage.program.audit.once() == []
        stage.transport.replays.clear()
        counted = stage.found
        assert (counted.audits, counted.failures, counted.differences) == (1, 1, 0)
        (told,) = [record for record in caplog.records if record.message == "audit failed"]
        assert re.fullmatch(
            r"the list of /api/v1/pods has version \d+, older than \d+, which was seen before", vars(told)["error"]
        )
        await asyncio.sleep(10.0)
        assert stage.is_true()

    play(scene)


def test_failed_audit_changes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        stage.server.set_unavailable()
        await asyncio.sleep(130.0)

        assert stage.found.failures >= 2
        assert stage.found.differences == 0

        stage.server.set_available()
        await asyncio.sleep(130.0)
        assert stage.found.audits >= 2
        assert stage.found.differences == 0
        assert stage.is_true()

    play(scene)


def test_unseen_history_rollback_is_found_by_the_audit() -> None:
    """By versions alone nothing tells: the server's are newer again. But a list that is as new shows an older node."""

    async def scene(stage: Stage) -> None:
        await asyncio.sleep(5.0)
        backup = stage.server.store.version
        label = b'{"metadata":{"labels":{"since":"then"}}}'
        await stage.api.request("PATCH", "/api/v1/nodes/a", body=label, content_type=MERGE_PATCH)
        await asyncio.sleep(1.0)
        assert restore_backup(stage.server.store, backup)
        for number in range(10):
            await stage.send("POST", "/api/v1/namespaces", {"metadata": {"name": f"later-{number}"}})
        await asyncio.sleep(TWO_PERIODS_S)
        assert stage.is_true()
        assert stage.program.history.rewritten == 1

    play(scene)


def test_metrics_count_audits_and_differences() -> None:
    async def scene(stage: Stage) -> None:
        _add_cpu_to_a_row(stage.program, stage.uid("service"))
        await asyncio.sleep(65.0)

        readings = read(stage.program)
        assert readings.audits >= 1
        assert readings.audit_differences == 1

    play(scene)


def test_number_of_logged_differences_is_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "LOGGED_MAX", 1)

    async def scene(stage: Stage) -> None:
        for number in range(5):
            await stage.add_pod(f"more-{number}", cpu="10m")
        await asyncio.sleep(5.0)
        for number in range(5):
            stage.program.cache.remove(stage.uid(f"more-{number}"))
        caplog.clear()
        found = [await stage.program.audit.once(), await stage.program.audit.once()]
        told = [record for record in caplog.records if record.message == "audit: difference repaired"]
        rest = [
            vars(record)["more"] for record in caplog.records if record.message.endswith("more differences repaired")
        ]
        assert len(told) == sum(min(len(one), 1) for one in found)
        assert rest == [len(one) - 1 for one in found if len(one) > 1]
        assert rest
        assert len(told) + sum(rest) == stage.found.differences
        assert {(vars(record)["kind"], vars(record)["object"][:-1]) for record in told} == {("pod", "default/more-")}

    play(scene)
