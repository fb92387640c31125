"""Gangs that are wrong: their pods say what and where, nothing else waits, and mending it starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from multisched.model.gang import ACK_MIN, ACK_NAME, KOORDINATOR, SIGS_LABEL, SP_LABEL, TOPOLOGY_ANNOTATION
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
    waiting,
)
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    install_definitions,
    open_cluster,
)
from tests.integration.plugins.test_workloads import serve


def play(main: Callable[[ProgramCluster], Awaitable[None]]) -> None:
    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "a")
        await cluster.post("namespaces", "other", {})

    async def scene() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            await main(cluster)
            await cluster.pod("plain", scheduler=SCHEDULER)
            await cluster.bound("plain", within_s=2.0)
            await cluster.at_rest()

    in_virtual_time(scene)


async def says(cluster: ProgramCluster, name: str, words: str, within_s: float = 5.0) -> None:
    """The pod is held, and its condition has these words."""
    await cluster.until(lambda: words in waiting(cluster, name), within_s=within_s)
    for _ in range(40):  # members hear of it a second later, in virtual time
        if words in (await condition(cluster, name))[1]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(await condition(cluster, name))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (
            {"labels": {ACK_NAME: "g", ACK_MIN: "2", SP_LABEL: "other"}},
            "the pod belongs to the gangs 'other' (scheduling.x-k8s.io) and 'g' (pod-group.scheduling.sigs.k8s.io)",
        ),
        (
            {**ack("g", 2), **koordinator("g", 3)},
            "the pod asks for minimums of 2 (pod-group.scheduling.sigs.k8s.io) and 3 (gang.scheduling.koordinator.sh)",
        ),
        (ack("g", 0), f"label {ACK_MIN} is '0'; write how many members start together, 1 to 20000"),
        ({"labels": {ACK_NAME: "g"}}, f"label {ACK_MIN} is missing; write how many members start together"),
        (
            {"annotations": {f"{KOORDINATOR}name": "g"}},
            f"annotation {KOORDINATOR}min-available is missing; write how many members start together",
        ),
        (koordinator("g", 2, waiting_time="10"), f"annotation {KOORDINATOR}waiting-time is '10'; write a duration"),
        (koordinator("g", 2, groups="[1]"), f"annotation {KOORDINATOR}groups is '[1]'; write a list"),
        (
            {**ack("g", 2), "annotations": {TOPOLOGY_ANNOTATION: "a b"}},
            "'a b' is not a level; write KEY or KEY:required",
        ),
    ],
)
def test_contradicting_gang_labels_are_reported_and_the_pod_starts_when_fixed(
    metadata: dict[str, Any], words: str
) -> None:
    async def main(cluster: ProgramCluster) -> None:
        await member(cluster, "m0", metadata)
        await says(cluster, "m0", words)
        gone = {key: dict.fromkeys(pairs) for key, pairs in metadata.items()}
        await cluster.patch(f"{PODS}/m0", {"metadata": gone})
        await cluster.bound("m0")

    play(main)


def test_pod_with_invalid_gang_labels_does_not_count() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await member(cluster, "m0", ack("g", 2))
        await member(cluster, "m1", {"labels": {ACK_NAME: "g"}})
        await says(cluster, "m0", f"waits until 2 members are there, not counting m1: label {ACK_MIN} is missing")
        await cluster.patch(f"{PODS}/m1", {"metadata": {"labels": {ACK_MIN: "2"}}})
        await cluster.bound("m0", "m1")

    play(main)


def test_members_of_two_schedulers_are_reported_with_both_names() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await member(cluster, "m0", ack("g", 2))
        await member(cluster, "m1", ack("g", 2), scheduler="gpu-scheduler")
        await says(
            cluster, "m0", "its members name the schedulers forecast-scheduler and gpu-scheduler; write the same"
        )
        await cluster.delete(f"{PODS}/m1")
        await member(cluster, "m2", ack("g", 2))
        await cluster.bound("m0", "m2")

    play(main)


def test_members_in_two_namespaces_get_no_details_of_each_other() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await member(cluster, "m0", ack("g", 2))
        await member(cluster, "m1", ack("g", 2), namespace="other")
        await says(cluster, "m0", "waits until 2 members are there")
        assert "other" not in (await condition(cluster, "m0"))[1]
        await member(cluster, "m2", ack("g", 2))
        await cluster.bound("m0", "m2")

    play(main)


def test_different_minimums_of_members_are_reported() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await member(cluster, "m0", ack("g", 2))
        await member(cluster, "m1", ack("g", 3))
        await says(cluster, "m0", "its members ask for minimums of 2 and 3; write the same in all of them")
        await cluster.patch(f"{PODS}/m1", {"metadata": {"labels": {ACK_MIN: "2"}}})
        await cluster.bound("m0", "m1")

    play(main)


def test_different_minimums_of_group_and_members_are_reported() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await cluster.post(GROUPS, "g", {}, spec={"minMember": 2})
        both = {"labels": {SP_LABEL: "g", ACK_NAME: "g", ACK_MIN: "3"}}
        await members(cluster, both, "m0", "m1", "m2")
        await says(cluster, "m0", "its PodGroup asks for a minimum of 2, and its members for 3; write the same in both")
        await cluster.patch(f"{GROUPS}/g", {"spec": {"minMember": 3}})
        await cluster.bound("m0", "m1", "m2")

    play(main)


def test_linked_gang_without_a_back_reference_is_reported() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await member(cluster, "m0", koordinator("x", 1, groups='["default/x", "default/y"]'))
        await member(cluster, "m1", koordinator("y", 1))
        await cluster.bound("m1")
        await says(cluster, "m0", "does not name the gangs that gang default/x starts with; write the same in both")

    play(main)


def test_linked_gangs_of_two_schedulers_are_reported() -> None:
    async def main(cluster: ProgramCluster) -> None:
        groups = '["x", "y"]'
        await member(cluster, "m0", koordinator("x", 1, groups=groups))
        await member(cluster, "m1", koordinator("y", 1, groups=groups), scheduler="gpu-scheduler")
        await says(cluster, "m0", "they name the schedulers forecast-scheduler and gpu-scheduler")
        await cluster.delete(f"{PODS}/m1")
        await member(cluster, "m2", koordinator("y", 1, groups=groups))
        await cluster.bound("m0", "m2")

    play(main)


def test_pod_group_deleted_while_members_wait_is_reported() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await cluster.post(GROUPS, "g", {}, spec={"minMember": 2})
        await member(cluster, "m0", {"labels": {SP_LABEL: "g"}})
        await says(cluster, "m0", "waits until 2 members are there")
        await cluster.delete(f"{GROUPS}/g")
        await says(cluster, "m0", "PodGroup default/g of scheduling.x-k8s.io is missing; create it")
        await cluster.post(GROUPS, "g", {}, spec={"minMember": 1})
        await cluster.bound("m0")

    play(main)


@pytest.mark.parametrize(
    ("group", "metadata", "fields", "words"),
    [
        (
            "scheduling.x-k8s.io",
            {"labels": {SP_LABEL: "g"}},
            {},
            "the CRD podgroups.scheduling.x-k8s.io is not installed",
        ),
        (
            "scheduling.sigs.k8s.io",
            {"labels": {SIGS_LABEL: "g"}},
            {},
            "the CRD podgroups.scheduling.sigs.k8s.io is not installed",
        ),
        (
            "scheduling.k8s.io",
            {},
            {"schedulingGroup": {"podGroupName": "g"}},
            "the API server does not serve podgroups.scheduling.k8s.io; enable its feature gate GenericWorkload",
        ),
    ],
)
def test_missing_pod_group_kind_is_named_and_noticed_once_installed(
    group: str, metadata: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    async def before(cluster: ProgramCluster) -> None:
        await cluster.node("a", cpu="4")

    async def scene() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            await member(cluster, "m0", metadata, **fields)
            await says(cluster, "m0", f"gang default/g: PodGroup default/g of {group} is missing: {words}")
            await asyncio.sleep(300.0)
            await install_definitions(cluster)
            await serve(cluster, "v1alpha2")
            await says(cluster, "m0", "is missing; create it", within_s=10.0)
            version = "v1alpha2" if group == "scheduling.k8s.io" else "v1alpha1"
            spec = {"minMember": 1} if version == "v1alpha1" else {"schedulingPolicy": {"gang": {"minCount": 1}}}
            await cluster.post(f"/apis/{group}/{version}/namespaces/default/podgroups", "g", {}, spec=spec)
            await cluster.bound("m0", within_s=1.0)
            await cluster.at_rest()

    in_virtual_time(scene)


def test_oversized_minimum_names_the_existing_members() -> None:
    async def main(cluster: ProgramCluster) -> None:
        await cluster.post(GROUPS, "g", {}, spec={"minMember": 50, "scheduleTimeoutSeconds": 30})
        await members(cluster, {"labels": {SP_LABEL: "g"}}, "m0", "m1")
        await says(cluster, "m0", "waits until 50 members are there")
        await cluster.until(lambda: "has not started within 30 s" in waiting(cluster, "m0"))
        await says(cluster, "m0", "gang default/g has not started within 30 s: 2 of 50 members are there (m0, m1)")

    play(main)
