"""The judge on a live cluster: its own lists, its own process, what it tells, and what becomes of it when things fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config.options import ExitCode
from multisched.framework.ports import Event
from multisched.model.wire import Response
from multisched.shell.audit.cluster_judge import EVENTS_MAX, FACTORY, ClusterJudge, JudgeError, judge_cluster
from multisched.shell.workers.background_processes import ChildProcess
from multisched.verify import Domain
from tests.unit.verify.clusters import GPU, make_node, make_pod

PODS, NODES = "/api/v1/namespaces/default/pods", "/api/v1/nodes"
DOMAINS = (Domain("work", frozenset({"work-scheduler"}), "rest"), Domain("gpu", frozenset({"gpu-scheduler"}), "gpu"))


class Clock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 7.0


class Answers:
    """A transport that answers some paths by itself."""

    def __init__(self, server: ApiServer, refused: Mapping[str, int]) -> None:
        self._direct = DirectTransport(server)
        self._refused = refused
        self.limits: list[str] = []

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        for part, status in self._refused.items():
            if path.startswith(part) and method == "GET":
                return Response(status, orjson.dumps({"kind": "Status", "code": status, "message": "no"}))
        return await self._direct.request(method, path, **rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._direct, name)


class JudgedCluster:
    def __init__(self, refused: Mapping[str, int] | None = None) -> None:
        self.server = ApiServer(Clock(), seed=0, rbac=False)
        self.transport = Answers(self.server, refused or {})
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        self.events.append(event)

    async def create(self, path: str, document: dict[str, Any]) -> None:
        document["metadata"].pop("uid", None)
        answer = await self.transport.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body

    async def build(self, *pods: tuple[str, str, str]) -> None:
        """(name, node, cpu)"""
        await self.create(NODES, make_node("n1")[1])
        for name, node, cpu in pods:
            _, pod = make_pod(name, node, requests={"cpu": cpu}, schedulerName="work-scheduler")
            pod["spec"]["containers"][0]["image"] = "app"
            await self.create(PODS, pod)

    def judge(self, process: ChildProcess) -> ClusterJudge:
        transport: Any = self.transport
        return ClusterJudge(
            transport, lambda: process, self, Clock(), every_s=10.0, reporter="work-scheduler", may_look=lambda: True
        )


@pytest.fixture
async def process() -> AsyncIterator[ChildProcess]:
    child = ChildProcess(FACTORY, DOMAINS, seed=0)
    yield child
    await child.close()


async def test_judge_run_counts_by_rule_and_reports_the_pods(process: ChildProcess) -> None:
    cluster = JudgedCluster()
    await cluster.build(("fits", "n1", "1"), ("over", "n1", "4"))
    judge = cluster.judge(process)

    await judge.look()

    assert {rule: pods for rule, pods in judge.statistics.violations.items() if pods} == {"resources": 1}
    assert (judge.statistics.runs, judge.statistics.failures) == (1, 0)
    assert [(event.regarding.name, event.type, event.reporter) for event in cluster.events] == [
        ("over", "Warning", "work-scheduler")
    ]
    assert "resources: with it, the node's pods request 5000 of 4000" in cluster.events[0].note
    assert process.pid is None, "its memory is given back between looks"


async def test_each_judge_run_starts_from_scratch(process: ChildProcess) -> None:
    cluster = JudgedCluster()
    await cluster.build(("over", "n1", "5"))
    judge = cluster.judge(process)
    await judge.look()
    await cluster.transport.request("DELETE", f"{PODS}/over?gracePeriodSeconds=0")
    await judge.look()
    assert set(judge.statistics.violations.values()) == {0}
    assert judge.statistics.runs == 2


async def test_judge_knows_the_domains(process: ChildProcess) -> None:
    cluster = JudgedCluster()
    await cluster.create(NODES, make_node("cards", more={GPU: "4"})[1])
    await cluster.build(("lost", "cards", "1"))
    judge = cluster.judge(process)
    await judge.look()
    assert judge.statistics.violations["domain"] == 1


async def test_number_of_judge_events_is_limited(process: ChildProcess) -> None:
    cluster = JudgedCluster()
    await cluster.build(*((f"over-{n}", "n1", "5") for n in range(EVENTS_MAX + 5)))
    judge = cluster.judge(process)
    await judge.look()
    assert judge.statistics.violations["resources"] == EVENTS_MAX + 5
    assert len(cluster.events) == EVENTS_MAX


async def test_verify_command_judges_in_process_and_reports_unread_kinds() -> None:
    cluster = JudgedCluster({"/api/v1/persistentvolumeclaims": 403})
    await cluster.build(("over", "n1", "5"))
    transport: Any = cluster.transport
    found = await judge_cluster(transport, ())
    assert [one.pod for one in found.violations] == ["default/over"]
    assert [(one.rule, one.reason.split(":")[0]) for one in found.not_judged] == [
        ("domain", "needs --config FILE, which also has tolerations that domains add"),
        ("volumes", "PersistentVolumeClaim cannot be listed"),
    ]


@pytest.mark.parametrize(("resource", "is_listed"), [("cpu", False), ("koordinator.sh/gpu-core", True)])
async def test_devices_are_listed_if_a_node_has_koordinator_s_gpus(resource: str, is_listed: bool) -> None:
    cluster = JudgedCluster({"/apis/scheduling.koordinator.sh": 403})
    await cluster.build()
    await cluster.create(NODES, make_node("cards", more={resource: "200"})[1])
    transport: Any = cluster.transport
    unread = (await judge_cluster(transport, ())).not_judged
    assert [one.rule for one in unread if "Device cannot be listed" in one.reason] == (
        ["devices (Koordinator)"] if is_listed else []
    )


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        (NODES, 403, "nodes and pods cannot be listed: 403 : no"),
        ("/api/v1/pods", 500, "nodes and pods cannot be listed: 500 : no"),
        ("/api/v1/pods", 410, "a list's continue token expired in each of 3 attempts; try again"),
    ],
)
async def test_judge_without_nodes_or_pods_gives_no_result(path: str, status: int, words: str) -> None:
    cluster = JudgedCluster({path: status})
    await cluster.build(("over", "n1", "5"))
    transport: Any = cluster.transport
    with pytest.raises(JudgeError) as refused:
        await judge_cluster(transport, ())
    assert refused.value.code == ExitCode.NO_CLUSTER
    assert str(refused.value) == words


async def test_failed_judge_run_keeps_the_last_result_and_no_process(process: ChildProcess) -> None:
    cluster = JudgedCluster({"/api/v1/pods": 500})
    await cluster.build()
    judge = cluster.judge(process)
    with pytest.raises(JudgeError):
        await judge.look()
    assert judge.statistics.runs == 0
    assert process.pid is None


class Garbling(Answers):
    """A server that has an object whose text is not UTF-8."""

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        answer = await super().request(method, path, **rest)
        return Response(answer.status, answer.body.replace(b"GARBLED", b"\xff\xfe"), answer.headers)


async def test_judge_skips_one_object_that_is_not_utf_8(process: ChildProcess) -> None:
    cluster = JudgedCluster()
    await cluster.build(("small", "n1", "1"), ("large", "n1", "100"))
    _, odd = make_pod("odd", "n1", requests={"cpu": "1"}, labels={"note": "GARBLED"})
    odd["spec"]["containers"][0]["image"] = "app"
    await cluster.create(PODS, odd)
    cluster.transport = Garbling(cluster.server, {})

    report = await judge_cluster(cluster.transport, DOMAINS)
    assert {finding.rule for finding in report.violations} == {"resources"}

    judge = cluster.judge(process)
    await judge.look()
    assert judge.statistics.violations["resources"]
