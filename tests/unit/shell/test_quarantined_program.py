"""A quarantined pod in the whole program on the embedded API server: what its owner sees of it, and what brings it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from multisched.model.wire import MERGE_PATCH
from multisched.observe.explain_view import ExplainQuery
from multisched.shell.program import Program
from multisched.shell.telemetry import ProgramQueues, read
from multisched.whatif.explain_known import describe, find_pod
from tests.unit.shell.program_kit import PODS
from tests.unit.shell.test_program_lifecycle import ProgramSite, play

WORDS = 'admission webhook "gpu.example.com" denied the request: team a has no contract'


async def relabel_pod(site: ProgramSite) -> None:
    await site.change_metadata("quarantined", labels={"contract": "yes"})


async def relabel_namespace(site: ProgramSite) -> None:
    change = {"metadata": {"labels": {"contract": "yes"}}}
    await site.send("PATCH", "/api/v1/namespaces/default", change, content_type=MERGE_PATCH)


async def wait_for_the_flush(site: ProgramSite) -> None:
    await asyncio.sleep(300.0)


@pytest.mark.parametrize("helps", [relabel_pod, relabel_namespace, wait_for_the_flush])
def test_quarantined_pod_is_shown_with_its_reason_and_returns(
    helps: Callable[[ProgramSite], Coroutine[Any, Any, None]],
) -> None:
    async def scene(site: ProgramSite) -> None:
        program, transport = site.program()
        transport.denied["quarantined"] = WORDS
        running = site.loop.create_task(program.run())
        await site.add_pod("quarantined")
        await asyncio.sleep(40.0)
        await _is_shown(site, program)
        assert transport.bindings == 5

        await site.add_pod("other")
        await asyncio.sleep(40.0)
        assert (await site.node_of("other"), transport.bindings) == ("a", 5 + 1)

        transport.denied.clear()
        await helps(site)
        await asyncio.sleep(20.0)
        assert await site.node_of("quarantined") == "a"
        assert read(program).domains["forecast"].quarantined == 0
        program.stop()
        await running

    play(scene)


async def _is_shown(site: ProgramSite, program: Program) -> None:
    """In the queue, the metrics, the condition and an event."""
    view = ProgramQueues(program, "me").queue(domain="forecast", limit=10)
    (shown,) = view.pods
    assert (shown.name, shown.state, shown.plugins) == ("quarantined", "quarantined", ("APIServer",))
    assert shown.message.startswith("quarantined: the API server has refused this pod 5 times with the same message")
    assert shown.message.endswith(WORDS)
    assert (view.domains[0].counts["quarantined"], view.domains[0].counts["unschedulable"]) == (1, 0)

    reading = read(program).domains["forecast"]
    assert (reading.quarantined, reading.quarantines, reading.pending["unschedulable"]) == (1, 1, 1)
    assert reading.unschedulable_by_plugin == {"APIServer": 1}

    told = describe(program, find_pod(program, "default", "quarantined"), ExplainQuery("default", "quarantined"))
    assert (told.state, [wake.plugin for wake in told.wakes]) == ("quarantined", ["APIServer"])
    assert "a Namespace changes" in told.wakes[0].events

    pod = await site.send("GET", f"{PODS}/quarantined")
    (condition,) = [one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled"]
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "False",
        "SchedulerError",
        shown.message,
    )
    events = await site.send("GET", "/apis/events.k8s.io/v1/namespaces/default/events")
    assert shown.message in {event.get("note") for event in events["items"]}
