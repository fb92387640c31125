"""Two processes on the real control plane: one is killed or asked to go in the middle of a burst, the other goes on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from tests.real import burst
from tests.real.admin import Admin
from tests.real.audit_log import Call, bound, calls, denied, premature_rebinds, unknown
from tests.real.control_plane import ControlPlane
from tests.real.deployed import LEASE, USER, Deployed, Scheduler
from tests.real.witness import GPU, Witness, device_overlaps

pytestmark = pytest.mark.timeout(240)

DOMAINS = ("forecast", "gpu", "job")
PODS = 2_400
KILL_AT = 600
LEASE_TERM = timedelta(seconds=15)
BIND_DEADLINE = timedelta(seconds=5)
TAKEOVER_LIMIT = timedelta(seconds=30)
"""From the death of a leader: lease, bind deadline, a retry period, a list."""
HANDOVER_PODS = 1_200
STOP_AT = 300
HANDOVER_LIMIT = timedelta(seconds=5)
"""From the last bind of a leader that was asked to go: a retry period, a list."""
STOP_GRACE_S = 30.0
BOUND_LIMIT_S = 90.0


async def test_other_process_takes_over_from_a_killed_leader(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(burst.nodes())
        deployed = await Deployed.install(plane)
        first = await deployed.start("first")
        await first.wait_leading(admin)
        second = await deployed.start("second")
        await second.wait_ready()
        async with Witness.watching(admin) as witness, anyio.create_task_group() as tasks:
            tasks.start_soon(admin.create_all, burst.pods("pod", PODS))
            await witness.wait(lambda: witness.bound >= KILL_AT, BOUND_LIMIT_S)
            killed_at = datetime.now(UTC)
            assert await first.program.kill() == -9
            assert witness.bound < PODS, "the burst was over before the leader was killed"
            await witness.wait(lambda: witness.bound == PODS, BOUND_LIMIT_S)
        assert await second.program.stop(STOP_GRACE_S) == 0
        seen = audited(plane)
        check(witness, seen, [first, second], PODS)
        earliest = last_renewal(first, seen) + LEASE_TERM + BIND_DEADLINE
        for domain in DOMAINS:
            own = {uid for uid, pod in witness.pods.items() if pod["spec"]["schedulerName"] == f"{domain}-scheduler"}
            took_over_at = next(call.received_at for call in binds_of(second, seen) if call.pod_uid in own)
            assert earliest < took_over_at < killed_at + TAKEOVER_LIMIT


async def test_terminated_leader_hands_over_at_once(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(burst.nodes())
        deployed = await Deployed.install(plane)
        first = await deployed.start("first")
        await first.wait_leading(admin)
        second = await deployed.start("second")
        await second.wait_ready()
        async with Witness.watching(admin) as witness, anyio.create_task_group() as tasks:
            tasks.start_soon(admin.create_all, burst.pods("pod", HANDOVER_PODS))
            await witness.wait(lambda: witness.bound >= STOP_AT, BOUND_LIMIT_S)
            assert await first.program.stop(STOP_GRACE_S) == 0
            await witness.wait(lambda: witness.bound == HANDOVER_PODS, BOUND_LIMIT_S)
        assert await second.program.stop(STOP_GRACE_S) == 0
        seen = audited(plane)
        check(witness, seen, [first, second], HANDOVER_PODS)
        pause = binds_of(second, seen)[0].received_at - binds_of(first, seen)[-1].ended_at
        assert timedelta(0) < pause < HANDOVER_LIMIT


def audited(plane: ControlPlane) -> list[Call]:
    assert plane.audit_log is not None
    return calls(plane.audit_log)


def check(witness: Witness, seen: Iterable[Call], schedulers: Iterable[Scheduler], pods: int) -> None:
    """Nothing lost, nothing bound twice, nothing overcommitted, nothing denied."""
    assert len(witness.pods) == witness.bound == pods
    assert witness.moved == []
    assert witness.overcommitted == []
    devices = {n["metadata"]["name"]: int(n["status"]["allocatable"].get(GPU, 0)) for n in burst.nodes()}
    assert device_overlaps(witness.pods.values(), devices) == []
    accepted = bound(seen)
    assert set(accepted.values()) == {1}
    # What a process had sent when it was killed is stored or not, and answered to nobody: the other has to look.
    unanswered = {uid: node for uid, node in witness.node_of.items() if uid not in accepted}
    assert unanswered.items() <= unknown(seen)
    assert premature_rebinds(seen) == []
    assert denied(seen, USER) == []
    assert [line for each in schedulers for line in (*each.denials(), *each.failures())] == []


def binds_of(scheduler: Scheduler, seen: Iterable[Call]) -> list[Call]:
    """Its binding requests, in the order in which they came."""
    found = [call for call in seen if call.is_bind and call.credential == scheduler.credential]
    return sorted(found, key=lambda call: call.received_at)


def last_renewal(scheduler: Scheduler, seen: Iterable[Call]) -> datetime:
    """When it last wrote the lease of all domains."""
    return max(
        call.received_at
        for call in seen
        if call.credential == scheduler.credential
        and (call.verb, call.resource, call.name, call.code) == ("update", "leases", LEASE, 200)
    )
