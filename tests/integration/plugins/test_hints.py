"""Queueing hints through the whole program: only an event that can help wakes a refused pod."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.plugins.faulty import VICTIM
from tests.integration.plugins.program_cluster import ProgramCluster, in_virtual_time, one_domain, open_cluster

MATE: dict[str, Any] = {"labels": {"mate": "yes"}}


def attempts(cluster: ProgramCluster) -> int:
    waiting = cluster.waiting(VICTIM)
    assert waiting is not None
    return waiting.attempts


@pytest.mark.parametrize("action", ["ADD", "DELETE"])
def test_pending_pod_events_requeue_registered_pods(action: str) -> None:
    async def main() -> None:
        plugin = {"name": "tests.integration.plugins.faulty:NeedsMate", "args": {"action": action}}
        async with open_cluster(one_domain(plugin)) as cluster:
            await cluster.node("n")
            await cluster.pod(VICTIM, cpu="1", labels={"needs": "mate"})
            await cluster.until(lambda: cluster.waiting(VICTIM) is not None and attempts(cluster) == 1)
            await cluster.pod("stranger", cpu="100")
            await cluster.delete("namespaces/default/pods/stranger")
            await cluster.pod("bound", cpu="1")
            await cluster.bound("bound")
            assert attempts(cluster) == 1

            await cluster.pod("mate", cpu="100", **MATE)
            await cluster.until(lambda: cluster.waiting("mate") is not None)
            if action == "DELETE":
                assert attempts(cluster) == 1
                await cluster.delete("namespaces/default/pods/mate")
            await cluster.bound(VICTIM, within_s=5.0)
            await cluster.at_rest()

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("cpu", "wakes"),
    [("2", True), ("1500m", False)],
)
def test_only_a_large_enough_node_requeues_a_pod(cpu: str, wakes: bool) -> None:
    async def main() -> None:
        async with open_cluster(one_domain()) as cluster:
            await cluster.node("small", cpu="1")
            await cluster.pod(VICTIM, cpu="2")
            await cluster.until(lambda: cluster.waiting(VICTIM) is not None and attempts(cluster) == 1)
            await cluster.node("next", cpu=cpu)
            if wakes:  # first: the other pod likes the empty node, too
                await cluster.bound(VICTIM, within_s=5.0)
            await cluster.pod("other", cpu="500m")
            await cluster.bound("other")
            if not wakes:
                assert attempts(cluster) == 1
            await cluster.at_rest()

    in_virtual_time(main)


def test_room_freed_before_a_bind_requeues_waiting_pods() -> None:
    """The holder's PreBind fails for good: what it held on the only node goes to the pod that waits for it."""

    async def main() -> None:
        args = {"point": "PreBind", "how": "raise", "times": 10**6}
        async with open_cluster(
            one_domain({"name": "tests.integration.plugins.faulty:Faulty", "args": args})
        ) as cluster:
            await cluster.node("n", cpu="2")
            await cluster.pod(VICTIM, cpu="2")
            await cluster.pod("waits", cpu="2")
            await cluster.bound("waits", within_s=10.0)
            await cluster.at_rest()

    in_virtual_time(main)
