"""Plugins that wait or hang, through the whole program: cycles meet and conflict, isolated ones cost one attempt."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from multisched.testing.virtual_workers import VirtualWorkers
from tests.integration.plugins.program_cluster import ProgramCluster, in_virtual_time, one_domain, open_cluster
from tests.unit.shell.workers.isolated_plugins import Roomy

ORACLE = {"name": "tests.kit.plugins.slow_oracle:SlowOracle", "weight": 100}
ROOMY = "tests.unit.shell.workers.isolated_plugins:Roomy"
OTHERS = [f"p{number}" for number in range(12)]


def test_eight_concurrent_cycles_never_overcommit_one_node() -> None:
    """An asynchronous plugin of 5 ms; all want the lowest row; what no longer fits there goes to the next."""

    async def main() -> None:
        async with open_cluster(one_domain(ORACLE, concurrency={"cycles": 8})) as cluster:
            for number in range(6):
                await cluster.node(f"n{number}", cpu="10")
            names = [f"p{number}" for number in range(60)]
            for name in names:
                await cluster.pod(name, cpu="1")
            await cluster.bound(*names)

            conflicts = cluster.worker().cycle.conflicts
            assert conflicts.true > 0
            assert conflicts.false > 0
            assert Counter(cluster.node_of(name) for name in names) == {f"n{number}": 10 for number in range(6)}
            await cluster.at_rest()

    in_virtual_time(main)


def isolated(isolation: str, **args: Any) -> str:
    plugin = {"name": ROOMY, "isolation": isolation, "timeout": "300ms", "args": {"limit": 100, **args}}
    return one_domain(plugin, queue={"initialBackoff": "100ms", "maxBackoff": "200ms"})


@pytest.mark.parametrize(
    ("isolation", "told"), [("thread", "its thread is abandoned"), ("process", "its process is killed")]
)
async def test_hung_isolated_plugin_fails_one_attempt(isolation: str, told: str, tmp_path: Path) -> None:
    flag = tmp_path / "hang"
    flag.touch()
    async with open_cluster(isolated(isolation, hangWhile=str(flag))) as cluster:
        await make_pods(cluster, "victim")
        await cluster.bound(*OTHERS, within_s=10.0)
        await cluster.until(lambda: bool(cluster.observer.failures), within_s=5.0)
        assert told in cluster.observer.failures[0]
        assert cluster.observer.failures[0].startswith("Roomy Filter: 'no answer within 0.3 s")
        flag.unlink()

        await cluster.bound("victim", within_s=10.0)
        assert cluster.worker().counters.attempts >= len(OTHERS) + 2
        await cluster.at_rest()


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("how", ["raise", "wrong-shape", "exit", "raise-in-score"])
async def test_failed_isolated_plugin_fails_one_attempt(isolation: str, how: str) -> None:
    async with open_cluster(isolated(isolation)) as cluster:
        await make_pods(cluster, how)
        await cluster.bound(*OTHERS, within_s=10.0)
        await cluster.until(lambda: len(cluster.observer.failures) >= 2, within_s=5.0)

        waiting = cluster.waiting(how)
        assert how not in cluster.bound_at
        assert waiting is not None
        assert "running" in waiting.message


async def test_dead_plugin_process_fails_one_attempt() -> None:
    async with open_cluster(isolated("process")) as cluster:
        await make_pods(cluster, "die")
        await cluster.bound(*OTHERS, within_s=10.0)
        await cluster.until(lambda: bool(cluster.observer.failures), within_s=5.0)

        assert "its process died: exit code 7" in cluster.observer.failures[0]


async def make_pods(cluster: ProgramCluster, victim: str) -> None:
    Roomy.released.set()
    await cluster.node("n", cpu="64")
    for name in (*OTHERS[:6], victim, *OTHERS[6:]):
        await cluster.pod(name, cpu="1")


@pytest.mark.parametrize("seed", range(5))
def test_isolated_row_rule_holds_despite_stale_results(seed: int) -> None:
    """At most two pods per node, by a plugin that is asked beside the loop, with eight cycles on the same rows."""

    async def main() -> None:
        plugin = {"name": ROOMY, "isolation": "thread", "args": {"limit": 2}}
        workers = VirtualWorkers(random.Random(seed))
        async with open_cluster(one_domain(plugin, concurrency={"cycles": 8}), worker_factory=workers) as cluster:
            for number in range(10):
                await cluster.node(f"n{number}")
            for number in range(24):
                await cluster.pod(f"p{number}", cpu="100m")
            await cluster.until(lambda: len(cluster.bound_at) == 20, within_s=120.0)

            assert set(Counter(cluster.node_of(name) for name in cluster.bound_at).values()) == {2}
            assert cluster.observer.failures == []
            await cluster.at_rest()
            assert len(cluster.bound_at) == 20

    in_virtual_time(main, seed)


def test_hung_plugin_fails_in_virtual_time() -> None:
    async def main() -> None:
        workers = VirtualWorkers(random.Random(0), stuck=("victim",))
        async with open_cluster(isolated("process"), worker_factory=workers) as cluster:
            await make_pods(cluster, "victim")
            await cluster.bound(*OTHERS, within_s=1.0)
            await cluster.until(lambda: len(cluster.observer.failures) >= 3)

            assert "victim" not in cluster.bound_at
            assert "no answer within 0.3 s" in cluster.observer.failures[0]

    in_virtual_time(main)
