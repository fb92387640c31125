"""Where an in-tree volume's CSI driver finds it: the zones of its affinity or its labels, under the driver's key."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from multisched.model.cluster_objects import PersistentVolume
from multisched.model.selectors import NodeSelector, NodeTerm, Operator, Requirement
from multisched.plugins.volumes.volume_masks import translated

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
DRIVER = "topology.gke.io/zone"
NO_LABELS: Mapping[str, str] = {}


def within(key: str, *values: str) -> Requirement:
    return Requirement(key, Operator.IN, values)


def affinity(*terms: tuple[Requirement, ...]) -> NodeSelector:
    return NodeSelector(tuple(NodeTerm(expressions=one) for one in terms))


SSD = within("disk", "ssd")


@pytest.mark.parametrize(
    ("before", "labels", "after"),
    [
        (None, NO_LABELS, None),
        (affinity((SSD,)), NO_LABELS, affinity((SSD,))),
        (affinity((within(ZONE, "a"), SSD)), NO_LABELS, affinity((within(DRIVER, "a"), SSD))),
        (
            affinity((within(ZONE, "a"),), (within(ZONE, "b"),)),
            {ZONE: "c"},
            affinity((within(DRIVER, "a"),), (within(DRIVER, "b"),)),
        ),
        (affinity((within(BETA_ZONE, "a"),)), NO_LABELS, affinity((within(DRIVER, "a"),))),
        (
            affinity((within(BETA_ZONE, "a"), within(BETA_REGION, "r"))),
            NO_LABELS,
            affinity((within(DRIVER, "a"), within(REGION, "r"))),
        ),
        (
            affinity((within(ZONE, "a"), within(BETA_REGION, "r"))),
            NO_LABELS,
            affinity((within(DRIVER, "a"), within(BETA_REGION, "r"))),
        ),
        (
            affinity((within(ZONE, "a"), within(BETA_ZONE, "b"))),
            NO_LABELS,
            affinity((within(DRIVER, "a"), within(BETA_ZONE, "b"))),
        ),
        (None, {ZONE: "a"}, affinity((within(DRIVER, "a"),))),
        (None, {BETA_ZONE: "b"}, affinity((within(DRIVER, "b"),))),
        (None, {ZONE: "a", BETA_ZONE: "b"}, affinity((within(DRIVER, "a"),))),
        (None, {ZONE: "b__ a __"}, affinity((within(DRIVER, "a", "b"),))),
        (None, {ZONE: "__"}, None),
        (affinity((SSD,), ()), {ZONE: "a"}, affinity((SSD, within(DRIVER, "a")), (within(DRIVER, "a"),))),
    ],
)
def test_zones_use_the_topology_key_of_the_driver(
    before: NodeSelector | None, labels: Mapping[str, str], after: NodeSelector | None
) -> None:
    volume = PersistentVolume(name="v", labels=labels, node_affinity=before)
    assert translated(volume, DRIVER) == after
    assert translated(volume, "") == before
