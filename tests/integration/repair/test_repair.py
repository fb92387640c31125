"""A cluster that a foreign scheduler made uneven is mended in the window: with Deployments, kubelets and budgets, end to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from multisched.framework.moving import digest_of
from multisched.framework.repair import RepairRefusedError, RepairRequest
from tests.integration.repair.town import CLOSES_S, OPENS_S, open_town, played, uneven

WINDOW_S = CLOSES_S - OPENS_S


def test_uneven_cluster_is_repaired_only_in_the_window(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await uneven(town)
            await town.start()
            await town.at(OPENS_S - 1)
            assert town.evicted == []
            assert town.spread("chatty") == [3]
            await town.until(lambda: town.run_state() == "finished", within_s=WINDOW_S)
            assert town.spread("chatty") == [1, 1, 1]
            assert len(town.evicted) == 2
            assert town.ready("chatty") == 3
            assert town.status().moved == 2
            await town.at_rest()

    played(story)


@pytest.mark.parametrize("mode", ["off", "preview"])
def test_nothing_is_moved_by_default(tmp_path: Path, mode: str) -> None:
    async def story() -> None:
        async with open_town(tmp_path, mode=mode) as town:
            await uneven(town)
            await town.start()
            await town.at(CLOSES_S + 60)
            assert town.evicted == []
            assert town.spread("chatty") == [3]
            shown = town.record().get("tasks", [])
            assert [task["source"] for task in shown] == (["n0"] * 2 if mode == "preview" else [])
            assert town.writes == (["shown"] if mode == "preview" else [])
            assert town.status().mode == mode
            await town.at_rest()

    played(story)


def test_zero_budget_is_never_violated(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await uneven(town, least=3)
            await town.start()
            await town.at(CLOSES_S)
            assert town.evicted == []
            assert town.ready("chatty") == 3
            await town.at_rest()

    played(story)


def test_budget_used_up_after_the_plan_stops_the_run(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, intervalMinutes=60) as town:
            await uneven(town)
            await town.start()
            await town.reach("looking")
            path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/chatty"
            answer = await town.send("GET", path)
            document = orjson.loads(answer.body)
            document["spec"]["minAvailable"] = 3
            assert (await town.send("PUT", path, document)).status == 200
            town.needed["chatty"] = 3
            town.go_on()
            await town.until(lambda: town.run_state() == "stopped", within_s=WINDOW_S)
            assert town.evicted == []
            assert "PodDisruptionBudget default/chatty allows no disruption" in town.record()["reason"]
            await town.at_rest()

    played(story)


def test_unready_replica_keeps_the_others_in_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, intervalMinutes=60) as town:
            await uneven(town, replicas=4, nodes=5, least=1)
            await town.start()
            await town.until(lambda: bool(town.evicted), within_s=WINDOW_S)
            before = len(town.evicted)
            # Somebody cordons everything and deletes a replica: its replacement waits.
            for number in range(5):
                await town.cordon(f"n{number}", is_cordoned=True)
            victim = next(pod for pod in town.of("chatty") if not pod.is_deleting and pod.node == "n0")
            await town.send("DELETE", f"/api/v1/namespaces/default/pods/{victim.name}")
            await town.until(lambda: town.run_state() == "stopped", within_s=WINDOW_S)
            assert len(town.evicted) == before
            for number in range(5):
                await town.cordon(f"n{number}", is_cordoned=False)
            await town.until(lambda: town.ready("chatty") == 4)
            await town.at_rest()

    played(story)


def test_closing_window_completes_the_current_move_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, windows=[("00:01", "00:02")]) as town:
            await uneven(town, replicas=4, nodes=6, least=1)
            await town.start()
            await town.reach("leaving")
            await town.at(125)
            town.go_on()
            await town.until(lambda: town.run_state() == "stopped")
            assert town.record()["reason"].endswith("the window closed")
            assert len(town.evicted) == 1
            await town.until(lambda: town.ready("chatty") == 4)
            assert town.spread("chatty") == [3, 1]
            await town.at_rest()

    played(story)


def test_late_eviction_is_not_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, windows=[("00:01", "00:02")]) as town:
            await uneven(town)
            await town.start()
            await town.reach("evicting")
            await town.at(117)
            town.go_on()
            await town.until(lambda: town.run_state() == "stopped")
            assert town.evicted == []
            assert town.record()["reason"].endswith("the window closed")
            await town.at_rest()

    played(story)


def test_window_budget_counts_across_plans_and_processes(tmp_path: Path) -> None:
    async def story() -> None:
        windows = [("00:01", "00:11"), ("00:15", "00:25")]
        async with open_town(tmp_path, windows=windows, movesPerWindow=1) as town:
            await uneven(town, replicas=2, nodes=6, least=1)
            await town.deploy("other", 2, on="n1", service="chatty")
            await town.start()
            await town.until(lambda: len(town.evicted) == 1, within_s=WINDOW_S)
            await town.kill()
            await town.start()
            await town.at(14 * 60)
            assert len(town.evicted) == 1
            assert town.status().moves_left == 0
            assert (town.ready("chatty"), town.ready("other")) == (2, 2)
            await town.at(25 * 60)
            assert len(town.evicted) == 2, (
                "the next window has a budget of its own, and one more move mends the other node"
            )
            assert (town.spread("chatty"), town.spread("other")) == ([1, 1], [1, 1])
            await town.at_rest()

    played(story)


def test_equal_pod_does_not_take_a_reserved_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await town.node("n0")
            await town.node("n1", cpu="500m")  # room for one replica
            await town.deploy("chatty", 2, on="n0")
            await town.budget("chatty", 1)
            await town.start()
            await town.reach("EVICT")
            assert town.places() == ["n1"]
            await town.cordon("n0", is_cordoned=True)
            container = {"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": "500m"}}}
            spec = {"schedulerName": "tests-scheduler", "containers": [container]}
            await town.make("/api/v1/namespaces/default/pods", {"metadata": {"name": "thief"}, "spec": spec})
            await asyncio.sleep(5)
            town.go_on()
            await town.until(lambda: town.run_state() == "finished", within_s=WINDOW_S)
            assert town.spread("chatty") == [1, 1]
            (thief,) = [pod for pod in town.pods() if pod.name == "thief"]
            assert thief.node == ""
            await town.at_rest()

    played(story)


def test_deleted_target_stops_the_run_with_every_replica_running(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, intervalMinutes=60) as town:
            await uneven(town, replicas=2, least=1)
            await town.start()
            await town.reach("EVICT")
            target = town.record()["tasks"][0]["target"]
            await town.send("DELETE", f"/api/v1/nodes/{target}")
            town.go_on()
            await town.until(lambda: town.run_state() in ("stopped", "finished"), within_s=WINDOW_S)
            assert town.run_state() == "stopped"
            await town.until(lambda: town.ready("chatty") == 2)
            await town.at_rest()

    played(story)


def test_load_that_differs_from_the_forecast_stops_the_run(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, intervalMinutes=60) as town:
            await uneven(town)
            await town.start()
            await town.reach("leaving")
            target = town.record()["tasks"][0]["target"]
            await town.deploy("other", 1, on=target, service="chatty", scheduler="foreign")
            town.go_on()
            await town.until(lambda: town.run_state() == "stopped", within_s=WINDOW_S)
            assert f"the target {target} would peak at" in town.record()["reason"]
            assert len(town.evicted) == 1
            await town.at_rest()

    played(story)


def test_stateful_set_pods_move_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            for number in range(3):
                await town.node(f"n{number}")
            await town.deploy("chatty", 3, on="n0", kind="StatefulSet")
            await town.budget("chatty", 2)
            await town.start()
            await town.until(lambda: town.run_state() == "finished", within_s=WINDOW_S)
            assert town.spread("chatty") == [1, 1, 1]
            await town.at_rest()

    played(story)


def test_only_the_shown_plan_is_executed(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, mode="preview") as town:
            await uneven(town)
            await town.start()
            await town.at(OPENS_S - 30)
            assert town.program is not None
            shown = digest_of(await town.program.repairs.plan(RepairRequest(domain="tests")))
            with pytest.raises(RepairRefusedError, match=r"the next one opens at .*00:01:00Z"):
                await town.plugin.request_repair(RepairRequest(), shown)
            await town.at(OPENS_S + 60)
            with pytest.raises(RepairRefusedError, match="the cluster has changed"):
                await town.plugin.request_repair(RepairRequest(), "another")
            status = await town.plugin.request_repair(RepairRequest(), shown)
            assert (status.state, status.steps) == ("planned", 2)
            await town.until(lambda: town.run_state() == "finished")
            assert town.spread("chatty") == [1, 1, 1]
            assert town.record()["digest"] == shown
            with pytest.raises(RepairRefusedError, match=r"no moves|has changed"):
                await town.plugin.request_repair(RepairRequest(), shown)
            await town.at_rest()

    played(story)
