"""A live pod that does not fit is explained, mended as the explanation says, and bound; and what-if comes true."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
import pytest
import yaml
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.cluster.api.direct import DirectTransport
from multisched.model.wire import MERGE_PATCH
from multisched.observe.explain_view import ExplainQuery, Fix, NotExplainedError, PodView, WhatIfView
from multisched.observe.health import Health
from multisched.observe.metrics import Metrics
from multisched.observe.server import ServerSettings, Sources, serve
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.telemetry import ProgramQueues
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.repair_source import RepairPlans
from tests.integration.plugins.faulty import VICTIM
from tests.integration.plugins.program_cluster import ProgramCluster, one_domain, open_cluster

REQUESTS = {"cpu": "1100m", "memory": "1Gi"}
SPEC = {
    "schedulerName": "tests-scheduler",
    "containers": [{"name": "main", "image": "app:v1", "resources": {"requests": REQUESTS}}],
}
LATE = ExplainQuery("default", "late", with_fixes=True)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[ProgramCluster, ProgramExplanations]]:
    text = one_domain()
    async with open_cluster(text) as cluster:
        yield cluster, ProgramExplanations(cluster.program)


async def refused(cluster: ProgramCluster, name: str) -> None:
    await cluster.until(lambda: (entry := cluster.waiting(name)) is not None and entry.state.value == "unschedulable")


async def patch(cluster: ProgramCluster, path: str, body: object, kind: str = MERGE_PATCH) -> None:
    transport = DirectTransport(cluster.server)
    answer = await transport.request("PATCH", f"/api/v1/{path}", body=orjson.dumps(body), content_type=kind)
    assert answer.status == 200, answer.body


def fix_of(view: PodView, kind: str) -> Fix:
    assert view.fixes is not None
    return next(fix for fix in view.fixes if fix.kind == kind)


async def test_failed_plugin_has_its_own_heading() -> None:
    faulty = {
        "name": "tests.integration.plugins.faulty:Faulty",
        "args": {"point": "Filter", "how": "raise", "times": 9},
    }
    async with open_cluster(one_domain(faulty)) as cluster:
        await cluster.node("n1")
        await cluster.pod(VICTIM)
        await cluster.until(lambda: (entry := cluster.waiting(VICTIM)) is not None and entry.state.value == "backoff")

        view = await ProgramExplanations(cluster.program).pod(ExplainQuery("default", VICTIM))

        last = view.attempts[0].points[-1]
        assert (last.point, last.plugin) == ("failed", "Faulty"), "not as if PreEnqueue had said it"


async def test_pending_pod_is_explained_from_its_records() -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("small", cpu="1")
        await cluster.node("other", cpu="1")
        await cluster.pod("late", cpu="4")
        await refused(cluster, "late")

        view = await explanations.pod(ExplainQuery("default", "late"))

        assert (view.state, view.now, view.attempts_made) == ("unschedulable", None, 1)
        attempt = view.attempts[0]
        assert attempt.message.startswith("0/2 nodes are available: 2 Insufficient cpu.")
        (verdict,) = attempt.refused
        assert (verdict.plugin, verdict.reasons, verdict.count) == ("NodeResourcesFit", ("Insufficient cpu",), 2)
        assert verdict.nodes == ("other", "small")
        assert [step.state for step in view.history] == ["active", "in-flight", "unschedulable"]
        assert "a node is added or changes its allocatable" in view.wakes[0].events
        node = await explanations.pod(ExplainQuery("default", "late", node="small"))
        assert node.on_node is not None
        assert node.on_node.text == "It is not feasible: NodeResourcesFit: Insufficient cpu."


async def test_trial_has_raw_scores_and_records_have_none() -> None:
    async with opened() as (cluster, explanations):
        liked = [
            {
                "weight": weight,
                "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": [disk]}]},
            }
            for disk, weight in (("ssd", 60), ("hdd", 15))
        ]
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
        await cluster.node("n1", cpu="8", labels={"disk": "ssd"})
        await cluster.node("n2", cpu="8", labels={"disk": "hdd"})
        await cluster.node("n3", cpu="8", taints=[{"key": "old", "value": "", "effect": "PreferNoSchedule"}])
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": liked}}
        await cluster.pod("web-1", cpu="1", labels={"app": "web"}, nodeName="n1")
        await cluster.pod(
            "web-2", cpu="1", labels={"app": "web"}, affinity=affinity, topologySpreadConstraints=[spread]
        )
        await cluster.bound("web-2")

        view = await explanations.pod(ExplainQuery("default", "web-2", with_now=True))

        assert view.now is not None
        assert view.now.winner is not None
        rows = {one.node: {part.plugin: part for part in one.parts} for one in (view.now.winner, *view.now.runners_up)}
        raw = {node: {name: part.raw for name, part in parts.items()} for node, parts in rows.items()}
        assert [raw[node]["NodeAffinity"] for node in ("n1", "n2", "n3")] == [60, 15, 0]
        assert [rows[node]["NodeAffinity"].score for node in ("n1", "n2", "n3")] == [100, 25, 0]
        assert [raw[node]["TaintToleration"] for node in ("n1", "n2", "n3")] == [0, 0, 1]
        assert [rows[node]["TaintToleration"].score for node in ("n1", "n2", "n3")] == [100, 100, 0]
        counted = [raw[node]["PodTopologySpread"] or 0 for node in ("n1", "n2", "n3")]
        assert counted[0] > counted[1] == counted[2], "n1 has another pod of it; fewer is better"
        assert all(part.raw == part.score for parts in rows.values() for part in parts.values() if "Fit" in part.plugin)
        parts = view.attempts[0].winner.parts if view.attempts[0].winner else ()
        assert parts
        assert {part.raw for part in parts} == {None}
        assert (await explanations.pod(ExplainQuery("default", "web-2"))).now is None


async def test_toleration_of_a_fix_makes_the_pod_bind() -> None:
    async with opened() as (cluster, explanations):
        taints = [{"key": "team", "value": "search", "effect": "NoSchedule"}]
        await cluster.node("n1", taints=taints)
        await cluster.pod("late", cpu="1")
        await refused(cluster, "late")
        fix = fix_of(await explanations.pod(LATE), "toleration")
        assert fix.node == "n1"

        operations = json.loads(fix.command.partition(" -p '")[2].removesuffix("'"))
        await patch(cluster, "namespaces/default/pods/late", operations, "application/json-patch+json")
        await cluster.bound("late")

        view = await explanations.pod(ExplainQuery("default", "late"))
        assert (view.state, view.node, view.attempts[0].outcome) == ("bound", "n1", "placed")
        assert [attempt.number for attempt in view.attempts] == [2, 1]
        await cluster.at_rest()


async def test_label_of_a_fix_makes_the_pod_bind() -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("n1")
        await cluster.pod("late", cpu="1", nodeSelector={"disk": "ssd"})
        await refused(cluster, "late")
        change = fix_of(await explanations.pod(LATE), "node").change

        await patch(cluster, f"nodes/{change['node']}", {"metadata": {"labels": {change["label"]: change["value"]}}})
        await cluster.bound("late")


async def test_victim_of_a_fix_makes_room() -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("n1", cpu="4")
        await cluster.pod("large", cpu="3")
        await cluster.bound("large")
        await cluster.pod("late", cpu="2")
        await refused(cluster, "late")
        change = fix_of(await explanations.pod(LATE), "victim").change

        await cluster.delete(f"namespaces/{change['namespace']}/pods/{change['name']}")
        await cluster.bound("late")


async def test_gate_is_named_with_the_next_obstacle() -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("n1")
        await cluster.pod("late", cpu="1", schedulingGates=[{"name": "example.com/quota"}])
        await cluster.until(lambda: cluster.waiting("late") is not None)

        view = await explanations.pod(LATE)

        assert view.state == "gated"
        assert "SchedulingGates" in view.waiting_for
        assert view.now is not None
        assert view.now.outcome == "placed"
        fix = fix_of(view, "gate")
        operations = json.loads(fix.command.partition(" -p '")[2].removesuffix("'"))
        await patch(cluster, "namespaces/default/pods/late", operations, "application/json-patch+json")
        await cluster.bound("late")


async def test_what_if_equals_what_the_scheduler_then_does() -> None:
    async with opened() as (cluster, explanations):
        for index in range(4):
            await cluster.node(f"n{index}", cpu=str(3 + 4 * index))
        await cluster.pod("before", cpu="1500m")
        await cluster.bound("before")
        manifest = {"kind": "Pod", "metadata": {"name": "new"}, "spec": SPEC}

        foretold = await explanations.what_if(manifest, 30)

        assert not any(name.startswith("new") for name in cluster.bound_at), "nothing is written"
        # From the first tie on chance has a say.
        placed = [one.node for one in takewhile(lambda one: one.ties == 1, foretold.placements)]
        assert len(placed) >= 5
        for number in range(1, len(placed) + 1):
            await cluster.post("namespaces/default/pods", f"new-{number}", {}, spec=SPEC)
            await cluster.bound(f"new-{number}")
        assert [cluster.node_of(f"new-{number}") for number in range(1, len(placed) + 1)] == placed
        await cluster.at_rest()


async def test_what_if_names_the_first_infeasible_replica_and_why() -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("n1", cpu="4")
        manifest = {"kind": "Pod", "metadata": {"name": "new"}, "spec": SPEC}
        foretold = await explanations.what_if(manifest, 5)

        assert [one.node for one in foretold.placements] == ["n1", "n1", "n1", "", ""]
        for number in range(1, 5):
            await cluster.post("namespaces/default/pods", f"new-{number}", {}, spec=SPEC)
        await cluster.bound("new-1", "new-2", "new-3")
        await refused(cluster, "new-4")
        entry = cluster.waiting("new-4")
        assert entry is not None
        assert entry.message == foretold.placements[3].message


async def test_what_if_uses_the_admission_priority() -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("n1", cpu="1500m")
        await cluster.priority_class("high", 10)
        await cluster.priority_class("meek", 10, preemptionPolicy="Never")
        await cluster.pod("low", cpu="1")
        await cluster.bound("low")

        async def planned(**written: object) -> WhatIfView:
            return await explanations.what_if({"metadata": {"name": "new"}, "spec": {**SPEC, **written}}, 1)

        assert (await planned(priorityClassName="high")).placements[0].victims == ("default/low",)
        assert (await planned(priorityClassName="meek")).placements[0].node == ""
        assert (await planned()).placements[0].node == ""
        with pytest.raises(
            NotExplainedError, match='pods "new" is forbidden: no PriorityClass with name hihg was found'
        ):
            await planned(priorityClassName="hihg")
        await cluster.post("/apis/scheduling.k8s.io/v1/priorityclasses", "usual", {}, value=5, globalDefault=True)
        assert (await planned()).placements[0].victims == ("default/low",)


async def test_unanswerable_query_is_reported() -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("n1")
        with pytest.raises(NotExplainedError, match="pod default/nobody is not known here"):
            await explanations.pod(ExplainQuery("default", "nobody"))
        await cluster.pod("late", cpu="400")
        await refused(cluster, "late")
        with pytest.raises(NotExplainedError, match=r"node n2 is not known here: did you mean n1\?"):
            await explanations.pod(ExplainQuery("default", "late", node="n2"))
        with pytest.raises(NotExplainedError, match="no domain serves schedulerName default-scheduler"):
            await explanations.what_if({"spec": {"containers": [{"name": "main"}]}}, 1)


async def test_command_line_and_http_give_equal_answers(tmp_path: Path) -> None:
    async with opened() as (cluster, explanations):
        await cluster.node("small", cpu="1")
        await cluster.pod("late", cpu="4")
        await refused(cluster, "late")
        manifest = tmp_path / "pod.yaml"
        spec = {"schedulerName": "tests-scheduler", "containers": [{"name": "main", "image": "app"}]}
        manifest.write_text(yaml.safe_dump({"kind": "Pod", "metadata": {"name": "new"}, "spec": spec}))
        queues, views = ProgramQueues(cluster.program, "me"), ProgramViews(cluster.program)
        repair = RepairPlans(cluster.program)
        sources = Sources(Health(), Metrics(), queues, explanations, repair, views)
        async with serve(ServerSettings(port=0), sources) as url:
            told = await _told("explain", "pod", "default/late", "--fix", "--server", url)
            assert "0/1 nodes are available: 1 Insufficient cpu." in told
            assert "lower the cpu request from 4 to 1" in told
            asked = ("explain", "pod", "late", "--node", "small", "-o", "json", "--server", url)
            assert json.loads(await _told(*asked))["onNode"]["node"] == "small"
            told = await _told("explain", "--what-if", "-f", str(manifest), "--replicas", "2", "--server", url)
            assert told.startswith("Of 2 x default/new, 2 would be placed by domain tests now")
            assert await _exit_code("explain", "pod", "default/nobody", "--server", url) == 2
            assert await _exit_code("explain", "pod", "default/late", "--node", "smal", "--server", url) == 2


async def _told(*arguments: str) -> str:
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


async def _exit_code(*arguments: str) -> int:
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, arguments))
    return result.exit_code
