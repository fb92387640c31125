"""Gangs through the whole program in its shipped configuration: started together or not at all, and told why they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from multisched.model.gang import SP_LABEL, TOPOLOGY_ANNOTATION
from multisched.plugins.default_preemption import NO_VICTIMS_FOR_ALL
from tests.integration.plugins.gang_kit import (
    GROUPS,
    PODS,
    SCHEDULER,
    ack,
    condition,
    koordinator,
    member,
    members,
    nodes,
    notes,
    waiting,
)
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, in_virtual_time, one_domain, open_cluster


@asynccontextmanager
async def prepared_cluster(*names: str, cpu: str = "4") -> AsyncIterator[ProgramCluster]:
    """Nodes of so many CPUs each, at rest in the end."""

    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, *names, cpu=cpu)

    async with open_cluster(HEAD, before=before) as cluster:
        yield cluster
        await cluster.at_rest()


def queued(cluster: ProgramCluster) -> int:
    return len(cluster.worker("forecast").queue)


def test_gang_starts_only_when_its_last_member_exists() -> None:
    async def main() -> None:
        async with prepared_cluster("a", "b") as cluster:
            await members(cluster, ack("g", 3), "m0", "m1")
            await cluster.pod("other", scheduler=SCHEDULER)
            await cluster.bound("other")
            assert waiting(cluster, "m0") == "gated: gang default/g: waits until 3 members are there"
            await member(cluster, "m2", ack("g", 3))
            await cluster.bound("m0", "m1", "m2")

    in_virtual_time(main)


def test_held_members_get_a_condition_and_an_event() -> None:
    """koordinator-sh/koordinator#2480: members held at PreEnqueue get no event."""

    async def main() -> None:
        async with prepared_cluster("a") as cluster:
            await member(cluster, "m0", ack("g", 2))
            await asyncio.sleep(2.0)
            why = "gang default/g: waits until 2 members are there"
            assert await condition(cluster, "m0") == ("SchedulingGated", why)
            assert await notes(cluster, "FailedScheduling") == {"m0": [why]}

    in_virtual_time(main)


def test_members_of_a_gang_complete_within_a_second_get_no_report() -> None:
    async def main() -> None:
        async with prepared_cluster("a") as cluster:
            await member(cluster, "m0", ack("g", 2))
            await asyncio.sleep(0.9)
            await member(cluster, "m1", ack("g", 2))
            await cluster.bound("m0", "m1")
            await asyncio.sleep(2.0)
            assert await notes(cluster, "FailedScheduling") == {}

    in_virtual_time(main)


def test_gang_without_room_holds_nothing_and_starts_when_there_is() -> None:
    async def main() -> None:
        async with prepared_cluster("a", "b") as cluster:
            await members(cluster, ack("g", 10), *(f"m{number}" for number in range(10)))
            await cluster.until(lambda: bool(cluster.worker("forecast").queue.statistics().pending["unschedulable"]))
            for number in range(8):
                await cluster.pod(f"s{number}", cpu="1", scheduler=SCHEDULER)
            await cluster.bound(*(f"s{number}" for number in range(8)))
            await cluster.until(lambda: "of the 10 members" in waiting(cluster, "m0"))
            await cluster.node("c", cpu="12")
            await cluster.bound(*(f"m{number}" for number in range(10)))

    in_virtual_time(main)


def test_gang_larger_than_the_cluster_blocks_no_small_one() -> None:
    async def main() -> None:
        async with prepared_cluster("a", "b") as cluster:
            await cluster.priority_class("high", 100)
            await members(cluster, ack("large", 9), *(f"l{number}" for number in range(9)), priorityClassName="high")
            for number in range(3):
                await members(cluster, ack(f"small-{number}", 2), f"s{number}0", f"s{number}1")
            await cluster.bound(*(f"s{number}{at}" for number in range(3) for at in (0, 1)), within_s=5.0)
            assert "l0" not in cluster.bound_at

    in_virtual_time(main)


def test_two_gangs_that_need_most_of_the_cluster_run_in_turn() -> None:
    async def main() -> None:
        async with prepared_cluster("a", "b") as cluster:
            for number in range(5):
                await member(cluster, f"x{number}", ack("x", 5))
                await member(cluster, f"y{number}", ack("y", 5))
            await cluster.until(lambda: len(cluster.bound_at) == 5)
            await asyncio.sleep(30.0)
            (first,) = {name[0] for name in cluster.bound_at}
            second = "xy".replace(first, "")
            for number in range(5):
                await cluster.delete(f"{PODS}/{first}{number}")
            await cluster.bound(*(f"{second}{number}" for number in range(5)))

    in_virtual_time(main)


def test_interleaved_groups_do_not_hold_room_against_each_other() -> None:
    """scheduler-plugins#117, koordinator#872: the groups {A, B} and {C, D}, in the order A C B D, with room for one."""

    async def main() -> None:
        async with prepared_cluster("a", cpu="2") as cluster:
            groups = dict.fromkeys("ab", '["a", "b"]') | dict.fromkeys("cd", '["c", "d"]')
            for one in "acbd":
                await member(cluster, one, koordinator(one, 1, groups=groups[one]))
            await cluster.until(lambda: len(cluster.bound_at) == 2)
            assert set(cluster.bound_at) in ({"a", "b"}, {"c", "d"})
            await asyncio.sleep(20.0)
            left = sorted({*"abcd"} - set(cluster.bound_at))
            for one in list(cluster.bound_at):
                await cluster.delete(f"{PODS}/{one}")
            await cluster.bound(*left)

    in_virtual_time(main)


def test_surplus_members_join_one_by_one() -> None:
    async def main() -> None:
        async with prepared_cluster("a", cpu="3") as cluster:
            await members(cluster, ack("g", 2), "m0", "m1")
            await cluster.bound("m0", "m1")
            await members(cluster, ack("g", 2), "m2", "m3")
            await cluster.bound("m2")
            await cluster.until(lambda: waiting(cluster, "m3").startswith("unschedulable"))
            assert waiting(cluster, "m3").startswith("unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")

    in_virtual_time(main)


def test_most_important_members_start_first() -> None:
    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster)

    async def main() -> None:
        """They are there before the node is."""
        async with open_cluster(HEAD, before=before) as cluster:
            await cluster.priority_class("low", 1)
            await cluster.priority_class("high", 100)
            await members(cluster, ack("g", 2), "worker-0", "worker-1", "worker-2", priorityClassName="low")
            await member(cluster, "head", ack("g", 2), priorityClassName="high")
            await asyncio.sleep(1.0)
            await cluster.node("a", cpu="2")
            await cluster.until(lambda: len(cluster.bound_at) == 2)
            assert "head" in cluster.bound_at
            await cluster.at_rest()

    in_virtual_time(main)


def test_member_with_scheduling_gates_counts_after_they_are_removed() -> None:
    async def main() -> None:
        async with prepared_cluster("a") as cluster:
            await member(cluster, "m0", ack("g", 2))
            await member(cluster, "m1", ack("g", 2), schedulingGates=[{"name": "later"}])
            await cluster.until(lambda: "m1" in waiting(cluster, "m0"))
            assert waiting(cluster, "m0") == (
                "gated: gang default/g: waits until 2 members are there, not counting m1: it has scheduling gates"
            )
            await cluster.patch(f"{PODS}/m1", {"spec": {"schedulingGates": None}})
            await cluster.bound("m0", "m1")

    in_virtual_time(main)


def test_failed_member_is_replaced_and_finished_ones_count() -> None:
    """KAI#1968: finished members were forgotten."""

    async def main() -> None:
        async with prepared_cluster("a", "b") as cluster:
            await members(cluster, ack("g", 2), "m0", "m1")
            await cluster.bound("m0", "m1")
            await cluster.patch(f"{PODS}/m0/status", {"status": {"phase": "Succeeded"}})
            await cluster.delete(f"{PODS}/m1")
            await member(cluster, "m2", ack("g", 2))
            await cluster.bound("m2")

    in_virtual_time(main)


def test_new_leader_counts_members_that_finished_earlier() -> None:
    async def main() -> None:
        async def before(cluster: ProgramCluster) -> None:
            await nodes(cluster, "a")
            await member(cluster, "m0", ack("g", 2), nodeName="a")
            await cluster.patch(f"{PODS}/m0/status", {"status": {"phase": "Succeeded"}})

        async with open_cluster(HEAD, before=before) as cluster:
            await member(cluster, "m1", ack("g", 2))
            await cluster.bound("m1")
            await cluster.at_rest()

    in_virtual_time(main)


def test_gang_below_its_minimum_recovers_before_a_new_one_starts() -> None:
    """volcano-sh/volcano#5805."""

    async def main() -> None:
        async with prepared_cluster("a", cpu="3") as cluster:
            await members(cluster, ack("old", 3), "o0", "o1", "o2")
            await cluster.bound("o0", "o1", "o2")
            await members(cluster, ack("new", 2), "n0", "n1")
            await cluster.until(lambda: waiting(cluster, "n0").startswith(("unsch", "gang")))
            await members(cluster, ack("old", 3), "o3", "o4")
            await cluster.until(lambda: waiting(cluster, "o4").startswith("unsch"))
            await cluster.delete(f"{PODS}/o0")
            await cluster.delete(f"{PODS}/o1")
            await cluster.bound("o3", "o4")
            assert "n0" not in cluster.bound_at

    in_virtual_time(main)


def test_overdue_gang_names_the_existing_members() -> None:
    async def main() -> None:
        async with prepared_cluster("a") as cluster:
            await members(cluster, koordinator("g", 4, waiting_time="60s"), "m0", "m1")
            await asyncio.sleep(59.0)
            assert (await condition(cluster, "m0"))[1] == "gang default/g: waits until 4 members are there"
            await asyncio.sleep(3.0)
            why = "gang default/g has not started within 60 s: 2 of 4 members are there (m0, m1)"
            assert await condition(cluster, "m0") == ("SchedulingGated", why)
            assert (await notes(cluster, "FailedScheduling"))["m1"][-1] == why
            await members(cluster, koordinator("g", 4, waiting_time="60s"), "m2", "m3")
            await cluster.bound("m0", "m1", "m2", "m3")

    in_virtual_time(main)


def test_overdue_gang_without_room_names_members_without_nodes_and_why() -> None:
    async def main() -> None:
        async with prepared_cluster("a", cpu="1") as cluster:
            await members(cluster, koordinator("g", 2, waiting_time="60s"), "m0", "m1")
            await asyncio.sleep(50.0)
            why = "1 of the 2 members that must start together fit; m1: 0/1 nodes are available: 1 Insufficient cpu."
            why += f" preemption: {NO_VICTIMS_FOR_ALL}"
            assert await condition(cluster, "m0") == ("Unschedulable", f"gang default/g: {why}")
            await asyncio.sleep(12.0)
            for name in ("m0", "m1"):
                late = f"gang default/g has not started within 60 s: {why}"
                assert await condition(cluster, name) == ("Unschedulable", late)

    in_virtual_time(main)


def test_pod_group_sets_the_minimum_and_an_invalid_one_is_reported() -> None:
    async def main() -> None:
        async with prepared_cluster("a", "b") as cluster:
            await members(cluster, {"labels": {SP_LABEL: "g"}}, "m0", "m1")
            await cluster.until(lambda: queued(cluster) == 2)
            assert waiting(cluster, "m0") == (
                "gated: gang default/g: PodGroup default/g of scheduling.x-k8s.io is missing; create it"
            )
            await cluster.post(GROUPS, "g", {}, spec={"minMember": 0})
            await cluster.until(lambda: "minMember is 0" in waiting(cluster, "m0"))
            await cluster.patch(f"{GROUPS}/g", {"spec": {"minMember": 2}})
            await cluster.bound("m0", "m1")

    in_virtual_time(main)


def test_linked_koordinator_gangs_start_together() -> None:
    async def main() -> None:
        async with prepared_cluster("a", "b") as cluster:
            groups = '["default/x", "default/y"]'
            await member(cluster, "m0", koordinator("x", 1, groups=groups))
            await cluster.until(lambda: queued(cluster) == 1)
            assert "starts with gang default/y" in waiting(cluster, "m0")
            await member(cluster, "m1", koordinator("y", 1, groups=groups))
            await cluster.bound("m0", "m1")

    in_virtual_time(main)


def test_gang_and_later_members_are_placed_in_one_rack() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            for rack in ("r0", "r1"):
                for number in range(2):
                    await cluster.node(f"{rack}-{number}", cpu="2", labels={"rack": rack})
            metadata = ack("g", 3)
            metadata["annotations"] = {TOPOLOGY_ANNOTATION: "rack:required"}
            await members(cluster, metadata, "m0", "m1", "m2")
            await cluster.bound("m0", "m1", "m2")
            (rack,) = {cluster.node_of(f"m{number}")[:2] for number in range(3)}
            await members(cluster, metadata, "m3", "m4")
            await cluster.bound("m3")
            assert cluster.node_of("m3").startswith(rack)
            await cluster.until(lambda: waiting(cluster, "m4").startswith("unschedulable"))
            why = "gang default/g: no domain of rack has room for one more member, 0 at most."
            nobody = "preemption: No preemption victims found that would make room for all that must start together."
            assert waiting(cluster, "m4") == f"unschedulable: {why} {nobody}"
            await cluster.delete(f"{PODS}/m0")
            await cluster.bound("m4")

    in_virtual_time(main)


def test_gang_with_remote_plugins_starts_whole_or_is_decided_again() -> None:
    oracle = {"name": "tests.kit.plugins.slow_oracle:SlowOracle", "weight": 100}

    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "a", "b", cpu="4")

    async def main() -> None:
        async with open_cluster(one_domain(oracle), before=before) as cluster:
            await members(cluster, ack("g", 3), "m0", "m1", "m2", scheduler="tests-scheduler")
            await cluster.bound("m0", "m1", "m2")
            await members(cluster, ack("h", 2), "h0", "h1", scheduler="tests-scheduler")
            await asyncio.sleep(0.003)
            assert cluster.worker().queue.statistics().in_flight == 2, "the plugin is asked"
            await cluster.delete(f"{PODS}/h1")
            await asyncio.sleep(1.0)
            left = cluster.waiting("h0")
            assert left is not None
            assert left.message == "gang default/h: waits until 2 members are there"
            await members(cluster, ack("h", 2), "h2", scheduler="tests-scheduler")
            await cluster.bound("h0", "h2")
            await cluster.at_rest()

    in_virtual_time(main)
