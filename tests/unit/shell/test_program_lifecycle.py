"""Start and stop of the whole program on the embedded API server: nothing is bound too early, nothing is left half done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.config.nodes import NodeSelection, lease_groups, lease_groups_of
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import ConnectFailedError, LineStream, Response
from multisched.shell.leadership.lease_runner import LeasesOnLoop
from multisched.shell.program import DRAIN_S, EVENTS_DRAIN_S, LeaseLostError, Program, ProgramPorts
from multisched.shell.telemetry import ProgramQueues, read, statistics_of
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimLoop, simulate
from multisched.testing.virtual_workers import VirtualThreads
from tests.kit.checkers.invariants import differences
from tests.unit.shell.program_kit import Site

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
- name: gpu
"""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


class LateLines:
    """A watch whose lines come only once the transport hears again."""

    def __init__(self, inner: LineStream, hears: asyncio.Event) -> None:
        self._inner, self._hears = inner, hears
        self.status, self.headers = inner.status, inner.headers

    async def read_body(self) -> bytes:
        return await self._inner.read_body()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._inner:
            await self._hears.wait()
            yield line


class SlowTransport(DirectTransport):
    """Holds bindings for `hold_s` before the server sees them, and counts them; may be cut off from the leases, and its
    watches hear nothing while `hears` is not set, nor lists of pods while `lists` is not. Bindings of the pods in `denied`
    are refused with those words, as a webhook does."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.hold_s = 0.0
        self.bindings = 0
        self.lists_of_nodes_pods = 0
        self.was_used = asyncio.Event()
        self.is_cut = False
        self.hears = asyncio.Event()
        self.hears.set()
        self.lists = asyncio.Event()
        self.lists.set()
        self.denied: dict[str, str] = {}

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        async with super().stream(path, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s) as lines:
            yield LateLines(lines, self.hears)

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        if "/binding" in path:
            self.bindings += 1
            self.was_used.set()
            await asyncio.sleep(self.hold_s)
            words = self.denied.get(path.split("/pods/")[1].split("/")[0])
            if words is not None:
                return Response(403, orjson.dumps({"kind": "Status", "status": "Failure", "message": words}), {})
        if "/pods?" in path:
            await self.lists.wait()
        self.lists_of_nodes_pods += "fieldSelector=spec.nodeName" in path
        if self.is_cut and "/leases" in path:
            raise ConnectFailedError("cut")
        return await super().request(method, path, **rest)


class LateWord(LeasesOnLoop):
    """What becomes of leases is told late, as from a thread to a busy loop."""

    def __init__(self, transport: DirectTransport, late_s: float) -> None:
        super().__init__(transport)
        self._late_s = late_s

    def call_on_loop(self, function: Callable[..., object], *args: object) -> None:
        if self._late_s:
            asyncio.get_running_loop().call_later(self._late_s, function, *args)
        else:
            function(*args)


class ProgramSite(Site):
    """A site, and programs that run against it."""

    async def lose_a_leader(self) -> None:
        """A program leads for a while, and dies without a word."""
        first, _ = self.program("first")
        leading = self.loop.create_task(first.run())
        await asyncio.sleep(2.0)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    async def holders(self) -> set[str]:
        leases = await self.send("GET", LEASES)
        return {lease["spec"].get("holderIdentity") or "" for lease in leases["items"]}

    def program(
        self, identity: str = "me", configuration: str = CONFIGURATION, *, leases_late_s: float = 0.0
    ) -> tuple[Program, SlowTransport]:
        transport = SlowTransport(self.server)
        ports = ProgramPorts(
            transport,
            self.clock,
            random.Random(1),
            identity,
            "kube-system",
            observer=lambda name: QuietObserver(),
            lease_runner=LateWord(transport, leases_late_s),
            background_threads=VirtualThreads,
        )
        return Program(loading.parse(configuration, "test"), ports), transport


def play(scene: Callable[[ProgramSite], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(seed=5)

    async def main() -> None:
        site = ProgramSite(loop)
        await site.add_node("a")
        await site.add_node("gpu", gpus=2)
        await scene(site)

    simulate(main(), loop)


def test_stopped_program_ends_at_once_and_releases_its_leases() -> None:
    async def scene(site: ProgramSite) -> None:
        program, _ = site.program()
        running = site.loop.create_task(program.run())
        await site.add_pod("p")
        await asyncio.sleep(5.0)
        assert program.is_ready
        assert await site.node_of("p") == "a"
        assert await site.holders() == {"me"}

        began = site.loop.time()
        program.stop()
        await running
        assert site.loop.time() - began < 1.0
        assert await site.holders() == {""}
        assert program.is_closing
        assert not program.is_ready
        assert differences(program, site.server) == []

    play(scene)


def test_stop_waits_for_binds_in_flight_and_starts_no_more() -> None:
    async def scene(site: ProgramSite) -> None:
        program, transport = site.program()
        running = site.loop.create_task(program.run())
        await asyncio.sleep(5.0)
        transport.hold_s = 3.0
        await site.add_pod("p")
        await asyncio.sleep(0.5)
        began = site.loop.time()
        program.stop()
        await asyncio.sleep(0.1)
        await site.add_pod("late")
        await running
        assert 1.5 < site.loop.time() - began < DRAIN_S
        assert await site.node_of("p") == "a"
        assert await site.node_of("late") == ""
        assert await site.holders() == {""}

    play(scene)


@pytest.mark.parametrize(
    ("per_domain", "expected"),
    [("true", {"forecast": "me", "gpu": ""}), ("false", {"forecast": "me"})],
    ids=["a lease per domain", "one lease, whose other domain has no binds"],
)
def test_stop_with_a_hung_bind_lets_its_lease_expire(per_domain: str, expected: dict[str, str]) -> None:
    """A successor of a lease that was given back would not wait for that bind, and might fill the row (I1)."""

    async def scene(site: ProgramSite) -> None:
        program, transport = site.program(configuration=f"{CONFIGURATION}\nlease: {{perDomain: {per_domain}}}\n")
        running = site.loop.create_task(program.run())
        await asyncio.sleep(5.0)
        transport.hold_s = 100.0
        await site.add_pod("p")
        await asyncio.sleep(0.5)
        began = site.loop.time()
        program.stop()
        await running
        assert site.loop.time() - began <= DRAIN_S + 2 * EVENTS_DRAIN_S + 1.0
        leases = await site.send("GET", LEASES)
        holders = {lease["metadata"]["name"]: lease["spec"].get("holderIdentity") or "" for lease in leases["items"]}
        assert {name.split("-")[-1]: holder for name, holder in holders.items()} == expected
        assert {entry.pod.name for entry in program.cache if program.cache.is_assumed(entry.pod.uid)} == {"p"}

    play(scene)


def test_lost_lease_ends_the_program() -> None:
    async def scene(site: ProgramSite) -> None:
        program, transport = site.program()
        running = site.loop.create_task(program.run())
        await asyncio.sleep(5.0)
        transport.is_cut = True
        with pytest.raises(BaseExceptionGroup) as caught:
            await running
        assert caught.group_contains(LeaseLostError)
        assert transport.bindings == 0

    play(scene)


def test_standby_binds_at_once_after_the_leader_ended_and_not_before() -> None:
    async def scene(site: ProgramSite) -> None:
        (first, _), (second, standby) = site.program("first"), site.program("second")
        leading = site.loop.create_task(first.run())
        await asyncio.sleep(2.0)
        waiting = site.loop.create_task(second.run())
        for number in range(3):
            await site.add_pod(f"p{number}")
        await site.add_pod("bad", tolerations=[{"key": f"k{number}"} for number in range(257)])
        await asyncio.sleep(20.0)
        assert standby.bindings == 0
        assert all(worker.is_leading for worker in first.router.workers())
        assert not any(worker.is_leading for worker in second.router.workers())
        assert (first.conditions.statistics().written, second.conditions.statistics().written) == (1, 0)
        assert second.conditions.statistics().backlog == 0

        first.stop()
        await leading
        await site.add_pod("next")
        await asyncio.sleep(4.0)
        assert await site.node_of("next") == "a"
        assert standby.bindings == 1
        assert second.conditions.statistics().written == 1  # of the bad one: nobody else will tell its owner any more
        second.stop()
        await waiting

    play(scene)


def test_new_leader_with_stale_watches_sees_the_binds_of_the_old_one() -> None:
    async def scene(site: ProgramSite) -> None:
        (first, transport), (second, standby) = site.program("first"), site.program("second")
        leading = site.loop.create_task(first.run())
        await asyncio.sleep(2.0)
        waiting = site.loop.create_task(second.run())
        await asyncio.sleep(5.0)
        transport.hold_s = 2.0
        await site.add_pod("large", cpu="3")
        await asyncio.sleep(0.5)
        await site.add_pod(
            "next", cpu="2", limits={"cpu": "2", "memory": "64Mi"}
        )  # no room beside the large one, but first in the queue
        await asyncio.sleep(0.5)
        standby.hears.clear()  # it has heard of both pods, and does not hear that one is bound
        await asyncio.sleep(2.0)
        assert await site.node_of("large") == "a"
        first.stop()
        await leading
        await asyncio.sleep(5.0)
        assert all(worker.is_leading for worker in second.router.workers())
        assert standby.bindings == 0
        assert await site.node_of("next") == ""
        standby.hears.set()
        second.stop()
        await waiting

    play(scene)


def test_process_that_loses_the_lease_during_its_list_does_not_lead() -> None:
    async def scene(site: ProgramSite) -> None:
        (first, _), (second, standby) = site.program("first"), site.program("second")
        leading = site.loop.create_task(first.run())
        await asyncio.sleep(2.0)
        waiting = site.loop.create_task(second.run())
        await asyncio.sleep(5.0)
        standby.lists.clear()
        first.stop()
        await leading
        await asyncio.sleep(5.0)
        assert await site.holders() == {"second"}
        standby.is_cut = True
        await asyncio.sleep(12.0)
        standby.lists.set()
        await asyncio.sleep(1.0)
        assert not any(worker.is_leading for worker in second.router.workers())
        assert not waiting.done()
        standby.is_cut = False
        await site.add_pod("p")
        await asyncio.sleep(30.0)
        assert await site.node_of("p") == "a"
        second.stop()
        await waiting

    play(scene)


def test_new_leader_waits_one_bind_deadline_after_an_expired_lease() -> None:
    async def scene(site: ProgramSite) -> None:
        await site.lose_a_leader()
        died = site.loop.time()
        assert await site.holders() == {"first"}

        second, transport = site.program("second")
        waiting = site.loop.create_task(second.run())
        await site.add_pod("p")
        await transport.was_used.wait()
        waited = site.loop.time() - died
        assert waited >= 15.0 + 5.0
        assert waited < 15.0 + 5.0 + 6.0
        second.stop()
        await waiting

    play(scene)


def test_lease_lost_and_regained_unnoticed_is_led() -> None:
    async def scene(site: ProgramSite) -> None:
        program, _ = site.program(leases_late_s=4.0)
        running = site.loop.create_task(program.run())
        await asyncio.sleep(1.0)
        assert await site.holders() == {"me"}
        for lease in (await site.send("GET", LEASES))["items"]:
            lease["spec"]["holderIdentity"] = "another"
            await site.send("PUT", f"{LEASES}/{lease['metadata']['name']}", lease)
        await asyncio.sleep(60.0)
        await site.add_pod("p")
        await asyncio.sleep(5.0)
        assert await site.holders() == {"me"}
        assert await site.node_of("p") == "a"
        program.stop()
        await running

    play(scene)


def test_leader_of_all_domains_lists_no_pods_per_node() -> None:
    """Its own list has all binds of the last leader. With thousands of nodes a question about each would take minutes."""

    async def scene(site: ProgramSite) -> None:
        await site.lose_a_leader()

        second, transport = site.program("second")
        waiting = site.loop.create_task(second.run())
        await site.add_pod("p")
        await asyncio.sleep(30.0)
        assert await site.node_of("p") == "a"
        assert transport.lists_of_nodes_pods == 0
        second.stop()
        await waiting

    play(scene)


# -- what it shows of itself ---------------------------------------------------------------------------------------------


def test_queues_and_metrics_show_pending_pods_with_reasons() -> None:
    async def scene(site: ProgramSite) -> None:
        program, _ = site.program()
        running = site.loop.create_task(program.run())
        await site.add_pod("small")
        await site.add_pod("huge", cpu="100")
        await asyncio.sleep(5.0)

        view = ProgramQueues(program, "me").queue(domain=None, limit=10)
        (pod,) = view.pods
        assert (pod.domain, pod.name, pod.state, pod.plugins) == (
            "forecast",
            "huge",
            "unschedulable",
            ("NodeResourcesFit",),
        )
        assert pod.message.startswith("0/1 nodes are available: 1 Insufficient cpu.")
        assert pod.waiting_s == pytest.approx(5.0, abs=1.0)
        assert [domain.domain for domain in view.domains] == ["forecast", "gpu"]
        assert all(domain.is_leading for domain in view.domains)
        cut = ProgramQueues(program, "me").queue(domain="forecast", limit=0)
        assert (cut.pods, cut.left_out) == ((), 1)
        assert ProgramQueues(program, "me").queue(domain="gpu", limit=10).pods == ()

        readings = read(program)
        assert readings.cached == {"nodes": 2, "pods": 1, "assumed_pods": 0}
        forecast = readings.domains["forecast"]
        assert forecast.pending["unschedulable"] == 1
        assert (forecast.in_flight, forecast.binds_in_flight, forecast.unknown_binds) == (0, 0, 0)
        assert (forecast.records["placed"], forecast.records["rare_pods"]) == (1, 1)
        assert forecast.is_lease_held
        lists = {kind: reading.lists for kind, reading in readings.reflectors.items()}
        assert {"nodes", "pods", "persistentvolumes", "persistentvolumeclaims", "storageclasses"} <= lists.keys()
        optional = {kind.resource for kind in ObjectKind if kind.definition.is_optional}
        unread = {ObjectKind.RESOURCE_SLICE, ObjectKind.RESOURCE_POLICY, ObjectKind.SLICE_SET}
        not_installed = optional - {kind.resource for kind in unread}
        assert {kind for kind, count in lists.items() if not count} == not_installed
        assert statistics_of(program)["forecast"]["bound"] == 1
        program.stop()
        await running

    play(scene)


@pytest.mark.parametrize(
    ("loans", "groups"),
    [
        ("", {"forecast": "forecast", "gpu": "gpu", "job": "job"}),
        ("job: forecast", {"forecast": "forecast", "gpu": "gpu", "job": "forecast"}),
        ("job: gpu, gpu: forecast", {"forecast": "forecast", "gpu": "forecast", "job": "forecast"}),
        ("forecast: job", {"forecast": "forecast", "gpu": "gpu", "job": "forecast"}),
    ],
)
def test_domains_with_own_leases_share_one_if_they_share_rows(loans: str, groups: dict[str, str]) -> None:
    borrowed = dict(pair.split(": ") for pair in loans.split(", ")) if loans else {}
    lines = ["apiVersion: multisched.io/v1", "kind: MultischedConfiguration", "domains:"]
    for name in ("forecast", "gpu", "job"):
        lines.append(f"- name: {name}")
        if name in borrowed:
            lines += ["  loans:", f"  - from: {borrowed[name]}", '    selector: {matchLabels: {lend: "yes"}}']
    apart, together = (
        lease_groups_of(loading.parse("\n".join((*lines, f"lease: {{perDomain: {each}}}")), "test"))
        for each in ("true", "false")
    )
    assert apart == groups
    assert together == dict.fromkeys(groups, "forecast")


def test_domains_share_a_lease_so_that_quotas_hold_across_them() -> None:
    assert lease_groups_of(loading.default()) == dict.fromkeys(("forecast", "gpu", "job"), "forecast")


def test_selection_without_lease_groups_has_one_lease_per_domain() -> None:
    default = NodeSelection.of(loading.default())
    assert lease_groups(NodeSelection.read(default.written()) or NodeSelection()) == lease_groups(default)
    before = NodeSelection.read('{"domains":[{"name":"forecast"},{"name":"gpu"}]}')
    assert before is not None
    assert lease_groups(before) == {"forecast": "forecast", "gpu": "gpu"}


def test_judge_runs_only_if_configured() -> None:
    async def scene(site: ProgramSite) -> None:
        program, _ = site.program()
        assert program.judge is None
        judged, _ = site.program(configuration=f"{CONFIGURATION}\nverify: {{every: 10m}}\n")
        assert judged.judge is not None
        assert judged.judge.statistics.runs == 0

    play(scene)
