"""The nodes of a simulated cluster, and changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multisched.model.wire import MERGE_PATCH
from tests.kit.world.api_user import ApiUser
from tests.kit.world.labels import GPU, LICENCE

NODES = 40
GPU_NODES = tuple(number for number in range(NODES) if number % 10 in (7, 8))
FAVOURITE = f"node-{NODES // 4}"
"""The node that every pod prefers in profiles with remote plugins."""
CROWDED = tuple(range(NODES - 10, NODES - 4))
"""Numbers of nodes that crowds use: plain ones of the forecast domain."""
SHUNNED = {1: 1, 2: 2}
"""Number of a node modulo 4 -> number of its PreferNoSchedule taints."""
PAIRS = ("pair-20", "pair-22", "pair-24")
"""Labels of pairs of nodes: node-20 and node-21, and so on."""


class Nodes:
    """Creates, patches and deletes nodes."""

    def __init__(self, user: ApiUser) -> None:
        self._user = user

    async def add(self, number: int, *, is_cordoned: bool = False) -> None:
        node = node_manifest(number)
        if is_cordoned:
            node["spec"]["unschedulable"] = True
        answer = await self._user.send("POST", "/api/v1/nodes", node)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)

    async def delete(self, number: int) -> None:
        await self._user.send("DELETE", f"/api/v1/nodes/node-{number}")

    async def set_gpus(self, name: str, count: int) -> bool:
        """Sets the number of GPUs that the node's device plugin offers."""
        amounts = {GPU: str(count)}
        return await self.patch(name, {"status": {"allocatable": amounts, "capacity": amounts}})

    async def patch(self, name: str, patch: Mapping[str, Any]) -> bool:
        path = f"/api/v1/nodes/{name}/status" if "status" in patch else f"/api/v1/nodes/{name}"
        answer = await self._user.send("PATCH", path, patch, MERGE_PATCH)
        return answer.status == 200


def node_manifest(number: int) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": f"node-{number}", "zone": f"z{number % 3}", "rank": str(number)}
    labels["topology.kubernetes.io/zone"] = labels["zone"]
    if f"pair-{number - number % 2}" in PAIRS:
        labels["pair"] = f"pair-{number - number % 2}"
    spec: dict[str, Any] = {}
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "20"}
    if number % 10 in (7, 8):
        allocatable = {"cpu": "16", "memory": "64Gi", "pods": "40", "nvidia.com/gpu": "4"}
    elif number % 10 == 9:
        labels["type"] = "virtual-kubelet"
        spec["taints"] = [{"key": "virtual-kubelet.io/provider", "value": "multisched", "effect": "NoSchedule"}]
        allocatable = {"cpu": "32", "memory": "64Gi", "pods": "60"}
    elif number % 3 == 0:
        labels["lend"] = "yes"
    if number % 4 in SHUNNED:
        keys = ["sim/rather", "sim/rather-not"][: SHUNNED[number % 4]]
        spec.setdefault("taints", []).extend({"key": key, "effect": "PreferNoSchedule"} for key in keys)
    if number % 10 == 9:
        allocatable |= {LICENCE: "6"}
    images = [
        {"names": [f"app-{at}:v1"], "sizeBytes": (at + 1) * 60_000_000} for at in range(4) if (number + at) % 3 == 0
    ]
    features = ["UserNamespacesHostNetworkSupport"] if number % 2 else []
    status = {"capacity": allocatable, "allocatable": allocatable, "images": images, "declaredFeatures": features}
    metadata = {"name": f"node-{number}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}
