"""The examples of each dialect: the API accepts them, and the scheduler places them on a node of their mode."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from multisched.cluster.gpu_nodes import GPU_TEMPLATES, gpu_nodes
from tests.unit.shell.program_kit import PODS, Cluster, play

EXAMPLES = Path(__file__).parents[4] / "domains" / "gpu" / "examples"
PATHS = {
    "Node": "/api/v1/nodes",
    "Device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
WHOLE = {"whole", "honoured", "openb"}
"""Templates of mode `whole`."""
NODES = {
    "whole": {"whole", "honoured", "hami", "koordinator", "shared"},
    "multisched": WHOLE,
    "openb": {"openb"},
    "kai": WHOLE - {"openb"},
    "hami": {"hami"},
    "volcano-vgpu": {"volcano-vgpu"},
    "gpushare": {"gpushare"},
    "koordinator": {"koordinator"},
    "shared": {"shared"},
    "mig": {"mig"},
}
"""Example -> templates of nodes that serve it."""


async def one_node_of_each_template(cluster: Cluster) -> None:
    documents = [one for template in GPU_TEMPLATES for one in gpu_nodes(template, 1)]
    for document in sorted(documents, key=lambda one: one["kind"] != "CustomResourceDefinition"):
        await cluster.send("POST", PATHS[document["kind"]], document)


def test_every_example_has_an_expected_node() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == NODES.keys()


@pytest.mark.parametrize("name", NODES)
def test_example_is_placed_on_a_node_of_its_mode(name: str) -> None:
    pods = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))

    async def scene(cluster: Cluster) -> None:
        for pod in pods:
            await cluster.send("POST", PODS, pod)
        await cluster.settle()
        placed = await cluster.nodes_of_pods()
        assert len(placed) == len(pods)
        for node in placed.values():
            assert node.removesuffix("-000") in NODES[name]

    play(scene, prepare=one_node_of_each_template)
