"""Statuses that plugins offer, written by whole programs: by one of several, for one of several domains, and by who leads next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar

import pytest

from multisched.client import status_writer
from multisched.config import loading
from multisched.framework.object_status import ObjectStatus
from multisched.framework.registry import PluginSetupError
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import MERGE_PATCH, ConnectFailedError
from multisched.shell import statuses as statuses_module
from multisched.shell.program import LeaseLostError, Program, ProgramPorts
from multisched.shell.statuses import RENEW_S
from multisched.shell.telemetry import read
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimLoop, simulate
from multisched.testing.virtual_workers import VirtualProcess, VirtualThreads
from tests.kit.plugins.headcount import CONDITION, KIND, Headcount, sentence
from tests.unit.shell.program_kit import BentTransport, Site

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
STATUS = f"{BUDGETS}/team/status"


class Failing(Headcount):
    """Fails as often as it is asked."""

    name = "Failing"

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        raise RuntimeError("no figures")


class Odd(Headcount):
    """Answers with what is no status."""

    name = "Odd"

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> Any:
        return {"used": 1}


class Asked(Headcount):
    """Notes which objects it is asked about."""

    objects: ClassVar[list[tuple[str, bool]]] = []
    """Name, and whether it had something to say."""

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        found = super().status_of(kind, namespace, name)
        Asked.objects.append((name, found is not None))
        return found


def configuration(*domains: str, plugin: str = "tests.kit.plugins.headcount:Headcount", end: str = "") -> str:
    """`domains`: those with the plugin, in the order of the file; gpu has none."""
    plugins = f"profile: {{plugins: {{enabled: [{{name: '{plugin}'}}]}}}}"
    named = "\n".join(f"- name: {domain}\n  {plugins}" for domain in domains)
    return f"apiVersion: multisched.io/v1\nkind: MultischedConfiguration\ndomains:\n{named}\n- name: gpu\n{end}"


ALONE = configuration("forecast", end="lease: {enabled: false}\n")


ALPHA = "- name: alpha\n  nodes: {selector: {matchLabels: {for: alpha}}}"


WITHOUT = ALONE.replace(
    "headcount:Headcount'}]", "reserve_tally:ReserveTally'}], disabled: [ElasticQuota, GangScheduling]"
).replace("- name: gpu", "- name: gpu\n  profile: {plugins: {disabled: [ElasticQuota, GangScheduling]}}")


class Office(Site):
    """A site, programs over it, and each write of a status with its sender and time."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.writes: list[tuple[str, float]] = []
        self.observer = QuietObserver()
        self.transports: dict[str, BentTransport] = {}
        self.programs: dict[str, Program] = {}
        self.late: list[str] = []
        """Senders of statuses whose lease was not good any more."""

    def start(self, identity: str = "me", text: str = ALONE) -> tuple[Program, asyncio.Task[None]]:
        transport = self.transports[identity] = BentTransport(self.server)
        transport.answer = partial(self.noted, identity)
        ports = ProgramPorts(
            transport,
            self.clock,
            random.Random(1),
            identity,
            "kube-system",
            observer=lambda domain: self.observer,
            background_threads=VirtualThreads,
            open_process=VirtualProcess,
        )
        program = self.programs[identity] = Program(loading.parse(text, "test"), ports)
        return program, self.loop.create_task(program.run())

    def noted(self, identity: str, method: str, path: str) -> None:
        """Every request of the program goes by here."""
        if method == "PATCH" and "/status" in path and path.startswith(BUDGETS):
            self.writes.append((identity, self.loop.time()))
            lease = self.programs[identity].leases.get("forecast")
            if lease is not None and not lease.may_bind():
                self.late.append(identity)

    def without_leases(self, identity: str, method: str, path: str) -> None:
        """Leases are out of reach."""
        self.noted(identity, method, path)
        if "/leases" in path:
            raise ConnectFailedError("cut")

    def only_lease(self, identity: str, domain: str, method: str, path: str) -> None:
        """All leases but one are."""
        self.noted(identity, method, path)
        if "/leases" in path and not path.partition("?")[0].endswith(domain) and method != "POST":
            raise ConnectFailedError("cut")

    async def add_budget(self, name: str = "team", **spec: Any) -> str:
        """Its uid."""
        wanted = {"selector": {"matchLabels": {"app": name}}, "maxUnavailable": 1, **spec}
        made = await self.send("POST", BUDGETS, {"metadata": {"name": name}, "spec": wanted})
        return str(made["metadata"]["uid"])

    async def said(self, name: str = "team") -> str:
        """The message of our condition; empty without one."""
        return str((await self.condition(name)).get("message", ""))

    async def condition(self, name: str = "team") -> dict[str, Any]:
        budget = await self.send("GET", f"{BUDGETS}/{name}")
        conditions = budget.get("status", {}).get("conditions") or ()
        return next((dict(one) for one in conditions if one["type"] == CONDITION), {})


def without_pods(line: bytes) -> bytes:
    """What a watch brings, unless it is about pods."""
    return b"" if b'"kind":"Pod",' in line and line.startswith(b'{"type"') else line


def play(scene: Callable[[Office], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(seed=3)

    async def main() -> None:
        office = Office(loop)
        await office.add_node("a", cpu="8")
        await office.add_node("gpu", gpus=2)
        await scene(office)

    simulate(main(), loop)


async def stopped(*running: tuple[Program, asyncio.Task[None]]) -> None:
    for program, task in running:
        program.stop()
        await task


def test_status_follows_its_plugin_with_few_writes() -> None:
    async def scene(office: Office) -> None:
        running = office.start()
        await office.add_budget()
        await asyncio.sleep(5.0)
        assert await office.said() == sentence(0)
        for number in range(5):
            await office.add_pod(f"p{number}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(10.0)
        assert await office.said() == sentence(5)
        assert len(office.writes) <= 3
        await office.delete_pod("p0")
        await asyncio.sleep(10.0)
        assert await office.said() == sentence(4)
        writes = len(office.writes)
        await asyncio.sleep(200.0)
        assert len(office.writes) == writes
        await stopped(running)

    play(scene)


def test_condition_of_a_broken_object_shows_the_problem_until_fixed() -> None:
    async def scene(office: Office) -> None:
        running = office.start()
        expression = {"key": "x", "operator": "In", "values": ["y"]}
        office.transports["me"].said = lambda text: text.replace(b'"In"', b'"Sometimes"')
        await office.add_budget(selector={"matchExpressions": [expression]})
        await asyncio.sleep(10.0)
        broken = await office.condition()
        assert (broken["status"], broken["reason"]) == ("False", "Broken")
        assert "Sometimes" in broken["message"]

        await office.send("PATCH", f"{BUDGETS}/team", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE_PATCH)
        await asyncio.sleep(10.0)
        assert await office.condition() == broken
        assert len(office.writes) == 1

        mended = {"spec": {"selector": {"matchExpressions": None, "matchLabels": {"app": "x"}}}}
        await office.send("PATCH", f"{BUDGETS}/team", mended, content_type=MERGE_PATCH)
        await asyncio.sleep(10.0)
        good = await office.condition()
        assert (good["status"], good["message"]) == ("True", sentence(0))
        assert good["lastTransitionTime"] > broken["lastTransitionTime"]
        await stopped(running)

    play(scene)


def test_foreign_status_content_is_kept_and_requeues_no_pod() -> None:
    async def scene(office: Office) -> None:
        running = office.start()
        await office.add_budget()
        await office.add_pod("large", cpu="100")
        await asyncio.sleep(20.0)
        attempts = {entry.pod.name: entry.attempts for entry in running[0].router.workers()[0].queue.entries()}
        foreign = {"type": "DisruptionAllowed", "status": "True"}
        status = {"expectedPods": 7, "conditions": [foreign, await office.condition()]}
        await office.send("PATCH", STATUS, {"status": status}, content_type=MERGE_PATCH)
        await office.add_pod("small")
        await asyncio.sleep(20.0)

        budget = await office.send("GET", f"{BUDGETS}/team")
        assert budget["status"]["expectedPods"] == 7
        assert foreign in budget["status"]["conditions"]
        assert await office.said() == sentence(1)
        version = running[0].cache.objects.version(KIND)
        await office.add_pod("another")
        await asyncio.sleep(20.0)
        assert await office.said() == sentence(2)
        assert running[0].cache.objects.version(KIND) == version, "what we write changes nothing that plugins read"
        assert attempts == {entry.pod.name: entry.attempts for entry in running[0].router.workers()[0].queue.entries()}
        await stopped(running)

    play(scene)


def test_standby_writes_no_status_and_the_next_leader_writes_changes() -> None:
    async def scene(office: Office) -> None:
        text = configuration("forecast")
        first = office.start("first", text)
        await office.add_budget()
        await asyncio.sleep(5.0)
        second = office.start("second", text)
        await office.add_pod("p0")
        await asyncio.sleep(20.0)
        assert {sender for sender, _ in office.writes} == {"first"}

        await stopped(first)
        await office.add_pod("p1")
        await asyncio.sleep(20.0)
        assert await office.said() == sentence(2)
        assert office.writes[-1][0] == "second"
        assert second[0].statuses.statistics().backlog == 0
        await stopped(second)

    play(scene)


def test_new_leader_does_not_rewrite_correct_statuses() -> None:
    async def scene(office: Office) -> None:
        first = office.start("first", configuration("forecast"))
        await office.add_budget()
        await asyncio.sleep(5.0)
        await stopped(first)
        second = office.start("second", configuration("forecast"))
        await asyncio.sleep(20.0)
        assert [sender for sender, _ in office.writes] == ["first"]
        await stopped(second)

    play(scene)


def test_no_status_is_written_after_the_lease_deadline() -> None:
    async def scene(office: Office) -> None:
        program, task = office.start("first", configuration("forecast"))
        await office.add_budget()
        await asyncio.sleep(6.0)
        transport, lease = office.transports["first"], program.leases.get("forecast")
        assert lease is not None
        transport.answer = partial(office.without_leases, "first")
        number = 0
        while not task.done():
            number += 1
            await office.add_pod(f"p{number}", cpu="100m")
            await asyncio.sleep(1.0)
        with pytest.raises(BaseExceptionGroup) as caught:
            await task
        assert caught.group_contains(LeaseLostError)
        assert len(office.writes) >= 3
        assert office.late == []

    play(scene)


def test_one_of_two_leaders_of_different_domains_writes() -> None:
    """That of the first domain by name, whatever the order in the file: the other says nothing, whatever it knows."""

    async def scene(office: Office) -> None:
        text = configuration("job", "forecast", end="lease: {perDomain: true}\n")
        await office.add_budget()
        first, second = office.start("first", text), office.start("second", text)
        for identity, reached in (("first", "forecast"), ("second", "job")):
            office.transports[identity].answer = partial(office.only_lease, identity, reached)
        await asyncio.sleep(10.0)
        for identity, transport in office.transports.items():
            transport.answer = partial(office.noted, identity)
        leading = {
            (identity, worker.name)
            for identity, (program, _) in (("first", first), ("second", second))
            for worker in program.router.workers()
            if worker.is_leading
        }
        assert {("first", "forecast"), ("second", "job")} <= leading
        for number in range(10):
            await office.add_pod(f"p{number}", cpu="100m")
            await asyncio.sleep(3.0)
        await asyncio.sleep(60.0)  # the node may be withheld for a lease duration
        assert await office.said() == sentence(10)
        assert {sender for sender, _ in office.writes} == {"first"}
        await stopped(first, second)

    play(scene)


def test_two_differing_writers_back_off() -> None:
    """In a rolling update each may think that it is the one. Here they never agree, since one hears nothing of pods."""

    async def scene(office: Office) -> None:
        await office.add_budget()
        first = office.start("first", configuration("forecast"))
        await asyncio.sleep(5.0)
        second = office.start("second", configuration("alpha", "forecast").replace("- name: alpha", ALPHA))
        await asyncio.sleep(5.0)
        office.transports["second"].said = without_pods
        await office.add_pod("p")
        await asyncio.sleep(1_200.0)
        late = [at for _, at in office.writes if at > 600]
        assert {sender for sender, _ in office.writes} == {"first", "second"}
        assert len(late) <= 10
        await stopped(first, second)

    play(scene)


def test_restored_backup_has_its_statuses_rewritten() -> None:
    async def scene(office: Office) -> None:
        running = office.start()
        await office.add_budget()
        await asyncio.sleep(5.0)
        for number in range(3):
            await office.add_pod(f"p{number}")
        await asyncio.sleep(10.0)
        await office.send("PATCH", STATUS, {"status": {"conditions": None}}, content_type=MERGE_PATCH)
        running[0].statuses.history_rewritten()
        await asyncio.sleep(10.0)
        assert await office.said() == sentence(3)
        await stopped(running)

    play(scene)


@pytest.mark.parametrize("plugin", ["Failing", "Odd"])
def test_failed_plugin_loses_only_its_own_statuses(plugin: str) -> None:
    async def scene(office: Office) -> None:
        text = configuration("forecast", plugin=f"{__name__}:{plugin}", end="lease: {enabled: false}\n")
        running = office.start(text=text)
        await office.add_budget()
        await office.add_pod("p")
        await asyncio.sleep(10.0)
        assert await office.node_of("p") == "a"
        assert office.writes == []
        assert any(plugin in failure and "Status" in failure for failure in office.observer.failures)
        await stopped(running)

    play(scene)


def test_two_plugins_that_write_the_same_kind_are_refused() -> None:
    async def scene(office: Office) -> None:
        text = configuration("forecast", plugin="tests.kit.plugins.headcount:Headcount").replace(
            "- name: gpu", f"- name: gpu\n  profile: {{plugins: {{enabled: [{{name: '{__name__}:Odd'}}]}}}}"
        )
        with pytest.raises(PluginSetupError, match="Headcount and Odd both write the status of PodDisruptionBudget"):
            office.start(text=text)

    play(scene)


def test_deleted_object_leaves_no_status_record() -> None:
    async def scene(office: Office) -> None:
        text = configuration("forecast", plugin=f"{__name__}:Asked", end="lease: {enabled: false}\n")
        running = office.start(text=text)
        await office.add_budget()
        await asyncio.sleep(10.0)
        Asked.objects.clear()
        await office.send("DELETE", f"{BUDGETS}/team")
        await asyncio.sleep(10.0)
        assert ("team", False) in Asked.objects
        statuses = running[0].statuses
        assert (statuses.statistics().backlog, len(statuses._writer.server_statuses), statuses._writer._records) == (
            0,
            0,
            {},
        )
        await stopped(running)

    play(scene)


def test_all_statuses_are_refreshed_periodically() -> None:
    async def scene(office: Office) -> None:
        text = configuration("forecast", plugin=f"{__name__}:Asked", end="lease: {enabled: false}\n")
        running = office.start(text=text)
        await office.add_budget()
        await asyncio.sleep(20.0)
        Asked.objects.clear()
        await asyncio.sleep(RENEW_S + 30.0)
        assert Asked.objects == [("team", True)]
        await stopped(running)

    play(scene)


def test_dropped_marks_are_recovered_by_the_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "DUE_MAX", 2)
    monkeypatch.setattr(statuses_module, "DUE_MAX", 2)

    async def scene(office: Office) -> None:
        running = office.start()
        for number in range(6):
            await office.add_budget(f"b{number}")
        await asyncio.sleep(150.0)
        assert [await office.said(f"b{number}") for number in range(6)] == [sentence(0)] * 6
        assert running[0].statuses.statistics().results[KIND, "dropped"] >= 4
        await stopped(running)

    play(scene)


def test_status_writes_are_counted_by_result() -> None:
    async def scene(office: Office) -> None:
        running = office.start()
        await office.add_budget()
        await office.add_pod("p")
        await asyncio.sleep(20.0)
        readings = read(running[0])
        assert readings.status_writes["poddisruptionbudgets", "written"] == len(office.writes)
        assert readings.statuses_pending == 0
        await stopped(running)

    play(scene)


def test_program_without_status_plugins_has_no_task() -> None:
    async def scene(office: Office) -> None:
        program, task = office.start(text=WITHOUT)
        assert program.statuses.kinds == ()
        await stopped((program, task))

    play(scene)
