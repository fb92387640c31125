"""A gang that was refused for room is tried again when what it asks for changes, and its PodGroup does not contradict itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.model.gang import SIGS_LABEL, SP_LABEL, TOPOLOGY_ANNOTATION
from tests.integration.plugins.gang_kit import GROUPS, PODS, ack, get, koordinator, members, nodes, waiting
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, in_virtual_time, open_cluster
from tests.integration.plugins.test_workloads import serve

SOON_S = 15.0
"""After the longest backoff of a first attempt, and long before the leftover flush."""
SIGS_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
OWN_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
NAMES = ("m0", "m1", "m2", "m3")


@asynccontextmanager
async def prepared_cluster(cpu: str = "3") -> AsyncIterator[ProgramCluster]:
    """A node with room for three members."""

    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "n0", cpu=cpu)
        await serve(cluster, "v1alpha2")

    async with open_cluster(HEAD, before=before) as cluster:
        yield cluster
        await cluster.at_rest()


async def refused(cluster: ProgramCluster, *names: str) -> None:
    await cluster.until(lambda: any(waiting(cluster, name).startswith("unschedulable") for name in names))


def group(least: int) -> dict[str, Any]:
    return {"minMember": least, "scheduleTimeoutSeconds": 3600}


@pytest.mark.parametrize(
    ("path", "metadata", "spec", "lower", "fields"),
    [
        (GROUPS, {"labels": {SP_LABEL: "g"}}, group(4), {"minMember": 3}, {}),
        (SIGS_GROUPS, {"labels": {SIGS_LABEL: "g"}}, group(4), {"minMember": 3}, {}),
        (
            OWN_GROUPS,
            {},
            {"schedulingPolicy": {"gang": {"minCount": 4}}},
            {"schedulingPolicy": {"gang": {"minCount": 3}}},
            {"schedulingGroup": {"podGroupName": "g"}},
        ),
    ],
)
def test_gang_is_requeued_when_its_minimum_is_lowered(
    path: str, metadata: Mapping[str, Any], spec: Mapping[str, Any], lower: Mapping[str, Any], fields: Mapping[str, Any]
) -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await cluster.post(path, "g", {}, spec=spec)
            await members(cluster, metadata, *NAMES, **fields)
            await refused(cluster, *NAMES)
            await asyncio.sleep(30.0)
            await cluster.patch(f"{path}/g", {"spec": lower})
            await cluster.until(lambda: len(cluster.bound_at) == 3, SOON_S)

    in_virtual_time(main)


@pytest.mark.parametrize(("metadata", "key"), [(ack, "labels"), (koordinator, "annotations")])
def test_gang_is_requeued_when_its_members_request_less(metadata: Any, key: str) -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await members(cluster, metadata("g", 4), *NAMES)
            await refused(cluster, *NAMES)
            await asyncio.sleep(30.0)
            for name in NAMES:
                await cluster.patch(f"{PODS}/{name}", {"metadata": {key: metadata("g", 3)[key]}})
            await cluster.until(lambda: len(cluster.bound_at) == 3, SOON_S)

    in_virtual_time(main)


@pytest.mark.parametrize("after", ["zone", None])
def test_gang_is_requeued_when_its_topology_becomes_optional(after: str | None) -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await cluster.patch("nodes/n0", {"metadata": {"labels": {"zone": "z0"}}})
            await cluster.node("n1", cpu="1", labels={"zone": "z1"})
            await cluster.post(GROUPS, "g", {"annotations": {TOPOLOGY_ANNOTATION: "zone:required"}}, spec=group(4))
            await members(cluster, {"labels": {SP_LABEL: "g"}}, *NAMES)
            await refused(cluster, *NAMES)
            await asyncio.sleep(30.0)
            await cluster.patch(f"{GROUPS}/g", {"metadata": {"annotations": {TOPOLOGY_ANNOTATION: after}}})
            await cluster.bound(*NAMES, within_s=SOON_S)

    in_virtual_time(main)


def test_started_member_is_requeued_when_its_topology_becomes_optional() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await cluster.patch("nodes/n0", {"metadata": {"labels": {"zone": "z0"}}})
            await cluster.node("n1", cpu="1", labels={"zone": "z1"})
            await cluster.post(GROUPS, "g", {"annotations": {TOPOLOGY_ANNOTATION: "zone:required"}}, spec=group(3))
            await members(cluster, {"labels": {SP_LABEL: "g"}}, *NAMES)
            await cluster.until(lambda: len(cluster.bound_at) == 3)
            await asyncio.sleep(30.0)
            assert len(cluster.bound_at) == 3
            await cluster.patch(f"{GROUPS}/g", {"metadata": {"annotations": {TOPOLOGY_ANNOTATION: "zone"}}})
            await cluster.bound(*NAMES, within_s=SOON_S)

    in_virtual_time(main)


def test_gang_is_requeued_when_another_scheduler_binds_a_member() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            node = {"apiVersion": "v1", "kind": "Node", "name": "elsewhere"}
            await cluster.node("elsewhere", cpu="1", unschedulable=True)
            await members(cluster, ack("g", 4), *NAMES)
            await refused(cluster, *NAMES)
            await asyncio.sleep(30.0)
            (name, *_) = (name for name in NAMES if waiting(cluster, name).startswith("gang"))
            await bind(cluster, name, node)
            await cluster.bound(*sorted({*NAMES} - {name}), within_s=SOON_S)

    in_virtual_time(main)


async def bind(cluster: ProgramCluster, name: str, node: Mapping[str, str]) -> None:
    """As another scheduler does."""
    body = orjson.dumps({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": node})
    assert (await DirectTransport(cluster.server).request("POST", f"{PODS}/{name}/binding", body=body)).status == 201


def test_gang_is_requeued_when_a_follower_tolerates_more() -> None:
    async def main() -> None:
        async with prepared_cluster() as cluster:
            await cluster.node("n1", cpu="4", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
            await members(cluster, ack("g", 4), *NAMES)
            await refused(cluster, *NAMES)
            await asyncio.sleep(30.0)
            (name, *_) = (name for name in NAMES if waiting(cluster, name).startswith("gang"))
            tolerations = [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]
            await cluster.patch(f"{PODS}/{name}", {"spec": {"tolerations": tolerations}})
            await cluster.bound(*NAMES, within_s=SOON_S)

    in_virtual_time(main)


def test_pod_group_status_is_consistent_after_an_edit() -> None:
    async def main() -> None:
        async with prepared_cluster(cpu="4") as cluster:
            await cluster.post(GROUPS, "g", {}, spec=group(5))
            await members(cluster, {"labels": {SP_LABEL: "g"}}, *NAMES, "m4")
            await refused(cluster, *NAMES, "m4")
            await asyncio.sleep(5.0)
            seen = (await get(cluster, f"{GROUPS}/g"))["status"]["conditions"][0]["message"]
            assert seen.startswith("0 of 5 members that start together have nodes; m0, m1, m2, m3 and others wait: ")
            assert ": 4 of the 5 members that must start together fit; " in seen
            await cluster.node("full", cpu="0")
            await cluster.patch(f"{GROUPS}/g", {"spec": {"minMember": 9}})
            await asyncio.sleep(5.0)
            seen = (await get(cluster, f"{GROUPS}/g"))["status"]["conditions"][0]["message"]
            assert seen == "gang default/g: waits until 9 members are there"
            await cluster.patch(f"{GROUPS}/g", {"spec": {"minMember": 4}})
            await cluster.until(lambda: len(cluster.bound_at) == 4, SOON_S)

    in_virtual_time(main)
