"""Plugins that learn from what becomes of bound pods, in a whole program beside the embedded API server."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.gang import ACK_MIN, ACK_NAME
from multisched.model.pod_outcome import PodOutcome, outcome_of
from multisched.model.wire import MERGE_PATCH, Response
from multisched.shell.audit.auditor import AUDIT_PERIOD_S
from multisched.testing.builders import make_pod
from tests.unit.shell.program_kit import PODS, Cluster, play
from tests.unit.shell.test_history_goes_back import Backup

SEEN: list[tuple[str, str, str, str, float, float]] = []


class Learner:
    """Records what it is told."""

    name = "Learner"

    def pre_enqueue(self, pod: Any) -> Any:
        from multisched.framework.status import SUCCESS

        return SUCCESS

    def see_outcome(self, outcome: PodOutcome) -> None:
        pod = outcome.pod
        found = (pod.name, pod.phase, outcome.reason, outcome.message, outcome.began_s, outcome.ended_s)
        if not SEEN or SEEN[-1] != found:
            SEEN.append(found)
        if pod.name == "odd":
            raise RuntimeError("a plugin that fails must cost nothing")


CONFIGURATION = f"""
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
  - name: all
    schedulerNames: [forecast-scheduler]
    nodes: {{rule: rest}}
    profile: {{plugins: {{enabled: [{{name: "{__name__}:Learner"}}]}}}}
"""


def container(**state: Any) -> dict[str, Any]:
    return {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def test_plugin_learns_how_bound_pods_start_fail_and_end() -> None:
    SEEN.clear()

    async def report(cluster: Cluster, name: str, **status: Any) -> None:
        await cluster.send(
            "PATCH", f"{PODS}/{name}/status", {"status": status}, content_type="application/merge-patch+json"
        )
        await cluster.settle(1.0)

    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("n1")
        for name in ("odd", "good", "failing"):
            await cluster.add_pod(name)
        await cluster.settle()
        await report(cluster, "failing", phase="Pending", reason="ProviderFailed", message="m" * 2000)
        running = container(running={"startedAt": "2026-01-01T00:00:10Z"})
        await report(cluster, "good", phase="Running", containerStatuses=[running])
        await report(cluster, "good", conditions=[{"type": "Ready", "status": "True"}])
        times = {"startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:00:25Z"}
        await report(
            cluster, "good", phase="Succeeded", containerStatuses=[container(terminated={"exitCode": 0, **times})]
        )
        await report(cluster, "failing", phase="Failed", reason="ProviderFailed", message="gone")

    play(scene, configuration=CONFIGURATION)

    begin = 1767225610.0
    assert [found for found in SEEN if found[0] == "good"] == [
        ("good", "Pending", "", "", 0.0, 0.0),
        ("good", "Running", "", "", begin, 0.0),
        ("good", "Succeeded", "", "", begin, begin + 15),
    ]
    assert [found for found in SEEN if found[0] == "failing"] == [
        ("failing", "Pending", "", "", 0.0, 0.0),
        ("failing", "Pending", "ProviderFailed", "m" * 1024, 0.0, 0.0),
        ("failing", "Failed", "ProviderFailed", "gone", 0.0, 0.0),
    ]
    assert [found[0] for found in SEEN].count("odd") == 1


def test_status_that_cannot_be_read_tells_nothing() -> None:
    pod = make_pod("a")
    assert outcome_of(pod, b'{"status": {"containerStatuses": "none"}}') == PodOutcome(pod)


GANG = {ACK_NAME: "g", ACK_MIN: "2"}


async def add_gang(cluster: Cluster) -> None:
    await cluster.add_node("n1")
    await add_members(cluster)


async def add_members(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await cluster.add_pod(name, labels=GANG)


async def succeed(cluster: Cluster, name: str) -> None:
    status = {"status": {"phase": "Succeeded"}}
    await cluster.send("PATCH", f"{PODS}/{name}/status", status, content_type=MERGE_PATCH)


def counted(cluster: Cluster) -> tuple[int, int]:
    """Returns the living and the succeeded members that count for the gang."""
    gang = cluster.program.cache.gangs.gang("default/g")
    return (0, 0) if gang is None else (len(gang.members), gang.succeeded)


def notice_restore(cluster: Cluster) -> None:
    cluster.program.history.went_back("/api/v1/nodes")
    cluster.program.reflectors["nodes"].request_relist()


def lose_ends(line: bytes) -> bytes:
    """Loses the events of ended pods, except those that show the end to a watch of running pods."""
    return b"" if b'"phase":"Succeeded"' in line and line.startswith(b'{"type":"ADDED"') else line


def lose_deletions(line: bytes) -> bytes:
    return b"" if line.startswith(b'{"type":"DELETED"') else line


def as_is(line: bytes) -> bytes:
    return line


def test_audit_finds_the_lost_end_of_a_gang_member() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.transport.said = lose_ends
        await succeed(cluster, "a")
        await cluster.settle()
        assert counted(cluster) == (1, 0)
        cluster.transport.said = as_is
        await cluster.settle(2 * AUDIT_PERIOD_S + 10)
        assert counted(cluster) == (1, 1)
        assert cluster.program.audit.statistics().lost == 1

    play(scene, prepare=add_gang)


def test_audit_finds_the_lost_deletion_of_a_succeeded_member() -> None:
    async def scene(cluster: Cluster) -> None:
        await succeed(cluster, "a")
        await cluster.settle()
        cluster.transport.said = lose_deletions
        await cluster.delete_pod("a")
        await cluster.settle()
        assert counted(cluster) == (1, 1)
        cluster.transport.said = as_is
        await cluster.settle(2 * AUDIT_PERIOD_S + 10)
        assert counted(cluster) == (1, 0), "without an owner it might be of an earlier run"

    play(scene, prepare=add_gang)


@pytest.mark.parametrize("was_bound", [True, False], ids=["bound", "pending"])
@pytest.mark.parametrize("first", ["running", "ended"])
def test_ended_member_is_one_again_after_a_restored_backup(first: str, *, was_bound: bool) -> None:
    """`first`: the pods that are listed first. `was_bound`: the member had a node in the backup."""

    async def scene(cluster: Cluster) -> None:
        if not was_bound:
            backup = Backup(cluster)
        await cluster.add_node("n1")
        await cluster.settle()
        if was_bound:
            backup = Backup(cluster)
        await succeed(cluster, "a")
        await cluster.settle()
        assert counted(cluster) == (1, 1)
        excluded = {"running": "Running", "ended": "Succeeded"}[first]  # by the field selector of the other list
        refused = Response(500, b"")
        cluster.transport.answer = lambda method, path: (
            refused if path.startswith("/api/v1/pods?limit=1000") and excluded in path else None
        )
        backup.restore()
        notice_restore(cluster)
        await cluster.settle(60.0)
        assert not cluster.program.history.is_trusted
        cluster.transport.answer = lambda method, path: None
        when_trusted = list[tuple[int, int]]()
        cluster.program.history.on_change(lambda is_trusted: when_trusted.append(counted(cluster)))
        await cluster.settle(60.0)
        assert when_trusted == [(2, 0)]

    play(scene, prepare=add_members)


def test_end_that_a_new_history_has_overtaken_is_found_by_a_list() -> None:
    """If any reflector finds that a backup was restored, ended pods are listed again."""

    async def scene(cluster: Cluster) -> None:
        backup = Backup(cluster)
        for number in range(20):
            await cluster.change_metadata("b", labels={"number": str(number)})
        await cluster.settle(130.0)  # all watches have got bookmarks with versions that the backup does not have
        backup.restore()
        await succeed(cluster, "a")
        for number in range(40):
            await cluster.change_metadata("b", labels={"number": str(number)})
        await cluster.settle(1.0)
        assert counted(cluster) == (2, 0)
        notice_restore(cluster)
        await cluster.settle(10.0)
        assert counted(cluster) == (1, 1)

    play(scene, prepare=add_gang)
