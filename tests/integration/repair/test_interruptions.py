"""Whatever befalls a repair at whichever of its writes: no budget is broken, nothing moves twice, every replica runs in the end."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.integration.repair.repair_cluster import (
    CLOSES_S,
    OPENS_S,
    SHORT,
    SHORT_CLOSES_S,
    Fault,
    RepairCluster,
    open_cluster,
    run_in_virtual_time,
    uneven,
)

WINDOW_S = CLOSES_S - OPENS_S
WRITES = ("reserving", "looking", "evicting", "EVICT", "leaving", "checking", "finished")
"""Of a run of one move, in order; each may be met by a fault."""


async def mended(cluster: RepairCluster) -> None:
    """Checks the end state that every test must reach."""
    await cluster.until(lambda: cluster.spread("chatty") == [1, 1], within_s=WINDOW_S)
    await cluster.until(lambda: cluster.ready("chatty") == 2)
    await cluster.until(lambda: cluster.run_state() in ("finished", "stopped"), within_s=WINDOW_S)
    assert len({name for _, name in cluster.evicted}) == 1, cluster.evicted
    await cluster.at_rest()


@pytest.mark.parametrize("fault", [Fault.DIED_BEFORE, Fault.DIED_AFTER])
@pytest.mark.parametrize("number", range(1, len(WRITES) + 1), ids=WRITES)
def test_run_of_a_dead_process_is_completed_by_the_next(tmp_path: Path, number: int, fault: Fault) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path) as cluster:
            await uneven(cluster, replicas=2, least=1)
            cluster.faults = {number: fault}
            await cluster.start()
            await cluster.bury()
            word = WRITES[number - 1]
            assert cluster.writes[-1].startswith(word)
            await cluster.start()
            await mended(cluster)

    run_in_virtual_time(main, seed=number)


@pytest.mark.parametrize("number", range(1, len(WRITES) + 1), ids=WRITES)
def test_run_of_a_dead_unreplaced_process_keeps_every_replica_running(tmp_path: Path, number: int) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, windows=SHORT) as cluster:
            await uneven(cluster, replicas=2, least=1)
            cluster.faults = {number: Fault.DIED_AFTER}
            await cluster.start()
            await cluster.bury()
            await cluster.at(SHORT_CLOSES_S + 60)  # the next one comes when the window is closed
            evicted = len(cluster.evicted)
            await cluster.start()
            await cluster.until(lambda: cluster.ready("chatty") == 2)
            await cluster.until(lambda: cluster.run_state() in ("finished", "stopped"))
            assert len(cluster.evicted) == evicted
            await cluster.at_rest()

    run_in_virtual_time(main, seed=number)


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.LOST, Fault.UNDONE])
@pytest.mark.parametrize("number", range(1, len(WRITES) + 1), ids=WRITES)
def test_missing_response_is_requested_again(tmp_path: Path, number: int, fault: Fault) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path) as cluster:
            await uneven(cluster, replicas=2, least=1)
            cluster.faults = {number: fault}
            await cluster.start()
            await mended(cluster)
            assert cluster.run_state() == "finished"
            assert not cluster.status().counts["stopped"]

    run_in_virtual_time(main, seed=number)


def test_unstored_step_is_not_executed(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, windows=SHORT) as cluster:
            await uneven(cluster, replicas=2, least=1)
            cluster.faults = dict.fromkeys(range(1, 500), Fault.FORBIDDEN)
            await cluster.start()
            await cluster.at(SHORT_CLOSES_S + 60)
            assert cluster.evicted == []
            assert cluster.writes
            assert "no right to do that" in cluster.status().reason
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_missing_eviction_permission_stops_the_run_and_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path, intervalMinutes=60) as cluster:
            await uneven(cluster, replicas=2, least=1)
            cluster.forbids = "EVICT"
            await cluster.start()
            await cluster.until(lambda: cluster.run_state() == "stopped", within_s=WINDOW_S)
            assert cluster.record()["reason"] == "step 1 of 1: the eviction was refused: no right to do that"
            assert cluster.evicted == []
            assert cluster.status().counts["evictions_refused"] == 11
            await cluster.at_rest()

    run_in_virtual_time(main)


def test_foreign_record_is_read_before_any_action(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(tmp_path) as cluster:
            await uneven(cluster, replicas=2, least=1)
            await cluster.start()
            await cluster.reach("evicting")
            path = "/api/v1/namespaces/kube-system/configmaps/multisched-repair-tests"
            document = orjson.loads((await cluster.send("GET", path)).body)
            document["data"]["run.json"] = document["data"]["run.json"].replace('"looking"', '"reserving"')
            assert (await cluster.send("PUT", path, document)).status == 200
            cluster.go_on()
            await cluster.until(lambda: cluster.status().counts["keep_failures"] == 1)
            assert cluster.evicted == []
            assert not cluster.places()
            await mended(cluster)

    run_in_virtual_time(main)


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_violate_no_budget_and_lose_no_replica(tmp_path: Path, seed: int) -> None:
    """Faults drawn for every third write or so; processes die and come again until the window ends."""

    async def main() -> None:
        async with open_cluster(tmp_path, seed=seed, intervalMinutes=1, windows=[("00:01", "00:11")]) as cluster:
            await uneven(cluster, replicas=4, nodes=6, least=3)
            cluster.draw_faults(0.35)
            while cluster.now_s < 600:
                await cluster.start()
                await cluster.dies_before(600)
            cluster.draw_faults(0.0)
            if cluster.program is None:
                await cluster.start()
            await cluster.until(lambda: cluster.ready("chatty") == 4)
            await cluster.until(lambda: cluster.run_state() in ("", "finished", "stopped"), within_s=WINDOW_S)
            names = [name for _, name in cluster.evicted]
            assert len(set(names)) == len(names), "no pod is evicted twice"
            await cluster.at_rest()

    run_in_virtual_time(main, seed)
