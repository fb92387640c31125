"""A cluster that a foreign scheduler made uneven gets a plan: through the whole program, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import orjson
import pytest
from typer.testing import CliRunner

from domains.forecast.curves.profiles_file import dumps
from multisched.cli.commands import app
from multisched.cluster.api.direct import DirectTransport
from multisched.framework.repair import RepairPlan, RepairRefusedError, RepairRequest
from multisched.model.cluster_objects import ResourceQuota
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.version import Version
from multisched.model.wire import MERGE_PATCH
from multisched.observe.health import Health
from multisched.observe.metrics import Metrics
from multisched.observe.repair_view import decode_plan
from multisched.observe.server import ServerSettings, Sources, serve
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.telemetry import ProgramQueues
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.repair_source import RepairPlans
from tests.integration.plugins.program_cluster import ProgramCluster, one_domain, open_cluster
from tests.integration.repair.uneven import PROFILES, configuration, known, put, uneven

ASKED = RepairRequest()


def moves(plan: RepairPlan) -> list[tuple[str, str, str]]:
    return [(move.pod, move.from_node, move.to_node) for move in plan.moves]


def on_server(cluster: ProgramCluster) -> list[tuple[str, str, Version]]:
    """Every pod with its node and version."""
    return sorted((key, pod.node, pod.version) for key, pod in cluster.api_checker.pods().items())


async def test_one_move_repairs_a_node_overloaded_in_one_dimension() -> None:
    async with uneven() as (cluster, plans):
        before = on_server(cluster)

        plan = await plans.plan(ASKED)

        (move,) = plan.moves
        assert (move.from_node, move.repairs, plan.repaired, plan.unrepaired, plan.least_moves) == (
            "n0",
            "n0",
            ("n0",),
            (),
            1,
        )
        assert move.to_node in ("n1", "n2")
        assert cluster.program.cache.placed(move.uid) is not None
        assert (move.service, move.replicas) == ("default/chatty", 3)
        assert (move.from_before.dimension, move.from_before.at) == ("log", "Mon 20:00")
        assert (round(move.from_before.percent), round(move.from_after.percent)) == (120, 80)
        assert (round(move.to_before.percent), round(move.to_after.percent)) == (40, 42)
        assert round(move.gain_percent) == 40
        assert {name: round(p) for name, p in move.to_peaks_percent.items()} == {"cpu": 1, "log": 42}
        assert (plan.domain, plan.nodes, plan.pods, plan.movable, plan.kept) == ("tests", 3, 5, 5, {})
        assert plan.threshold_percent == {"cpu": 100.0, "log": 100.0}
        assert on_server(cluster) == before, "a plan writes nothing"
        await cluster.at_rest()


async def test_request_overrides_the_settings() -> None:
    async with uneven() as (_, plans):
        assert moves(await plans.plan(RepairRequest(threshold_percent={"log": 125.0}))) == []
        assert len((await plans.plan(RepairRequest(threshold_percent={"": 79.0}))).moves) == 2
        limited = await plans.plan(RepairRequest(threshold_percent={"log": 79.0}, moves=1))
        assert limited.moves == ()
        (left,) = limited.unrepaired
        assert (left.node, left.peak.dimension) == ("n0", "log")
        assert "moves_per_window" in left.why


async def test_pods_move_only_to_nodes_that_pass_every_filter() -> None:
    async with uneven() as (cluster, plans):
        taints = [{"key": "team", "value": "search", "effect": "NoSchedule"}]
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        await cluster.post(
            "nodes", "empty", {}, spec={"taints": taints}, status={"capacity": amounts, "allocatable": amounts}
        )
        anti: dict[str, Any] = {
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"labelSelector": {"matchLabels": {"app": "early"}}, "topologyKey": "kubernetes.io/hostname"}
                    ]
                }
            }
        }
        await put(cluster, "shy-0", "chatty", "n0", spec=anti)
        await put(cluster, "shy-1", "chatty", "n0", spec=anti)
        await known(cluster, "shy-0", "shy-1")
        labelled = {"kubernetes.io/hostname": "free"}
        await cluster.node("free", labels=labelled)
        await cluster.until(lambda: cluster.program.cache.nodes.row_of("free") is not None)

        plan = await plans.plan(ASKED)

        assert not {move.to_node for move in plan.moves} & {"empty"}
        assert len(plan.moves) == 3
        for move in plan.moves:
            if move.pod.startswith("default/shy"):
                assert move.to_node == "free", "its anti-affinity keeps it from nodes with early"


async def test_full_node_takes_a_pod_after_another_move() -> None:
    async with uneven(nodes={"n0": "8", "n1": "250m"}) as (cluster, plans):
        await put(cluster, "quiet-0", "quiet", "n1", cpu="100m")  # with early-n1: 200m of 250m
        await known(cluster, "quiet-0")

        plan = await plans.plan(ASKED)

        assert moves(plan)[0][:2] in (("default/quiet-0", "n1"), ("default/early-n1", "n1"))
        assert (plan.moves[1].from_node, plan.moves[1].to_node, plan.moves[1].waits_for) == ("n0", "n1", (0,))


async def test_disruption_budgets_are_shown_and_respected() -> None:
    async with uneven() as (cluster, plans):
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        selector = {"matchLabels": {"app": "chatty"}}
        await cluster.post(path, "chatty", {}, spec={"selector": selector, "maxUnavailable": 0}, status={})
        await cluster.until(lambda: len(cluster.program.cache.objects.disruption_budgets("default")) == 1)

        (left,) = (await plans.plan(ASKED)).unrepaired

        assert "PodDisruptionBudget default/chatty allows no disruption now (3 pods)" in left.why


async def test_full_quota_keeps_the_pods_of_its_namespace() -> None:
    async with uneven() as (cluster, plans):
        await cluster.post("namespaces/default/resourcequotas", "tight", {}, spec={"hard": {"pods": "5"}})
        used = orjson.dumps({"status": {"hard": {"pods": "5"}, "used": {"pods": "5"}}})
        path = "/api/v1/namespaces/default/resourcequotas/tight/status"
        answer = await DirectTransport(cluster.server).request("PATCH", path, body=used, content_type=MERGE_PATCH)
        assert answer.status == 200, answer.body
        objects = cluster.program.cache.objects

        def is_known() -> bool:
            return any(one.used for one in objects.all(ObjectKind.RESOURCE_QUOTA) if isinstance(one, ResourceQuota))

        await cluster.until(is_known)

        (left,) = (await plans.plan(ASKED)).unrepaired

        assert "the quota of its namespace has no room for a replacement while the pod terminates (3 pods)" in left.why


async def test_plans_without_a_repair_section_use_defaults_and_read_no_quotas() -> None:
    args = {"capacities": {"log": 100}, "dimensions": ["cpu", "log"]}
    async with uneven(one_domain({"name": "PeakForecast", "args": args})) as (_, plans):
        plan = await plans.plan(ASKED)
        assert (len(plan.moves), plan.threshold_percent["log"]) == (1, 100.0)
        assert "ResourceQuotas were not considered" in plan.notes[-1]


async def test_unreadable_budgets_prevent_moves() -> None:
    async with uneven() as (cluster, plans):
        cluster.program.cache.objects.set_unreadable(ObjectKind.POD_DISRUPTION_BUDGET, "forbidden")
        with pytest.raises(RepairRefusedError, match=r"PodDisruptionBudgets cannot be read \(forbidden\)"):
            await plans.plan(ASKED)


async def test_abandoned_plan_request_blocks_no_other() -> None:
    async with uneven() as (_, plans):
        for turns in range(1, 9):
            waiting = asyncio.create_task(plans.plan(ASKED))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled() or turns > 1, "it cannot be done in one turn of the loop"
        assert len((await plans.plan(ASKED)).moves) == 1


async def test_pods_of_other_schedulers_move_only_if_configured() -> None:
    for whose, expected in (("own", 0), ("all", 1)):
        async with uneven(configuration(pods=whose)) as (cluster, plans):
            for number in range(3):
                await cluster.delete(f"namespaces/default/pods/chatty-{number}")
            for number in range(3):
                await put(cluster, f"foreign-{number}", "chatty", "n0", scheduler="default-scheduler")
            await known(cluster, "foreign-0", "foreign-1", "foreign-2")
            await cluster.until(lambda: len(cluster.program.cache) == 5)

            plan = await plans.plan(ASKED)

            assert len(plan.moves) == expected
            if expected:
                assert plan.notes[-1].startswith("1 of the moves are of pods scheduled by default-scheduler")
            else:
                assert "another scheduler places it" in plan.unrepaired[0].why


async def test_nominated_pods_count_on_their_nodes() -> None:
    async with uneven() as (cluster, plans):
        (pod,) = [entry.pod for entry in cluster.program.cache if entry.pod.name == "chatty-0"]
        for node in ("n1", "n2"):  # promised enough at 20:00 to leave no room for one of n0's
            for number in range(2):
                cluster.program.nominator.nominate(_renamed(pod, f"next-{node}-{number}"), node)

        (left,) = (await plans.plan(ASKED)).unrepaired

        assert left.node == "n0"
        assert "find no node: 3 would push each over its threshold, or find no room" in left.why


def _renamed(pod: Pod, name: str) -> Pod:
    return msgspec.structs.replace(pod, name=name, uid=f"uid-{name}", node="")


async def test_impossible_plan_reports_the_fix() -> None:
    async with uneven() as (_, plans):
        with pytest.raises(
            RepairRefusedError, match=r"threshold lgo: not a dimension of the forecast; did you mean log\?"
        ):
            await plans.plan(RepairRequest(threshold_percent={"lgo": 90.0}))
        with pytest.raises(RepairRefusedError, match="domain test: no such domain; did you mean tests"):
            await plans.plan(RepairRequest(domain="test"))
    text = configuration()
    async with open_cluster(text) as cluster:
        plans = RepairPlans(cluster.program)
        await cluster.node("n0")
        with pytest.raises(RepairRefusedError, match="no profiles are active yet"):
            await plans.plan(ASKED)
    text = one_domain()
    async with open_cluster(text) as cluster:
        with pytest.raises(RepairRefusedError, match="enable PeakForecast in one"):
            await RepairPlans(cluster.program).plan(ASKED)


async def test_surplus_plan_requests_get_a_retry_hint() -> None:
    async with uneven() as (_, plans):
        refused: list[int] = []

        async def ask() -> None:
            try:
                await plans.plan(ASKED)
            except RepairRefusedError as error:
                refused.append(error.status)

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(ask)
        assert refused == [429, 429]
        assert len((await plans.plan(ASKED)).moves) == 1


async def test_plan_is_served_over_http_and_cli() -> None:
    async with uneven() as (cluster, plans):
        explanations = ProgramExplanations(cluster.program)
        queues, views = ProgramQueues(cluster.program, "me"), ProgramViews(cluster.program)
        sources = Sources(Health(), Metrics(), queues, explanations, plans, views)
        async with serve(ServerSettings(port=0), sources) as url:
            code, text, _ = await _call("--server", url)
            assert code == 0
            assert "default/chatty-" in text
            assert "log 120 % -> 80 % Mon 20:00" in text
            assert "1 of 3 of default/chatty" in text
            assert "domain tests: 1 move repairs 1 of 1 node past 100 %" in text
            assert text.rstrip().endswith("nothing was written: this is a preview")
            code, text, _ = await _call("--server", url, "--threshold", "log=125", "-o", "json")
            assert json.loads(text)["moves"] == []
            code, text, _ = await _call("--server", url, "--threshold", "79", "--moves", "2", "-o", "wide")
            assert (code, text.count("default/chatty-")) == (0, 2)
            for wrong, message in (
                (("--threshold", "lgo=90"), "did you mean log?"),
                (("--threshold", "log=much"), "write DIMENSION=PERCENT"),
                (("--threshold", "log=90", "--threshold", "log=80"), "given twice"),
                (("--threshold", "2000"), "at most 1000"),
            ):
                code, _, error = await _call("--server", url, *wrong)
                assert (code, message in error) == (2, True), error
            code, _, error = await _call("--server", url, "--domain", "gpu")
            assert (code, "no such domain" in error) == (2, True)


async def test_dump_gives_the_same_plan(tmp_path: Path) -> None:
    profiles, dump, text = tmp_path / "profiles", tmp_path / "dump.json", tmp_path / "config.yaml"
    profiles.write_bytes(dumps(PROFILES))
    text.write_text(configuration(str(profiles)))
    async with uneven() as (cluster, plans):
        expected = await plans.plan(ASKED)
        dump.write_bytes(orjson.dumps({"items": [*await listed(cluster, "Node"), *await listed(cluster, "Pod")]}))

    code, told, error = await _call("--snapshot", str(dump), "--config", str(text), "-o", "json")

    assert code == 0, error
    found = decode_plan(told.encode())
    assert msgspec.structs.replace(found, notes=()) == expected
    assert "the dump has no PodDisruptionBudget, ResourceQuota, PersistentVolume" in found.notes[-1]
    code, _, error = await _call("--snapshot", str(dump))
    assert (code, "no profiles are active yet" in error) == (1, True), error
    dump.write_text('{"items": []}')
    code, _, error = await _call("--snapshot", str(dump), "--config", str(text))
    assert (code, "the dump has no nodes" in error) == (1, True), error


async def listed(cluster: ProgramCluster, kind: str) -> list[dict[str, Any]]:
    """As kubectl prints them."""
    answer = await DirectTransport(cluster.server).request("GET", f"/api/v1/{kind.lower()}s")
    return [{**item, "kind": kind} for item in orjson.loads(answer.body)["items"]]


async def _call(*arguments: str) -> tuple[int, str, str]:
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["repair", "plan", *arguments]))
    return result.exit_code, result.stdout, result.stderr
