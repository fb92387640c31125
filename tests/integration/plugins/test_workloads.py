"""Gangs by Kubernetes' own PodGroup, in each version of it, and by those of Koordinator and ACK.

An API server has the first behind a feature gate; the embedded one gets a definition for it, which no real one would take.
"""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.gang import SIGS_LABEL
from tests.integration.plugins.gang_kit import PODS, members, nodes, waiting
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    open_cluster,
)
from tests.kit import definitions

GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}


async def serve(cluster: ProgramCluster, version: str) -> None:
    """`scheduling.k8s.io` PodGroups in this version."""
    spec = definitions.definition("podgroups-scheduler-plugins")["spec"] | {"group": "scheduling.k8s.io"}
    (served,) = spec["versions"]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec["versions"] = [served | {"name": version, "schema": schema, "additionalPrinterColumns": []}]
    await cluster.post(definitions.PATH, "podgroups.scheduling.k8s.io", {}, spec=spec)


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1", "v1alpha3"])
def test_upstream_pod_groups_are_gangs_in_each_version(version: str) -> None:
    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "a")
        await serve(cluster, version)

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            group = {"schedulingGroup": {"podGroupName": "train"}}
            await members(cluster, {}, "m0", **group)
            why = "PodGroup default/train of scheduling.k8s.io is missing; create it"
            await cluster.until(lambda: waiting(cluster, "m0") == f"gated: gang default/train: {why}")
            path = f"/apis/scheduling.k8s.io/{version}/namespaces/default/podgroups"
            await cluster.post(path, "train", {}, spec=GANG)
            await cluster.until(lambda: "until 2 members" in waiting(cluster, "m0"))
            await members(cluster, {}, "m1", **group)
            await cluster.bound("m0", "m1")
            await cluster.at_rest()

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("constraints", "count"),
    [({"topology": [{"key": "rack"}]}, 3), ({"topologyConstraints": [{"topologyKey": "rack"}]}, 3)],
)
def test_upstream_topology_constraints_are_kept(constraints: dict[str, Any], count: int) -> None:
    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster)
        await serve(cluster, "v1alpha2")
        for rack, number in (("r0", 0), ("r0", 1), ("r1", 2)):
            await cluster.node(f"n{number}", cpu="2", labels={"rack": rack})

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            path = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
            policy = {"gang": {"minCount": count}}
            await cluster.post(
                path, "train", {}, spec={"schedulingPolicy": policy, "schedulingConstraints": constraints}
            )
            names = [f"m{number}" for number in range(count)]
            await members(cluster, {}, *names, schedulingGroup={"podGroupName": "train"})
            await cluster.bound(*names)
            assert {cluster.node_of(name) for name in names} == {"n0", "n1"}
            await cluster.at_rest()

    in_virtual_time(main)


def test_basic_policy_group_starts_each_pod_alone() -> None:
    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "a")
        await serve(cluster, "v1alpha2")

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            path = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
            await cluster.post(path, "web", {}, spec={"schedulingPolicy": {"basic": {}}})
            await members(cluster, {}, "p0", schedulingGroup={"podGroupName": "web"})
            await cluster.bound("p0")
            await cluster.at_rest()

    in_virtual_time(main)


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_pod_groups_of_koordinator_and_ack_are_gangs_too(version: str) -> None:
    async def before(cluster: ProgramCluster) -> None:
        await nodes(cluster, "a")

    async def main() -> None:
        async with open_cluster(HEAD, before=before) as cluster:
            path = f"/apis/scheduling.sigs.k8s.io/{version}/namespaces/default/podgroups"
            await cluster.post(path, "g", {}, spec={"minMember": 2, "scheduleTimeoutSeconds": 30})
            await members(cluster, {"labels": {SIGS_LABEL: "g"}}, "m0")
            await cluster.until(lambda: "until 2 members" in waiting(cluster, "m0"))
            await members(cluster, {"labels": {SIGS_LABEL: "g"}}, "m1")
            await cluster.bound("m0", "m1")
            await cluster.delete(f"{PODS}/m0")
            await members(cluster, {"labels": {SIGS_LABEL: "g"}}, "m2")
            await cluster.bound("m2")
            await cluster.at_rest()

    in_virtual_time(main)
