"""Loans between two processes: what slices offer and hold, and what happens when one process ends."""

from __future__ import annotations

import asyncio

from tests.integration.loans.sliced_cluster import (
    BORROWER,
    BOTH,
    LATER_BORROWER,
    LENDER,
    NOTICE_S,
    SlicedCluster,
    play,
)


def test_borrower_in_another_process_uses_what_it_claimed() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("gpu", 2)
        await asyncio.sleep(10.0)
        await sliced.add("job", 20)
        await asyncio.sleep(40.0)
        offered, held = await sliced.amounts()
        for leads, domain in ((LENDER, "gpu"), (BORROWER, "job")):
            (shown,) = (await sliced.loans(leads, domain))["slices"]
            assert (shown["offered"]["cpuMilli"], shown["held"]["cpuMilli"]) == (offered, held)
        assert len(sliced.bound("gpu")) == 2
        assert len(sliced.bound("job")) == 14
        assert held >= 14_000

    play(story)


def test_stream_of_pods_is_claimed_with_few_writes() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        for _ in range(60):
            await sliced.add("job", 1)
            await asyncio.sleep(0.5)
        await asyncio.sleep(10.0)
        assert len(sliced.bound("job")) == 60
        (found,) = await sliced.slices()
        assert found["status"]["writes"] <= 8

    play(story, nodes=8)


def test_pod_of_the_lender_gets_back_what_is_held_after_the_notice() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("job", 20)
        await asyncio.sleep(20.0)
        assert len(sliced.bound("job")) == 16
        await sliced.add("gpu", 3, "2")
        waited_s = await sliced.until_bound("gpu", 3)
        assert NOTICE_S <= waited_s <= NOTICE_S + 10.0
        await asyncio.sleep(10.0)
        assert sliced.requested("job") + sliced.requested("gpu") <= 16_000
        assert sliced.requested("job") >= 9_000, "no more was taken than needed"

    play(story, nodes=2)


def test_pods_of_the_lender_that_come_together_are_one_recall() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("job", 40)
        await asyncio.sleep(30.0)
        assert len(sliced.bound("job")) == 32
        (before,) = await sliced.slices()
        for _ in range(4):
            await sliced.add("gpu", 1, "3")
            await asyncio.sleep(0.2)
        await asyncio.sleep(5.0)
        (after,) = await sliced.slices()
        assert after["spec"]["writes"] == before["spec"]["writes"] + 1
        assert await sliced.amounts() == (20_000, 32_000)

    play(story, nodes=4)


def test_offers_that_no_pod_uses_return_without_a_notice() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        assert await sliced.amounts() == (16_000, 0)
        await sliced.add("gpu", 4, "4")
        assert await sliced.until_bound("gpu", 4) < 5.0

    play(story)


def test_pod_of_the_lender_takes_what_is_free_before_pods_have_to_end() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await sliced.cluster.add_pod("gpu", "6", nodeName="node-0")
        fill = await sliced.cluster.add_pod("gpu", "8", nodeName="node-1")
        await asyncio.sleep(20.0)
        await sliced.add("job", 1)
        await asyncio.sleep(10.0)
        await sliced.cluster.delete_pod(fill)
        await asyncio.sleep(10.0)
        jobs = await sliced.add("job", 3)
        await asyncio.sleep(10.0)
        assert [sliced.cluster.node_of(name) for name in jobs] == ["node-1"] * 3
        (pod,) = await sliced.add("gpu", 1, "2")
        assert await sliced.until_bound("gpu", 2) < 5.0
        assert sliced.cluster.node_of(pod) == "node-1", "there are more pods, but none of them has to end"
        await asyncio.sleep(2 * NOTICE_S)
        assert len(sliced.bound("job")) == 4

    play(story)


def test_many_pods_of_the_lender_take_what_is_offered_within_seconds() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("job", 4)
        await asyncio.sleep(10.0)
        (before,) = await sliced.slices()
        assert sum(one["cpuMilli"] for one in before["spec"]["offers"].values()) == 32_000
        for _ in range(40):
            await sliced.add("gpu", 1, "500m")
            await asyncio.sleep(0.1)
        assert await sliced.until_bound("gpu", 40) < 4.0
        (after,) = await sliced.slices()
        assert after["spec"]["writes"] - before["spec"]["writes"] <= 8
        assert len(sliced.bound("job")) == 4, "no pod has to end"

    play(story, nodes=4)


def test_needs_of_several_pods_within_a_second_are_one_write() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("job", 16)
        await asyncio.sleep(20.0)
        (before,) = await sliced.slices()
        for _ in range(10):
            await sliced.add("gpu", 1)
            await asyncio.sleep(0.2)
        await asyncio.sleep(2.5)
        (after,) = await sliced.slices()
        assert 1 <= after["spec"]["writes"] - before["spec"]["writes"] <= 4
        offered = sum(one["cpuMilli"] for one in after["spec"]["offers"].values())
        assert offered == 6_000, "all ten are considered"

    play(story)


def test_new_leader_of_the_lender_tries_waiting_pods_before_it_lends_more() -> None:
    async def story(sliced: SlicedCluster) -> None:
        names = await sliced.add("gpu", 4, "2")
        await asyncio.sleep(30.0)
        (before,) = await sliced.slices()
        assert await sliced.amounts() == (8_000, 0)
        await sliced.cluster.kill(sliced.of(LENDER))
        for name in names:
            await sliced.cluster.delete_pod(name)
        sliced.start(LENDER)
        for _ in range(600):
            (found,) = await sliced.slices()
            if found["spec"]["lenderEpoch"] != before["spec"]["lenderEpoch"]:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(12.0)
        assert await sliced.amounts() == (8_000, 0), "a pod that waits would have to take it back"
        await asyncio.sleep(8.0)
        assert await sliced.amounts() == (16_000, 0)

    play(story)


def test_claims_grow_while_pods_keep_coming() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        (before,) = await sliced.slices()
        for _ in range(60):
            await sliced.add("job", 1, "500m")
            await asyncio.sleep(0.3)
            requested = sliced.requested("job")
            assert requested <= (await sliced.amounts())[1], "no pod is bound before it is claimed"
        assert await sliced.until_bound("job", 60) < 4.0
        (after,) = await sliced.slices()
        assert after["status"]["writes"] - before["status"]["writes"] <= 9
        await asyncio.sleep(60.0)
        assert (await sliced.amounts())[1] <= 33_000, "what was claimed in advance is released"

    play(story, nodes=6)


def test_what_pods_of_the_lender_free_one_by_one_is_offered_together() -> None:
    async def story(sliced: SlicedCluster) -> None:
        pods = [await sliced.cluster.add_pod("gpu", "1", nodeName=f"node-{number % 2}") for number in range(12)]
        await asyncio.sleep(25.0)
        (before,) = await sliced.slices()
        for name in pods:
            await sliced.cluster.delete_pod(name)
            await asyncio.sleep(1.0)
        await asyncio.sleep(20.0)
        assert await sliced.amounts() == (16_000, 0)
        (after,) = await sliced.slices()
        assert after["spec"]["writes"] - before["spec"]["writes"] <= 2

    play(story)


def test_claims_are_released_when_no_pod_uses_them() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        names = await sliced.add("job", 10)
        await asyncio.sleep(10.0)
        for name in names:
            await sliced.cluster.delete_pod(name)
        await asyncio.sleep(5.0)
        assert (await sliced.amounts())[1] >= 10_000, "kept for pods that may come"
        await asyncio.sleep(60.0)
        assert (await sliced.amounts())[1] == 0

    play(story)


def test_borrower_that_is_killed_keeps_its_pods_and_continues() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("job", 10)
        await asyncio.sleep(10.0)
        await sliced.cluster.kill(sliced.of(BORROWER))
        await sliced.add("job", 4)
        await asyncio.sleep(5.0)
        sliced.start(BORROWER)
        await asyncio.sleep(60.0)
        assert len(sliced.bound("job")) == 14

    play(story)


def test_lender_takes_back_unused_slices_of_a_dead_borrower() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        names = await sliced.add("job", 16)
        await asyncio.sleep(10.0)
        assert (await sliced.amounts())[1] == 16_000
        await sliced.cluster.kill(sliced.of(BORROWER))
        for name in names[:10]:
            await sliced.cluster.delete_pod(name)
        await sliced.add("gpu", 10)
        await asyncio.sleep(5.0)
        assert sliced.bound("gpu") == [], "its lease is still held"
        assert await sliced.until_bound("gpu", 10) < 45.0
        sliced.start(BORROWER)
        await asyncio.sleep(60.0)
        assert len(sliced.bound("job")) == 6

    play(story)


def test_borrower_works_on_while_the_lender_is_dead() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("job", 4)
        await asyncio.sleep(10.0)
        await sliced.cluster.kill(sliced.of(LENDER))
        await sliced.add("job", 20)
        await asyncio.sleep(10.0)
        assert len(sliced.bound("job")) == 16, "what was offered stays offered"
        sliced.start(LENDER)
        await asyncio.sleep(60.0)
        await sliced.add("gpu", 4)
        await asyncio.sleep(NOTICE_S + 20.0)
        assert len(sliced.bound("gpu")) == 4

    play(story)


def test_what_a_later_borrower_does_not_hold_returns_to_the_first_one() -> None:
    async def story(sliced: SlicedCluster) -> None:
        for number in range(2):
            await sliced.cluster.label(f"node-{number}", kept="yes")
        await asyncio.sleep(20.0)
        await sliced.add("web", 4)
        await asyncio.sleep(20.0)
        assert len(sliced.bound("web")) == 4
        for number in range(2):
            await sliced.cluster.label(f"node-{number}", kept=None)
        await sliced.add("job", 12)
        assert await sliced.until_bound("job", 10) < 20.0, "the later one holds a tenth more than its pods request"
        await asyncio.sleep(2 * NOTICE_S)
        assert len(sliced.bound("web")) == 4, "no pod has to end"
        assert all(cpu <= 8_000 for cpu in (await sliced.reserved()).values())

    selector = {"matchExpressions": [{"key": "kept", "operator": "DoesNotExist"}]}
    play(story, leads=(LENDER, BORROWER, LATER_BORROWER), has_later=True, selector=selector)


def test_nothing_is_borrowed_without_the_definition() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add("job", 4)
        await sliced.add("gpu", 4)
        await asyncio.sleep(20.0)
        assert (len(sliced.bound("job")), len(sliced.bound("gpu"))) == (0, 4)
        assert "apply deploy/crds/slicesets.yaml" in sliced.health(LENDER, "gpu")
        assert "gpu has published no SliceSet" in sliced.health(BORROWER, "job")
        (event,) = await sliced.events("SlicesNotServed")
        assert "deprecatedCount" not in event, "it is not recorded with each attempt"
        assert "apply deploy/crds/slicesets.yaml" in event["note"]
        await sliced.install()
        await asyncio.sleep(90.0)
        assert len(sliced.bound("job")) == 4
        assert sliced.health(BORROWER, "job") == ""

    play(story, is_installed=False)


def test_spread_leases_give_each_process_one_domain_until_one_ends() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(30.0)
        led = [sliced.led_by(replica) for replica in sliced.cluster.replicas]
        assert sorted(map(sorted, led)) == [["gpu"], ["job"]]
        await sliced.add("job", 16)
        assert await sliced.until_bound("job", 16) < 10.0
        await sliced.cluster.kill(sliced.cluster.replicas[0])
        await asyncio.sleep(60.0)
        (left,) = sliced.cluster.replicas
        assert sliced.led_by(left) == {"gpu", "job"}
        await sliced.add("gpu", 4)
        assert NOTICE_S <= await sliced.until_bound("gpu", 4) <= NOTICE_S + 10.0

    play(story, leads=(BOTH, BOTH), spread=True)


def test_foreign_pods_lower_the_offer_and_are_reported_once() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        await sliced.add_foreign("node-0", "3")
        await sliced.add_foreign("node-0", "1")
        await asyncio.sleep(30.0)
        assert await sliced.amounts() == (12_000, 0)
        (event,) = await sliced.events("ForeignPodsOnLoan")
        assert event["regarding"]["name"] == "node-0"
        assert "pods of default-scheduler are on this node, which is lent to job" in event["note"]
        assert "pods of default-scheduler are on 1 nodes of the loan to job" in sliced.health(LENDER, "gpu")
        await sliced.add("job", 20)
        await asyncio.sleep(20.0)
        assert len(sliced.bound("job")) == 12

    play(story)


def test_reserve_for_foreign_pods_is_never_offered() -> None:
    async def story(sliced: SlicedCluster) -> None:
        await asyncio.sleep(20.0)
        assert await sliced.amounts() == (12_000, 0)
        await sliced.add("job", 20)
        await asyncio.sleep(20.0)
        await sliced.add_foreign("node-0", "2")
        await asyncio.sleep(30.0)
        assert len(sliced.bound("job")) == 12, "the pod has used the reserve"
        assert await sliced.events("ForeignPodsOnLoan") == []
        assert "pods of" not in sliced.health(LENDER, "gpu")

    play(story, foreignReservePercent=25)


def test_lender_that_cannot_list_slices_says_so_and_does_not_begin() -> None:
    async def story(sliced: SlicedCluster) -> None:
        lender = sliced.start(LENDER)
        lender.transport.forbidden = "/slicesets"
        await sliced.add("gpu", 2)
        await asyncio.sleep(40.0)
        assert "SliceSets cannot be listed: " in sliced.health(LENDER, "gpu")
        assert sliced.bound("gpu") == []
        lender.transport.forbidden = "forbidden"
        assert await sliced.until_bound("gpu", 2) < 10.0

    play(story, leads=(BORROWER,))
