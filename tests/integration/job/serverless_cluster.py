"""A cluster with fake virtual kubelets and the program with ServerlessUnits, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import yaml

from multisched.cluster.kubelet.provider import ProviderSettings
from multisched.cluster.virtual_nodes import virtual_nodes
from multisched.testing.builders import Document
from multisched.testing.sim_loop import SimLoop, simulate
from tests.integration.gpu.gpu_cluster import GpuCluster, open_gpu_cluster

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "burst", "uid": "uid-burst", "controller": True}
"""The controller of pods."""

Story = Callable[[GpuCluster], Awaitable[None]]


def nodes_of(name: str, settings: ProviderSettings, count: int = 2) -> list[Document]:
    """Returns virtual nodes of the unit of this name, each unit with a provider's account of its own."""
    found = virtual_nodes(count, msgspec.structs.replace(settings, account=name))
    for node in found:
        node["metadata"]["labels"]["unit"] = name
    return found


def play_units(story: Story, units: dict[str, Document], *nodes: Document, **options: Any) -> None:
    """Plays the story with these units: name -> their fields besides name and nodeSelector. `options`: of `open_gpu_cluster`."""
    args = {"units": [{"name": name, "nodeSelector": {"unit": name}, **fields} for name, fields in units.items()]}
    enabled = [{"name": "ServerlessUnits", "args": args}]
    document = {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "domains": [{"name": "job", "nodes": {"rule": "rest"}, "profile": {"plugins": {"enabled": enabled}}}],
        "client": {"bindTimeout": "900ms"},
        "lease": {"duration": "2s", "renewDeadline": "1s", "retryPeriod": "200ms"},
    }
    loop = SimLoop(1)

    async def main() -> None:
        async with open_gpu_cluster(loop, *nodes, configuration=yaml.safe_dump(document), **options) as cluster:
            await story(cluster)

    simulate(main(), loop)
