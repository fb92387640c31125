"""Pods of one spec and different labels, as StatefulSets with a leader have them, through a whole worker with what ships."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import anyio
import pytest

from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.cycle.relations_kit import HOST, REQUIRED, ZONE
from tests.unit.shell.shell_kit import WorkerHarness

NODES, ZONES, LEADERS, FOLLOWERS, ROUNDS = 40, 10, 10, 30, 3
AWAY_FROM_LEADERS = {
    "podAntiAffinity": {REQUIRED: [{"topologyKey": HOST, "labelSelector": {"matchLabels": {"role": "leader"}}}]}
}


def away_from(key: str) -> dict[str, Any]:
    [term] = AWAY_FROM_LEADERS["podAntiAffinity"][REQUIRED]
    return {"podAntiAffinity": {REQUIRED: [{**term, "topologyKey": key}]}}


@pytest.mark.parametrize("profile", ["default", "forecast", "job"])
@pytest.mark.parametrize("key", [HOST, ZONE])
@pytest.mark.parametrize("seed", range(4))
def test_recreated_workloads_keep_anti_affinity_to_the_leader(profile: str, key: str, seed: int) -> None:
    loop, rng = SimLoop(seed=seed), random.Random(seed)

    async def main() -> None:
        harness = WorkerHarness(loop, profile=profile)
        harness.desk.sleep = anyio.sleep
        for number in range(NODES):
            zone = f"zone-{number % ZONES}"
            harness.see_node(f"n{number}", cpu="8", labels={HOST: f"n{number}", ZONE: zone})
        async with harness.at_work():
            for number in range(ROUNDS):
                roles = ["leader"] * LEADERS + ["follower"] * FOLLOWERS
                rng.shuffle(roles)
                await one_round(harness, number, roles, key)
        harness.cache.validate()

    simulate(main(), loop)


async def one_round(harness: WorkerHarness, number: int, roles: list[str], key: str) -> None:
    names = [f"r{number}-{at}-{role}" for at, role in enumerate(roles)]
    for name, role in zip(names, roles, strict=True):
        harness.see_pod(name, cpu="100m", affinity=away_from(key), metadata={"labels": {"role": role}})
    await asyncio.sleep(1.0)
    standing = [(entry.pod.labels["role"], domain_of(harness, entry.node, key)) for entry in harness.cache]
    led = [domain for role, domain in standing if role == "leader"]
    assert led, "who comes first finds room"
    beside = [domain for domain in led if sum(other == domain for _, other in standing) > 1]
    assert not beside, f"round {number}: pods beside a leader in {beside}"
    for name in names:
        harness.lose_pod(name)


def domain_of(harness: WorkerHarness, node: str, key: str) -> str:
    return harness.cache.nodes.node(harness.domain.row(node)).labels[key]
