"""A cluster that a foreign scheduler made uneven is mended in the window: with Deployments, kubelets and budgets, end to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from multisched.framework.moving import digest_of
from multisched.framework.repair import RepairRefusedError, RepairRequest
from tests.integration.repair.repair_cluster import (
    CLOSES_S,
    OPENS_S,
    SHORT,
    SHORT_CLOSES_S,
    open_cluster,
    run_in_virtual_time,
    uneven,
)

WINDOW_S = CLOSES_S - OPENS_S


def test_uneven_cluster_is_repaired_only_in_the_window(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path) as cluster:
            await uneven(cluster)
            await cluster.start()
            await cluster.at(OPENS_S - 1)
            assert cluster.evicted == []
            assert cluster.spread("chatty") == [3]
            await cluster.until(lambda: cluster.run_state() == "finished", within_s=WINDOW_S)
            assert cluster.spread("chatty") == [1, 1, 1]
            assert len(cluster.evicted) == 2
            assert cluster.ready("chatty") == 3
            assert cluster.status().moved == 2
            await cluster.at_rest()

    run_in_virtual_time(main)


@pytest.mark.parametrize("mode", ["off", "preview"])
def test_nothing_is_moved_by_default(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, windows=SHORT, mode=mode) as cluster:
            await uneven(cluster)
            await cluster.start()
            await cluster.at(SHORT_CLOSES_S + 60)
            assert cluster.evicted == []
            assert cluster.spread("chatty") == [3]
            shown = cluster.record().get("tasks", [])
            assert [task["source"] for task in shown] == (["n0"] * 2 if mode == "preview" else [])
            assert cluster.writes == (["shown"] if mode == "preview" else [])
            assert cluster.status().mode == mode
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_zero_budget_is_never_violated(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, windows=SHORT) as cluster:
            await uneven(cluster, least=3)
            await cluster.start()
            await cluster.at(SHORT_CLOSES_S)
            assert cluster.evicted == []
            assert cluster.ready("chatty") == 3
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_budget_used_up_after_the_plan_stops_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, intervalMinutes=60) as cluster:
            await uneven(cluster)
            await cluster.start()
            await cluster.reach("looking")
            path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/chatty"
            answer = await cluster.send("GET", path)
            document = orjson.loads(answer.body)
            document["spec"]["minAvailable"] = 3
            assert (await cluster.send("PUT", path, document)).status == 200
            cluster.needed["chatty"] = 3
            cluster.go_on()
            await cluster.until(lambda: cluster.run_state() == "stopped", within_s=WINDOW_S)
            assert cluster.evicted == []
            assert "PodDisruptionBudget default/chatty allows no disruption" in cluster.record()["reason"]
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_unready_replica_keeps_the_others_in_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, intervalMinutes=60) as cluster:
            await uneven(cluster, replicas=4, nodes=5, least=1)
            await cluster.start()
            await cluster.until(lambda: bool(cluster.evicted), within_s=WINDOW_S)
            before = len(cluster.evicted)
            # Somebody cordons everything and deletes a replica: its replacement waits.
            for number in range(5):
                await cluster.cordon(f"n{number}", is_cordoned=True)
            victim = next(pod for pod in cluster.of("chatty") if not pod.is_deleting and pod.node == "n0")
            await cluster.send("DELETE", f"/api/v1/namespaces/default/pods/{victim.name}")
            await cluster.until(lambda: cluster.run_state() == "stopped", within_s=WINDOW_S)
            assert len(cluster.evicted) == before
            for number in range(5):
                await cluster.cordon(f"n{number}", is_cordoned=False)
            await cluster.until(lambda: cluster.ready("chatty") == 4)
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_closing_window_completes_the_current_move_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, windows=[("00:01", "00:02")]) as cluster:
            await uneven(cluster, replicas=4, nodes=6, least=1)
            await cluster.start()
            await cluster.reach("leaving")
            await cluster.at(125)
            cluster.go_on()
            await cluster.until(lambda: cluster.run_state() == "stopped")
            assert cluster.record()["reason"].endswith("the window closed")
            assert len(cluster.evicted) == 1
            await cluster.until(lambda: cluster.ready("chatty") == 4)
            assert cluster.spread("chatty") == [3, 1]
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_late_eviction_is_not_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, windows=[("00:01", "00:02")]) as cluster:
            await uneven(cluster)
            await cluster.start()
            await cluster.reach("evicting")
            await cluster.at(117)
            cluster.go_on()
            await cluster.until(lambda: cluster.run_state() == "stopped")
            assert cluster.evicted == []
            assert cluster.record()["reason"].endswith("the window closed")
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_window_budget_counts_across_plans_and_processes(tmp_path: Path) -> None:
    async def main() -> None:
        windows = [("00:01", "00:11"), ("00:15", "00:25")]
        async with open_cluster(tmp_path, windows=windows, movesPerWindow=1) as cluster:
            await uneven(cluster, replicas=2, nodes=6, least=1)
            await cluster.deploy("other", 2, on="n1", service="chatty")
            await cluster.start()
            await cluster.until(lambda: len(cluster.evicted) == 1, within_s=WINDOW_S)
            await cluster.kill()
            await cluster.start()
            await cluster.at(14 * 60)
            assert len(cluster.evicted) == 1
            assert cluster.status().moves_left == 0
            assert (cluster.ready("chatty"), cluster.ready("other")) == (2, 2)
            await cluster.at(25 * 60)
            assert len(cluster.evicted) == 2, (
                "the next window has a budget of its own, and one more move mends the other node"
            )
            assert (cluster.spread("chatty"), cluster.spread("other")) == ([1, 1], [1, 1])
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_equal_pod_does_not_take_a_reserved_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path) as cluster:
            await cluster.node("n0")
            await cluster.node("n1", cpu="500m")  # room for one replica
            await cluster.deploy("chatty", 2, on="n0")
            await cluster.budget("chatty", 1)
            await cluster.start()
            await cluster.reach("EVICT")
            assert cluster.places() == ["n1"]
            await cluster.cordon("n0", is_cordoned=True)
            container = {"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": "500m"}}}
            spec = {"schedulerName": "tests-scheduler", "containers": [container]}
            await cluster.make("/api/v1/namespaces/default/pods", {"metadata": {"name": "thief"}, "spec": spec})
            await asyncio.sleep(5)
            cluster.go_on()
            await cluster.until(lambda: cluster.run_state() == "finished", within_s=WINDOW_S)
            assert cluster.spread("chatty") == [1, 1]
            (thief,) = [pod for pod in cluster.pods() if pod.name == "thief"]
            assert thief.node == ""
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_deleted_target_stops_the_run_with_every_replica_running(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, intervalMinutes=60) as cluster:
            await uneven(cluster, replicas=2, least=1)
            await cluster.start()
            await cluster.reach("EVICT")
            target = cluster.record()["tasks"][0]["target"]
            await cluster.send("DELETE", f"/api/v1/nodes/{target}")
            cluster.go_on()
            await cluster.until(lambda: cluster.run_state() in ("stopped", "finished"), within_s=WINDOW_S)
            assert cluster.run_state() == "stopped"
            await cluster.until(lambda: cluster.ready("chatty") == 2)
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_load_that_differs_from_the_forecast_stops_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, intervalMinutes=60) as cluster:
            await uneven(cluster)
            await cluster.start()
            await cluster.reach("leaving")
            target = cluster.record()["tasks"][0]["target"]
            await cluster.deploy("other", 1, on=target, service="chatty", scheduler="foreign")
            cluster.go_on()
            await cluster.until(lambda: cluster.run_state() == "stopped", within_s=WINDOW_S)
            assert f"the target {target} would peak at" in cluster.record()["reason"]
            assert len(cluster.evicted) == 1
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_stateful_set_pods_move_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path) as cluster:
            for number in range(3):
                await cluster.node(f"n{number}")
            await cluster.deploy("chatty", 3, on="n0", kind="StatefulSet")
            await cluster.budget("chatty", 2)
            await cluster.start()
            await cluster.until(lambda: cluster.run_state() == "finished", within_s=WINDOW_S)
            assert cluster.spread("chatty") == [1, 1, 1]
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_only_the_shown_plan_is_executed(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, mode="preview") as cluster:
            await uneven(cluster)
            await cluster.start()
            await cluster.at(OPENS_S - 30)
            assert cluster.program is not None
            shown = digest_of(await cluster.program.repairs.plan(RepairRequest(domain="tests")))
            with pytest.raises(RepairRefusedError, match=r"the next one opens at .*00:01:00Z"):
                await cluster.plugin.request_repair(RepairRequest(), shown)
            await cluster.at(OPENS_S + 60)
            with pytest.raises(RepairRefusedError, match="the cluster has changed"):
                await cluster.plugin.request_repair(RepairRequest(), "another")
            status = await cluster.plugin.request_repair(RepairRequest(), shown)
            assert (status.state, status.steps) == ("planned", 2)
            await cluster.until(lambda: cluster.run_state() == "finished")
            assert cluster.spread("chatty") == [1, 1, 1]
            assert cluster.record()["digest"] == shown
            with pytest.raises(RepairRefusedError, match=r"no moves|has changed"):
                await cluster.plugin.request_repair(RepairRequest(), shown)
            await cluster.at_rest()

    run_in_virtual_time(main)
