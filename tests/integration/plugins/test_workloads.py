"""Gangs by Kubernetes' own PodGroup, in each version of it, and by those of Koordinator and ACK.

An API server has the first behind a feature gate; the embedded one gets a definition for it, which no real one would take.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from multisched.model.gang import SIGS_LABEL
from tests.integration.plugins.gang_kit import PODS, members, nodes, waiting
from tests.integration.plugins.house import CRDS, DEFINITIONS, HEAD, House, in_virtual_time, open_house

GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}


async def serve(house: House, version: str) -> None:
    """`scheduling.k8s.io` PodGroups in this version."""
    document = yaml.safe_load((DEFINITIONS / "podgroups-scheduler-plugins.yaml").read_text("utf-8"))
    spec = document["spec"] | {"group": "scheduling.k8s.io"}
    (served,) = spec["versions"]
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec["versions"] = [served | {"name": version, "schema": schema, "additionalPrinterColumns": []}]
    await house.post(CRDS, "podgroups.scheduling.k8s.io", {}, spec=spec)


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1", "v1alpha3"])
def test_upstream_pod_groups_are_gangs_in_each_version(version: str) -> None:
    async def before(house: House) -> None:
        await nodes(house, "a")
        await serve(house, version)

    async def story() -> None:
        async with open_house(HEAD, before=before) as house:
            group = {"schedulingGroup": {"podGroupName": "train"}}
            await members(house, {}, "m0", **group)
            why = "PodGroup default/train of scheduling.k8s.io is missing; create it"
            await house.until(lambda: waiting(house, "m0") == f"gated: gang default/train: {why}")
            path = f"/apis/scheduling.k8s.io/{version}/namespaces/default/podgroups"
            await house.post(path, "train", {}, spec=GANG)
            await house.until(lambda: "until 2 members" in waiting(house, "m0"))
            await members(house, {}, "m1", **group)
            await house.bound("m0", "m1")
            await house.at_rest()

    in_virtual_time(story)


@pytest.mark.parametrize(
    ("constraints", "count"),
    [({"topology": [{"key": "rack"}]}, 3), ({"topologyConstraints": [{"topologyKey": "rack"}]}, 3)],
)
def test_upstream_topology_constraints_are_kept(constraints: dict[str, Any], count: int) -> None:
    async def before(house: House) -> None:
        await nodes(house)
        await serve(house, "v1alpha2")
        for rack, number in (("r0", 0), ("r0", 1), ("r1", 2)):
            await house.node(f"n{number}", cpu="2", labels={"rack": rack})

    async def story() -> None:
        async with open_house(HEAD, before=before) as house:
            path = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
            policy = {"gang": {"minCount": count}}
            await house.post(path, "train", {}, spec={"schedulingPolicy": policy, "schedulingConstraints": constraints})
            names = [f"m{number}" for number in range(count)]
            await members(house, {}, *names, schedulingGroup={"podGroupName": "train"})
            await house.bound(*names)
            assert {house.node_of(name) for name in names} == {"n0", "n1"}
            await house.at_rest()

    in_virtual_time(story)


def test_basic_policy_group_starts_each_pod_alone() -> None:
    async def before(house: House) -> None:
        await nodes(house, "a")
        await serve(house, "v1alpha2")

    async def story() -> None:
        async with open_house(HEAD, before=before) as house:
            path = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
            await house.post(path, "web", {}, spec={"schedulingPolicy": {"basic": {}}})
            await members(house, {}, "p0", schedulingGroup={"podGroupName": "web"})
            await house.bound("p0")
            await house.at_rest()

    in_virtual_time(story)


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_pod_groups_of_koordinator_and_ack_are_gangs_too(version: str) -> None:
    async def before(house: House) -> None:
        await nodes(house, "a")

    async def story() -> None:
        async with open_house(HEAD, before=before) as house:
            path = f"/apis/scheduling.sigs.k8s.io/{version}/namespaces/default/podgroups"
            await house.post(path, "g", {}, spec={"minMember": 2, "scheduleTimeoutSeconds": 30})
            await members(house, {"labels": {SIGS_LABEL: "g"}}, "m0")
            await house.until(lambda: "until 2 members" in waiting(house, "m0"))
            await members(house, {"labels": {SIGS_LABEL: "g"}}, "m1")
            await house.bound("m0", "m1")
            await house.delete(f"{PODS}/m0")
            await members(house, {"labels": {SIGS_LABEL: "g"}}, "m2")
            await house.bound("m2")
            await house.at_rest()

    in_virtual_time(story)
