"""Whatever befalls a repair at whichever of its writes: no budget is broken, nothing moves twice, every replica runs in the end."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.integration.repair.town import CLOSES_S, OPENS_S, Fault, Town, open_town, played, uneven

WINDOW_S = CLOSES_S - OPENS_S
WRITES = ("reserving", "looking", "evicting", "EVICT", "leaving", "checking", "finished")
"""Of a run of one move, in order; each may be met by a fault."""


async def mended(town: Town) -> None:
    """The end that every story comes to."""
    await town.until(lambda: town.spread("chatty") == [1, 1], within_s=WINDOW_S)
    await town.until(lambda: town.ready("chatty") == 2)
    await town.until(lambda: town.run_state() in ("finished", "stopped"), within_s=WINDOW_S)
    assert len({name for _, name in town.evicted}) == 1, town.evicted
    await town.at_rest()


@pytest.mark.parametrize("fault", [Fault.DIED_BEFORE, Fault.DIED_AFTER])
@pytest.mark.parametrize("number", range(1, len(WRITES) + 1), ids=WRITES)
def test_run_of_a_dead_process_is_completed_by_the_next(tmp_path: Path, number: int, fault: Fault) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await uneven(town, replicas=2, least=1)
            town.faults = {number: fault}
            await town.start()
            await town.bury()
            word = WRITES[number - 1]
            assert town.writes[-1].startswith(word)
            await town.start()
            await mended(town)

    played(story, seed=number)


@pytest.mark.parametrize("number", range(1, len(WRITES) + 1), ids=WRITES)
def test_run_of_a_dead_unreplaced_process_keeps_every_replica_running(tmp_path: Path, number: int) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await uneven(town, replicas=2, least=1)
            town.faults = {number: Fault.DIED_AFTER}
            await town.start()
            await town.bury()
            await town.at(CLOSES_S + 60)  # the next one comes when the window is closed
            evicted = len(town.evicted)
            await town.start()
            await town.until(lambda: town.ready("chatty") == 2)
            await town.until(lambda: town.run_state() in ("finished", "stopped"))
            assert len(town.evicted) == evicted
            await town.at_rest()

    played(story, seed=number)


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.LOST, Fault.UNDONE])
@pytest.mark.parametrize("number", range(1, len(WRITES) + 1), ids=WRITES)
def test_missing_response_is_requested_again(tmp_path: Path, number: int, fault: Fault) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await uneven(town, replicas=2, least=1)
            town.faults = {number: fault}
            await town.start()
            await mended(town)
            assert town.run_state() == "finished"
            assert not town.status().counts["stopped"]

    played(story, seed=number)


def test_unstored_step_is_not_executed(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await uneven(town, replicas=2, least=1)
            town.faults = dict.fromkeys(range(1, 500), Fault.FORBIDDEN)
            await town.start()
            await town.at(CLOSES_S + 60)
            assert town.evicted == []
            assert town.writes
            assert "no right to do that" in town.status().reason
            await town.at_rest()

    played(story)


def test_missing_eviction_permission_stops_the_run_and_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path, intervalMinutes=60) as town:
            await uneven(town, replicas=2, least=1)
            town.forbids = "EVICT"
            await town.start()
            await town.until(lambda: town.run_state() == "stopped", within_s=WINDOW_S)
            assert town.record()["reason"] == "step 1 of 1: the eviction was refused: no right to do that"
            assert town.evicted == []
            assert town.status().counts["evictions_refused"] == 11
            await town.at_rest()

    played(story)


def test_foreign_record_is_read_before_any_action(tmp_path: Path) -> None:
    async def story() -> None:
        async with open_town(tmp_path) as town:
            await uneven(town, replicas=2, least=1)
            await town.start()
            await town.reach("evicting")
            path = "/api/v1/namespaces/kube-system/configmaps/multisched-repair-tests"
            document = orjson.loads((await town.send("GET", path)).body)
            document["data"]["run.json"] = document["data"]["run.json"].replace('"looking"', '"reserving"')
            assert (await town.send("PUT", path, document)).status == 200
            town.go_on()
            await town.until(lambda: town.status().counts["keep_failures"] == 1)
            assert town.evicted == []
            assert not town.places()
            await mended(town)

    played(story)


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_violate_no_budget_and_lose_no_replica(tmp_path: Path, seed: int) -> None:
    """Faults drawn for every third write or so; processes die and come again until the window ends."""

    async def story() -> None:
        async with open_town(tmp_path, seed=seed, intervalMinutes=1, windows=[("00:01", "00:11")]) as town:
            await uneven(town, replicas=4, nodes=6, least=3)
            town.draw_faults(0.35)
            while town.now_s < 600:
                await town.start()
                await town.dies_before(600)
            town.draw_faults(0.0)
            if town.program is None:
                await town.start()
            await town.until(lambda: town.ready("chatty") == 4)
            await town.until(lambda: town.run_state() in ("", "finished", "stopped"), within_s=WINDOW_S)
            names = [name for _, name in town.evicted]
            assert len(set(names)) == len(names), "no pod is evicted twice"
            await town.at_rest()

    played(story, seed)
