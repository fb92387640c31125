"""The tide with the whole program: inference takes cards from training, whole gangs after a notice, and training comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from domains.gpu.commands import tide_tables
from multisched.framework.ports import ExtenderError
from multisched.model.wire import MERGE_PATCH, Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import PODS
from tests.integration.gpu.tide_cluster import (
    MIN_RUN_S,
    NOTICE,
    NOTICE_S,
    SERVING,
    TideCluster,
    fails,
    gpu_node,
    hangs,
    open_tide_cluster,
)

Story = Callable[[TideCluster], Awaitable[None]]
TWO_NODES = (gpu_node("a"), gpu_node("b"))


def run(story: Story, *nodes: Any, seed: int = 1, **options: Any) -> None:
    """Runs the story in a cluster of two nodes of eight cards, or of these nodes."""
    loop = SimLoop(seed)

    async def main() -> None:
        async with open_tide_cluster(loop, *(nodes or TWO_NODES), seed=seed, **options) as cluster:
            await story(cluster)

    simulate(main(), loop)


async def old_gang(cluster: TideCluster, **labels: str) -> None:
    """A gang of two pods of eight cards that has run for its minimum."""
    await cluster.train("train", labels=labels)
    await cluster.runs("train", 2)
    await asyncio.sleep(MIN_RUN_S)


def test_inference_takes_a_whole_gang_which_returns_and_stays_for_its_minimum() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        await cluster.serve("chat", 0)
        await cluster.scale("chat", 4)
        scaled_s = cluster.now_s
        assert await cluster.runs("chat", 4) - scaled_s <= 30.0
        evicted = cluster.evicted("train")
        assert len(evicted) == 2
        ((called_s, body),) = cluster.hook.calls
        assert called_s < min(one.evicted_s or 0 for one in evicted)
        assert (body["gang"], len(body["pods"])) == ("default/train", 2)
        assert await cluster.running("train") == []
        assert any("held back" in text for text in await cluster.messages("train")), await cluster.messages("train")

        await cluster.scale("chat", 0)
        scaled_s = cluster.now_s
        returned_s = await cluster.runs("train", 2)
        assert returned_s - scaled_s <= 60.0
        await cluster.scale("chat", 4)
        await cluster.runs("chat", 4, within_s=MIN_RUN_S + 30.0)
        assert min(one.evicted_s or 0 for one in cluster.evicted("train")[2:]) >= returned_s + MIN_RUN_S - 1.0
        assert len(cluster.hook.calls) == 2

    run(story)


async def is_down() -> bytes:
    raise ExtenderError("cannot be reached", was_sent=False)


@pytest.mark.parametrize(("answer", "calls"), [(hangs, 1), (fails, 1), (is_down, None)])
def test_hook_that_fails_delays_no_deadline(answer: Callable[[], Awaitable[bytes]], calls: int | None) -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        await cluster.serve("chat", 4)
        await cluster.runs("chat", 4, within_s=30.0)
        assert max(one.had_notice_s for one in cluster.evicted("train")) <= NOTICE_S + 1.0
        assert len({body["notice"] for _, body in cluster.hook.calls}) == 1
        assert calls is None or len(cluster.hook.calls) == calls
        assert await cluster.events("TideHookFailed")

    run(story, answer=answer)


@pytest.mark.parametrize(
    ("part", "number"),
    [
        pytest.param("/status", 1, id="before the notice"),
        pytest.param("/status", 2, id="after the notice of one member"),
        pytest.param("/status", 3, id="before the hook is noted"),
        pytest.param("/eviction", 1, id="before the eviction"),
        pytest.param("/eviction", 2, id="after the eviction of one member"),
    ],
)
def test_another_leader_carries_out_the_notice_once(part: str, number: int) -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        cluster.dies_at = "/pods/train-", part, number
        await cluster.serve("chat", 4)
        await cluster.runs("chat", 4, within_s=60.0)
        assert cluster.inner.killed == 1
        assert len(cluster.evicted("train")) == 2
        assert {body["gang"] for _, body in cluster.hook.calls} == {"default/train"}
        assert len(cluster.hook.calls) == (2 if part == "/status" and number == 3 else 1)

    run(story, replicas=2)


@pytest.mark.parametrize("least", [2, 1])
def test_budget_that_does_not_allow_the_whole_gang_keeps_it(least: int) -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster, team="ml")
        await cluster.budget("ml", least, team="ml")
        await asyncio.sleep(2.0)
        await cluster.serve("chat", 4)
        await asyncio.sleep(30.0)
        assert len(await cluster.running("train")) == 2
        assert await cluster.running("chat") == []
        assert (cluster.hook.calls, await cluster.events("TideNotice")) == ([], [])

    run(story)


def test_budget_that_appears_after_the_notice_ends_it() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster, team="ml")
        await cluster.serve("chat", 4)

        async def has_notice() -> bool:
            return bool(await cluster.events("TideNotice"))

        await cluster.inner.until(has_notice)
        await cluster.budget("ml", 2, team="ml")
        await asyncio.sleep(NOTICE_S + 10.0)
        pods = await cluster.running("train")
        assert [NOTICE in (pod["metadata"].get("annotations") or {}) for pod in pods] == [False, False]
        assert await cluster.events("TideNoticeWithdrawn")
        assert cluster.evicted("train") == []

    run(story)


def test_inference_for_a_model_that_training_does_not_hold_evicts_nothing() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        await cluster.serve("chat", 4, model="H100")
        await asyncio.sleep(30.0)
        assert len(await cluster.running("train")) == 2
        assert cluster.evicted("train") == []
        assert not await cluster.events("TideNotice")

    run(story)


def test_forged_notice_is_removed_and_evicts_nothing() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        times = {"deadline": "2020-01-01T00:00:01Z", "issued": "2020-01-01T00:00:00Z"}
        forged = orjson.dumps({**times, "for": "me", "id": "0" * 16}).decode()
        for pod in await cluster.running("train"):
            body = {"metadata": {"annotations": {NOTICE: forged}}}
            await cluster.send("PATCH", f"{PODS}/{pod['metadata']['name']}", body, content_type=MERGE_PATCH)
        await asyncio.sleep(10.0)
        pods = await cluster.running("train")
        assert [(pod["metadata"].get("annotations") or {}).get(NOTICE) for pod in pods] == [None, None]
        assert await cluster.events("TideNoticeIgnored")
        assert cluster.evicted("train") == []

    run(story)


def test_frozen_tide_evicts_nothing() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        await cluster.serve("chat", 4)
        await asyncio.sleep(30.0)
        assert len(await cluster.running("train")) == 2
        assert not await cluster.events("TideNotice")

    run(story, frozen=True)


def refusing(part: str, code: int, names: Callable[[str], bool]) -> Callable[[str], Response | None]:
    """Returns the answers of a server that refuses writes of these pods."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "refused by a test"}

    def answer(path: str) -> Response | None:
        is_refused = path.endswith(part) and "/pods/train-" in path and names(path.split("/")[-2])
        return Response(code, orjson.dumps(status)) if is_refused else None

    return answer


def test_gang_is_not_evicted_if_a_member_cannot_get_the_notice() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        last = max(pod["metadata"]["name"] for pod in await cluster.running("train"))
        cluster.inner.answer = refusing("/status", 403, lambda name: name == last)
        await cluster.serve("chat", 4)
        await asyncio.sleep(NOTICE_S + 20.0)
        cluster.inner.answer = lambda path: None
        await asyncio.sleep(2.0)
        pods = await cluster.running("train")
        assert [NOTICE in (pod["metadata"].get("annotations") or {}) for pod in pods] == [False, False]
        assert len(await cluster.events("TideNoticeFailed")) == 1
        assert (cluster.evicted("train"), cluster.hook.calls) == ([], [])

    run(story)


@pytest.mark.parametrize("code", [429, 500])
def test_member_whose_eviction_is_refused_is_tried_again_until_the_gang_has_left(code: int) -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        first, last = sorted(pod["metadata"]["name"] for pod in await cluster.running("train"))
        cluster.inner.answer = refusing("/eviction", code, lambda name: name == last)
        await cluster.serve("chat", 4)

        async def is_in_part() -> bool:
            return [pod["metadata"]["name"] for pod in await cluster.running("train")] == [last]

        await cluster.inner.until(is_in_part)
        await asyncio.sleep(5.0)
        assert await is_in_part(), "inference has what it needs, and yet the gang must go"
        assert code != 429 or await cluster.events("TideEvictionRefused")
        assert cluster.metric("tide_gangs_in_part") == {(): 1.0}
        assert "1 gangs were evicted in part" in cluster.tide.health(cluster.now_s)
        cluster.inner.answer = lambda path: None
        await cluster.runs(last, 0, within_s=5.0)
        assert first in {one.name for one in cluster.evicted("train")}

    run(story)


def test_notice_survives_a_reload_that_freezes_the_tide_for_a_while() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        await cluster.serve("chat", 4)

        async def is_called() -> bool:
            return bool(cluster.hook.calls)

        await cluster.inner.until(is_called)
        await asyncio.sleep(0.5)  # the call is noted on a pod
        cluster.reload(frozen=True)
        await asyncio.sleep(NOTICE_S + 5.0)
        assert len(await cluster.running("train")) == 2
        cluster.reload()
        await cluster.runs("chat", 4, within_s=10.0)
        assert len(cluster.evicted("train")) == 2
        assert len(cluster.hook.calls) == 1

    run(story)


def test_training_that_is_held_back_uses_nodes_of_other_models() -> None:
    async def story(cluster: TideCluster) -> None:
        await cluster.serve("chat", 4, model="A100")
        await cluster.runs("chat", 4)
        await cluster.train("train", 1)
        await cluster.runs("train", 1)
        assert [pod["spec"]["nodeName"] for pod in await cluster.running("train")] == ["h"]
        await cluster.train("more", 1, 4)
        await asyncio.sleep(10.0)
        assert await cluster.running("more") == []
        assert any("the tide holds training back" in text for text in await cluster.messages("more"))

    run(story, gpu_node("a"), gpu_node("h", model="H100"), inference={**SERVING, "floor": 8})


def test_gangs_of_one_budget_leave_whole_or_not_at_all() -> None:
    async def story(cluster: TideCluster) -> None:
        for name in ("train-a", "train-b"):
            await cluster.train(name, 2, 4, labels={"team": "ml"})
        await cluster.runs("train", 4)
        await asyncio.sleep(MIN_RUN_S)
        await cluster.budget("ml", 1, team="ml")  # allows three of the four
        await asyncio.sleep(2.0)
        await cluster.serve("chat", 2, 8)
        await asyncio.sleep(NOTICE_S + 10.0)
        assert sorted([len(await cluster.running("train-a")), len(await cluster.running("train-b"))]) == [0, 2]
        assert len(await cluster.running("chat")) == 1

    run(story)


def test_view_and_metrics_show_notices_and_what_evictions_cost() -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        await cluster.serve("chat", 4)

        async def is_called() -> bool:
            return bool(cluster.hook.calls)

        await cluster.inner.until(is_called)
        await asyncio.sleep(0.5)
        [notice] = (await cluster.view())["notices"]
        assert (notice["gang"], notice["cards"], notice["podsWithNotice"], notice["isHookDone"]) == (
            "default/train",
            16,
            2,
            True,
        )
        assert "default/train" in tide_tables.tide(await cluster.view(), is_wide=True)
        assert cluster.metric("tide_notices_in_progress") == {(): 1.0}
        assert cluster.metric("tide_cards")["training",] == 16.0

        await cluster.runs("chat", 4)
        found = await cluster.view()
        assert (found["notices"], found["losses"]["gangs"], found["losses"]["cards"]) == ([], 1, 16)
        assert found["losses"]["latest"][0]["gang"] == "default/train"
        [waiting] = found["training"]["waiting"]
        assert waiting["why"].startswith("held back")
        assert waiting["why"] in tide_tables.tide(found, is_wide=True)
        assert cluster.metric("tide_evicted_gangs") == {(): 1.0}
        assert cluster.metric("tide_hook_calls")["answered",] == 1.0
        assert cluster.metric("tide_gangs_in_part") == {(): 0.0}

    run(story)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_more_important_inference_does_not_preempt_training(is_frozen: bool) -> None:
    async def story(cluster: TideCluster) -> None:
        await old_gang(cluster)
        await cluster.serve("chat", 4, priority=1000)
        if is_frozen:
            await asyncio.sleep(30.0)
            assert len(await cluster.running("train")) == 2
            assert any("not by preemption" in text for text in await cluster.messages("chat"))
        else:
            await cluster.runs("chat", 4, within_s=30.0)

    run(story, frozen=is_frozen)
