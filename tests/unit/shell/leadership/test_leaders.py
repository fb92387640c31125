"""What a replica says of domains it does not lead: who does and where, and nothing of its own."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from multisched.framework.leading import FindLeader, Leader, NotLeadingError, NotLedHere
from multisched.framework.repair import RepairRequest
from multisched.framework.views import ViewQuery
from multisched.observe.explain_view import ExplainQuery, NotExplainedError
from multisched.shell.leadership.leaders import Leaders
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.program import Program
from multisched.shell.telemetry import ProgramQueues
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.repair_source import RepairPlans
from tests.unit.shell.program_kit import at_once
from tests.unit.shell.test_program_lifecycle import LEASES, ProgramSite, play

FIRST = "https://10.0.0.5:10260"
LATE = ExplainQuery("default", "late")


def leaders_of(program: Program) -> FindLeader:
    return Leaders(program.leases, program.ports.identity, program.router.workers).elsewhere


async def two(site: ProgramSite) -> tuple[Program, Program, asyncio.Task[None], asyncio.Task[None]]:
    """The first one leads everything."""
    (first, _), (second, _) = site.program("first"), site.program("second")
    first.leases.answers_at(FIRST)
    leading = site.loop.create_task(first.run())
    await asyncio.sleep(5.0)
    waiting = site.loop.create_task(second.run())
    await asyncio.sleep(5.0)
    return first, second, leading, waiting


def test_standby_names_the_leader_until_it_leads() -> None:
    async def scene(site: ProgramSite) -> None:
        first, second, leading, waiting = await two(site)
        assert leaders_of(first)("forecast") is None
        led = leaders_of(second)("forecast")
        assert led is not None
        assert led.leader is not None
        assert (led.domain, led.leader.identity, led.leader.address) == ("forecast", "first", FIRST)
        assert datetime.fromisoformat(led.leader.since) <= site.clock.now()

        leading.cancel()  # without a word
        await asyncio.gather(leading, return_exceptions=True)
        assert leaders_of(second)("forecast") == led, "as long as the lease has not run out nobody knows better"
        await asyncio.sleep(40.0)
        assert leaders_of(second)("forecast") is None
        second.stop()
        await waiting

    play(scene)


def test_only_a_former_leader_reports_a_released_lease(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def released() -> int:
        return sum(one.message == "lease" and vars(one)["state"] == "RELEASED" for one in caplog.records)

    async def scene(site: ProgramSite) -> None:
        first, second, leading, waiting = await two(site)
        second.stop()
        await waiting
        assert released() == 0
        first.stop()
        await leading
        assert released() > 0

    play(scene)


def test_lost_lease_has_no_known_leader() -> None:
    async def scene(site: ProgramSite) -> None:
        first, second, leading, waiting = await two(site)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert str(leaders_of(second)("gpu")).startswith("domain gpu is led by first since ")
        await asyncio.sleep(60.0)
        assert leaders_of(second)("gpu") == NotLedHere("gpu"), "what it saw last has long run out"
        first.stop()
        await leading
        assert leaders_of(first)("gpu") == NotLedHere("gpu"), "it has given the lease back"

    play(scene)


def test_domain_being_taken_over_reports_it() -> None:
    async def scene(site: ProgramSite) -> None:
        await site.lose_a_leader()
        program, transport = site.program("heir")
        transport.lists.clear()
        running = site.loop.create_task(program.run())
        await asyncio.sleep(30.0)
        led = leaders_of(program)("forecast")
        assert led == NotLedHere("forecast", is_taken_over=True)
        assert (NotLeadingError(led).status, str(led)) == (
            503,
            "domain forecast is being taken over by this replica; ask again in a moment",
        )
        explanations = ProgramExplanations(program, in_thread=at_once, find_leader=leaders_of(program))
        with pytest.raises(NotExplainedError, match="the caches are not synced with the API server") as raised:
            await explanations.pod(LATE)
        assert raised.value.status == 503, "it cannot say that there is no such pod"
        transport.lists.set()
        await asyncio.sleep(30.0)
        assert leaders_of(program)("forecast") is None
        program.stop()
        await running

    play(scene)


@pytest.mark.parametrize(
    ("annotations", "address"),
    [
        (None, ""),
        ({}, ""),
        ({"multisched.io/address": FIRST}, FIRST),
        ({"multisched.io/address": "the second door"}, ""),
        ({"multisched.io/address": f"https://{'a' * 500}:1"}, ""),
    ],
)
def test_foreign_lease_record_is_accepted_unchanged(annotations: dict[str, str] | None, address: str) -> None:
    async def scene(site: ProgramSite) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "multisched-forecast", "annotations": annotations},
            "spec": {"holderIdentity": "stranger", "leaseDurationSeconds": 3600},
        }
        await site.send("POST", LEASES, lease)
        program, _ = site.program("me")
        running = site.loop.create_task(program.run())
        await asyncio.sleep(5.0)
        led = leaders_of(program)("forecast")
        assert led is not None
        assert led.leader == Leader("stranger", address)
        assert 0 < (led.runs_out_in_s or 0.0) <= 3600
        assert NotLeadingError(led).status == 421
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(scene)


def test_explain_refuses_domains_led_elsewhere() -> None:
    async def scene(site: ProgramSite) -> None:
        await site.add_pod("late", cpu="400")
        first, second, leading, waiting = await two(site)
        find = leaders_of(second)
        explanations = ProgramExplanations(second, in_thread=at_once, find_leader=find)
        plans = RepairPlans(second, in_thread=at_once, find_leader=find)
        views = ProgramViews(second, at_once, find)
        asked = RepairRequest(domain="forecast")
        manifest = {"spec": {"schedulerName": "forecast-scheduler", "containers": [{"name": "main", "image": "app"}]}}
        for question in (
            lambda: explanations.pod(LATE),
            lambda: explanations.what_if(manifest, 1),
            lambda: plans.plan(asked),
            lambda: plans.run(asked, "digest"),
            lambda: views.document("forecast", ViewQuery("nodes")),
        ):
            with pytest.raises(NotLeadingError, match=f"^domain forecast is led by first since .* at {FIRST}$"):
                await question()
        with pytest.raises(NotLeadingError):
            plans.status("forecast")
        with pytest.raises(NotExplainedError, match="is not known here"):
            await explanations.pod(ExplainQuery("default", "nobody"))

        view = await ProgramExplanations(first, in_thread=at_once, find_leader=leaders_of(first)).pod(LATE)
        assert (view.state, view.attempts[0].outcome) == ("unschedulable", "refused")
        first.stop()
        await leading
        second.stop()
        await waiting

    play(scene)


def test_queue_shows_led_domains_and_names_other_leaders() -> None:
    async def scene(site: ProgramSite) -> None:
        await site.add_pod("late", cpu="400")
        first, second, leading, waiting = await two(site)
        view = ProgramQueues(second, "second", leaders_of(second)).queue(domain=None, limit=10)
        assert (view.domains, view.pods, view.left_out) == ((), (), 0)
        assert [led.domain for led in view.elsewhere] == ["forecast", "gpu"]
        assert {led.leader and led.leader.address for led in view.elsewhere} == {FIRST}
        with pytest.raises(NotLeadingError, match=r"^domain gpu is led by first since"):
            ProgramQueues(second, "second", leaders_of(second)).queue(domain="gpu", limit=10)

        view = ProgramQueues(first, "first", leaders_of(first)).queue(domain=None, limit=10)
        assert ([pod.name for pod in view.pods], view.elsewhere) == (["late"], ())
        first.stop()
        await leading
        second.stop()
        await waiting

    play(scene)
