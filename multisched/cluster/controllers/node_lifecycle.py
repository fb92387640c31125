"""The taint of cordoned nodes: `node.kubernetes.io/unschedulable:NoSchedule` while spec.unschedulable is true.

Source: pkg/controller/nodelifecycle/node_lifecycle_controller.go (1.36), doNoScheduleTaintingPass. Omitted: taints from node
conditions, and evictions from unreachable nodes.
"""

from __future__ import annotations

from typing import Final

from multisched.cluster.client.object_client import NODES
from multisched.cluster.controllers.context import ControllerContext, requeue_changed
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.model.api_time import timestamp

NODES_AT_ONCE: Final = 4
UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
NO_SCHEDULE: Final = "NoSchedule"


class NodeLifecycleController:
    """Adds the taint to cordoned nodes, and removes it from others."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = ReconcileQueue("node lifecycle", self.reconcile, rng=context.rng, workers=NODES_AT_ONCE)
        requeue_changed(context.nodes, queue=self.queue)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    async def reconcile(self, key: str) -> float | None:
        """Adds or removes the taint. If another client has changed the node meanwhile, the write gets a 409 and is retried."""
        node = self._context.nodes.find(key)
        if node is None:
            return None
        metadata, taints = node["metadata"], node["spec"]["taints"]
        others = [taint for taint in taints if (taint["key"], taint["effect"]) != (UNSCHEDULABLE_TAINT, NO_SCHEDULE)]
        is_cordoned = node["spec"]["unschedulable"]
        if is_cordoned == (len(others) < len(taints)):
            return None
        added = {"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE, "timeAdded": timestamp(self._context.now())}
        wanted = [*others, added] if is_cordoned else others
        versions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        answer = await self._context.client.patch(
            NODES, "", metadata["name"], body={"metadata": versions, "spec": {"taints": wanted or None}}
        )
        answer.expect(404)
        return None
