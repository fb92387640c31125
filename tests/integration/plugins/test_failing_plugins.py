"""A plugin that fails costs its pod one attempt and never the loop, at every extension point, through the whole program."""

from __future__ import annotations

import pytest

from multisched.framework.registry import EXTENSION_POINTS
from tests.integration.plugins.faulty import BENIGN, VICTIM
from tests.integration.plugins.program_cluster import ProgramCluster, in_virtual_time, one_domain, open_cluster

FAULTY = "tests.integration.plugins.faulty:Faulty"
SORT = "tests.integration.plugins.faulty:FaultySort"
OTHERS = ("a", "b", "c")
HOWS = ("raise", "nonsense")

ONE_ATTEMPT = (
    "PreFilter",
    "Filter",
    "PreScore",
    "Score",
    "NormalizeScore",
    "Reserve",
    "Permit",
    "PreBind",
    "Bind",
    "Sign",
)
"""Points whose failure ends the attempt; the pod is tried again after its backoff."""


async def make_pods(cluster: ProgramCluster, *, victim_cpu: str = "1") -> None:
    await cluster.node("n", cpu="16")
    await cluster.pod(VICTIM, cpu=victim_cpu)
    for name in OTHERS:
        await cluster.pod(name, cpu="1")


def faulty(point: str, how: str, times: int = 1) -> str:
    return one_domain({"name": FAULTY, "args": {"point": point, "how": how, "times": times}})


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", ONE_ATTEMPT)
def test_failed_plugin_fails_one_attempt_and_others_continue(point: str, how: str) -> None:
    async def main() -> None:
        async with open_cluster(faulty(point, how)) as cluster:
            await make_pods(cluster)
            await cluster.bound(*OTHERS, within_s=1.0)
            assert VICTIM not in cluster.bound_at
            await cluster.bound(VICTIM)

            assert cluster.bound_at[VICTIM] - cluster.bound_at["c"] > 0.9, "after its backoff"
            assert len(cluster.observer.failures) == 1
            assert cluster.observer.failures[0].startswith(f"Faulty {point}: ")
            assert cluster.worker().counters.attempts == len(OTHERS) + 2
            await cluster.at_rest()

    in_virtual_time(main)


@pytest.mark.parametrize("point", ONE_ATTEMPT)
def test_always_failing_plugin_affects_no_other_pod(point: str) -> None:
    async def main() -> None:
        async with open_cluster(faulty(point, "raise", times=10**6)) as cluster:
            await make_pods(cluster)
            await cluster.bound(*OTHERS, within_s=1.0)
            await cluster.until(lambda: cluster.worker().counters.attempts >= len(OTHERS) + 4, within_s=90.0)

            waiting = cluster.waiting(VICTIM)
            assert VICTIM not in cluster.bound_at
            assert waiting is not None
            assert waiting.attempts >= 4
            assert "boom" in waiting.message
            assert cluster.worker().counters.attempts < 40, "backs off"

    in_virtual_time(main)


def test_failing_plugins_cover_every_extension_point() -> None:
    elsewhere = {"QueueSort", "PreEnqueue", "PostFilter", "PostBind"}
    assert set(ONE_ATTEMPT) - {"Sign"} | elsewhere == set(EXTENSION_POINTS)
    assert len(EXTENSION_POINTS) == 13
    assert BENIGN.keys() >= set(ONE_ATTEMPT)


@pytest.mark.parametrize("how", [*HOWS, "incomparable"])
def test_failed_queue_sort_puts_its_pod_first(how: str) -> None:
    async def main() -> None:
        text = one_domain({"name": SORT, "args": {"how": how}}, queue_sort=SORT, concurrency={"bindWorkers": 1})
        async with open_cluster(text) as cluster:
            for name in (*OTHERS, VICTIM):
                await cluster.pod(name, cpu="1")
            await cluster.node("n")
            await cluster.bound(VICTIM, *OTHERS)

            assert cluster.observer.failures
            assert all(failure.startswith("FaultySort QueueSort") for failure in cluster.observer.failures)
            await cluster.at_rest()

    in_virtual_time(main)


@pytest.mark.parametrize("how", HOWS)
def test_failed_pre_enqueue_gates_its_pod_until_an_event(how: str) -> None:
    async def main() -> None:
        async with open_cluster(faulty("PreEnqueue", how)) as cluster:
            await cluster.pod(VICTIM, cpu="1")
            await cluster.until(lambda: cluster.waiting(VICTIM) is not None)
            waiting = cluster.waiting(VICTIM)
            assert waiting is not None
            assert (waiting.state.value, waiting.plugins) == ("gated", ("Faulty",))

            await make_others(cluster)
            await cluster.bound(VICTIM, *OTHERS)
            assert len(cluster.observer.failures) == 1
            await cluster.at_rest()

    in_virtual_time(main)


async def make_others(cluster: ProgramCluster) -> None:
    await cluster.node("n", cpu="16")
    for name in OTHERS:
        await cluster.pod(name, cpu="1")


@pytest.mark.parametrize("how", HOWS)
def test_failed_post_filter_keeps_the_refusal_message(how: str) -> None:
    async def main() -> None:
        async with open_cluster(faulty("PostFilter", how)) as cluster:
            await make_pods(cluster, victim_cpu="100")
            await cluster.bound(*OTHERS, within_s=1.0)
            await cluster.until(lambda: bool(cluster.observer.failures))
            await cluster.node("huge", cpu="128")
            await cluster.bound(VICTIM)

            assert cluster.node_of(VICTIM) == "huge"
            assert cluster.observer.failures[0].startswith("Faulty PostFilter")
            await cluster.at_rest()

    in_virtual_time(main)


def test_failed_unreserve_still_releases_everything() -> None:
    async def main() -> None:
        async with open_cluster(faulty("Unreserve", "raise")) as cluster:
            await cluster.node("n", cpu="4")
            await cluster.pod(VICTIM, cpu="4")
            await cluster.until(lambda: bool(cluster.observer.failures))
            assert cluster.observer.failures[0].startswith("Faulty Unreserve")
            await cluster.until(lambda: not len(cluster.program.cache))

            await cluster.bound(VICTIM)
            await cluster.at_rest()

    in_virtual_time(main)


@pytest.mark.parametrize("how", HOWS)
def test_failed_post_bind_keeps_the_pod_bound(how: str) -> None:
    async def main() -> None:
        async with open_cluster(faulty("PostBind", how)) as cluster:
            await make_pods(cluster)
            await cluster.bound(VICTIM, *OTHERS, within_s=1.0)

            assert [f.split(":")[0] for f in cluster.observer.failures] == ["Faulty PostBind"] * (how == "raise")
            await cluster.at_rest()

    in_virtual_time(main)
