"""A plugin that fails costs its pod one attempt and never the loop, at every extension point, through the whole program."""

from __future__ import annotations

import pytest

from multisched.framework.registry import EXTENSION_POINTS
from tests.integration.plugins.faulty import BENIGN, VICTIM
from tests.integration.plugins.house import House, in_virtual_time, one_domain, open_house

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


async def make_pods(house: House, *, victim_cpu: str = "1") -> None:
    await house.node("n", cpu="16")
    await house.pod(VICTIM, cpu=victim_cpu)
    for name in OTHERS:
        await house.pod(name, cpu="1")


def faulty(point: str, how: str, times: int = 1) -> str:
    return one_domain({"name": FAULTY, "args": {"point": point, "how": how, "times": times}})


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", ONE_ATTEMPT)
def test_failed_plugin_fails_one_attempt_and_others_continue(point: str, how: str) -> None:
    async def story() -> None:
        async with open_house(faulty(point, how)) as house:
            await make_pods(house)
            await house.bound(*OTHERS, within_s=1.0)
            assert VICTIM not in house.bound_at
            await house.bound(VICTIM)

            assert house.bound_at[VICTIM] - house.bound_at["c"] > 0.9, "after its backoff"
            assert len(house.observer.failures) == 1
            assert house.observer.failures[0].startswith(f"Faulty {point}: ")
            assert house.worker().counters.attempts == len(OTHERS) + 2
            await house.at_rest()

    in_virtual_time(story)


@pytest.mark.parametrize("point", ONE_ATTEMPT)
def test_always_failing_plugin_affects_no_other_pod(point: str) -> None:
    async def story() -> None:
        async with open_house(faulty(point, "raise", times=10**6)) as house:
            await make_pods(house)
            await house.bound(*OTHERS, within_s=1.0)
            await house.until(lambda: house.worker().counters.attempts >= len(OTHERS) + 4, within_s=90.0)

            waiting = house.waiting(VICTIM)
            assert VICTIM not in house.bound_at
            assert waiting is not None
            assert waiting.attempts >= 4
            assert "boom" in waiting.message
            assert house.worker().counters.attempts < 40, "backs off"

    in_virtual_time(story)


def test_failing_plugins_cover_every_extension_point() -> None:
    elsewhere = {"QueueSort", "PreEnqueue", "PostFilter", "PostBind"}
    assert set(ONE_ATTEMPT) - {"Sign"} | elsewhere == set(EXTENSION_POINTS)
    assert len(EXTENSION_POINTS) == 13
    assert BENIGN.keys() >= set(ONE_ATTEMPT)


@pytest.mark.parametrize("how", [*HOWS, "incomparable"])
def test_failed_queue_sort_puts_its_pod_first(how: str) -> None:
    async def story() -> None:
        text = one_domain({"name": SORT, "args": {"how": how}}, queue_sort=SORT, concurrency={"bindWorkers": 1})
        async with open_house(text) as house:
            for name in (*OTHERS, VICTIM):
                await house.pod(name, cpu="1")
            await house.node("n")
            await house.bound(VICTIM, *OTHERS)

            assert house.observer.failures
            assert all(failure.startswith("FaultySort QueueSort") for failure in house.observer.failures)
            await house.at_rest()

    in_virtual_time(story)


@pytest.mark.parametrize("how", HOWS)
def test_failed_pre_enqueue_gates_its_pod_until_an_event(how: str) -> None:
    async def story() -> None:
        async with open_house(faulty("PreEnqueue", how)) as house:
            await house.pod(VICTIM, cpu="1")
            await house.until(lambda: house.waiting(VICTIM) is not None)
            waiting = house.waiting(VICTIM)
            assert waiting is not None
            assert (waiting.state.value, waiting.plugins) == ("gated", ("Faulty",))

            await make_others(house)
            await house.bound(VICTIM, *OTHERS)
            assert len(house.observer.failures) == 1
            await house.at_rest()

    in_virtual_time(story)


async def make_others(house: House) -> None:
    await house.node("n", cpu="16")
    for name in OTHERS:
        await house.pod(name, cpu="1")


@pytest.mark.parametrize("how", HOWS)
def test_failed_post_filter_keeps_the_refusal_message(how: str) -> None:
    async def story() -> None:
        async with open_house(faulty("PostFilter", how)) as house:
            await make_pods(house, victim_cpu="100")
            await house.bound(*OTHERS, within_s=1.0)
            await house.until(lambda: bool(house.observer.failures))
            await house.node("huge", cpu="128")
            await house.bound(VICTIM)

            assert house.node_of(VICTIM) == "huge"
            assert house.observer.failures[0].startswith("Faulty PostFilter")
            await house.at_rest()

    in_virtual_time(story)


def test_failed_unreserve_still_releases_everything() -> None:
    async def story() -> None:
        async with open_house(faulty("Unreserve", "raise")) as house:
            await house.node("n", cpu="4")
            await house.pod(VICTIM, cpu="4")
            await house.until(lambda: bool(house.observer.failures))
            assert house.observer.failures[0].startswith("Faulty Unreserve")
            await house.until(lambda: not len(house.program.cache))

            await house.bound(VICTIM)
            await house.at_rest()

    in_virtual_time(story)


@pytest.mark.parametrize("how", HOWS)
def test_failed_post_bind_keeps_the_pod_bound(how: str) -> None:
    async def story() -> None:
        async with open_house(faulty("PostBind", how)) as house:
            await make_pods(house)
            await house.bound(VICTIM, *OTHERS, within_s=1.0)

            assert [f.split(":")[0] for f in house.observer.failures] == ["Faulty PostBind"] * (how == "raise")
            await house.at_rest()

    in_virtual_time(story)
