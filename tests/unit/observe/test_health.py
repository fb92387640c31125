"""Liveness and readiness: named checks, asked when a probe comes."""

from __future__ import annotations

import anyio
import pytest

from multisched.observe.health import HEARTBEAT_AGE_MAX_S, Health, Heartbeat
from tests.unit.observe.observe_kit import HandClock


def test_health_is_not_ready_before_the_start() -> None:
    assert not Health().readiness().is_good
    assert Health().liveness().is_good


def test_ready_requires_every_check() -> None:
    health, missing = Health(), ["pods", "nodes"]
    for kind in ("pods", "nodes"):
        health.add_readiness(kind, lambda kind=kind: "not synced" if kind in missing else "")  # type: ignore[misc]
    assert health.readiness().findings == {"pods": "not synced", "nodes": "not synced", "shutdown": ""}
    missing.remove("pods")
    assert not health.readiness().is_good
    missing.remove("nodes")
    assert health.readiness().is_good


def test_stopping_program_is_alive_but_not_ready() -> None:
    health = Health()
    health.add_readiness("caches", lambda: "")
    health.stop()
    assert health.readiness().findings["shutdown"] == "shutting down"
    assert health.liveness().is_good


def test_health_check_names_are_unique() -> None:
    health = Health()
    health.add_liveness("loop", lambda: "")
    with pytest.raises(AssertionError):
        health.add_liveness("loop", lambda: "")


async def test_stalled_loop_is_not_alive() -> None:
    clock = HandClock()
    heartbeat = Heartbeat(clock, Health())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat.run)
        await anyio.lowlevel.checkpoint()
        clock.at_s = HEARTBEAT_AGE_MAX_S
        assert heartbeat.check() == ""
        clock.at_s = HEARTBEAT_AGE_MAX_S + 5
        assert heartbeat.check() == "the event loop last ran 25 s ago"
        tasks.cancel_scope.cancel()


def test_remark_is_shown_and_fails_no_check() -> None:
    health = Health()
    health.add_readiness("caches", lambda: "")
    health.add_remark("plugins", lambda: "profiles 3, 2 h old; 4 refits failed,\nthe last 1 min ago: down")
    health.add_remark("background_tasks", lambda: "")
    report = health.readiness()
    assert report.is_good
    assert report.render().splitlines() == [
        "[+]caches ok",
        "[+]shutdown ok",
        "[+]plugins ok: profiles 3, 2 h old; 4 refits failed, the last 1 min ago: down",
        "[+]background_tasks ok",
        "ok",
    ]
