"""Pods that no queue holds, the refused and those that a bind found gone: what the audit finds of them, and leaves alone."""

from __future__ import annotations

import asyncio

import pytest

from multisched.model.decode import LABELS_MAX
from tests.unit.shell.audit.test_audit import TWO_PERIODS_S, Stage, play


async def label_beyond_reading(stage: Stage, name: str, value: str | None = "") -> None:
    """By more labels than are read: such a pod is refused. None takes them away."""
    await stage.change_metadata(name, labels=dict.fromkeys(map("l{}".format, range(LABELS_MAX + 1)), value))


@pytest.mark.parametrize("mends", [False, True])
def test_refused_pod_with_a_lost_event_is_corrected_within_two_periods(mends: bool) -> None:
    """It is mended, or deleted, and nobody hears of it."""

    async def scene(stage: Stage) -> None:
        await label_beyond_reading(stage, "huge")
        await asyncio.sleep(1.0)
        stage.transport.loses = lambda line: b'"BOOKMARK"' not in line
        assert [one.pod.name for one in stage.program.pods.refused.values()] == ["huge"]
        await (label_beyond_reading(stage, "huge", None) if mends else stage.delete_pod("huge"))
        await asyncio.sleep(0.5)
        stage.transport.loses = lambda line: False
        await asyncio.sleep(125.0)

        assert not stage.program.pods.refused
        assert stage.is_true()
        assert stage.found.lost >= 1
        assert [pod.name for pod in stage.program.pods.pending.values()] == (["huge"] if mends else [])

    play(scene)


def test_deleted_refused_pod_is_no_longer_reported() -> None:
    async def scene(stage: Stage) -> None:
        await label_beyond_reading(stage, "huge")
        await stage.change_metadata("huge", finalizers=["example.com/keeps"])
        await asyncio.sleep(1.0)
        assert stage.program.pods.refused
        await stage.delete_pod("huge")
        await asyncio.sleep(1.0)
        assert not stage.program.pods.refused
        await asyncio.sleep(125.0)
        assert stage.found.differences == 0

    play(scene)


def test_pod_deleted_before_its_bind_with_a_lost_deletion_is_no_contradiction() -> None:
    async def scene(stage: Stage) -> None:
        stage.transport.loses = lambda line: b'"huge"' in line
        await stage.delete_pod("huge")
        await stage.add_node("large", cpu="200")
        await asyncio.sleep(5.0)
        assert [pod.name for pod in stage.program.pods.pending.values()] == ["huge"]
        assert not any(len(worker.queue) for worker in stage.program.router.workers())
        await asyncio.sleep(TWO_PERIODS_S)
        assert not stage.program.pods.pending
        assert (stage.found.inner, stage.found.lost) == (0, 1)

    play(scene)


def test_changed_refused_pods_are_no_differences() -> None:
    async def scene(stage: Stage) -> None:
        await label_beyond_reading(stage, "huge")
        await asyncio.sleep(1.0)
        before = stage.program.pods.refused[stage.uid("huge")]
        await label_beyond_reading(stage, "huge", "other")
        await asyncio.sleep(125.0)
        assert stage.found.differences == 0
        after = stage.program.pods.refused[stage.uid("huge")]
        assert (after.pod.version != before.pod.version, after.since_s) == (True, before.since_s)

    play(scene)
