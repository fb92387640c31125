"""The ReplicaSet controller: keeps the wanted number of pods. It deletes surplus pods in upstream's order (`victims`).

Source: pkg/controller/replicaset/replica_set.go and controller_utils.go, ActivePodsWithRanks (1.36).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from multisched.cluster.client.object_client import REPLICA_SETS, Document
from multisched.cluster.controllers.context import (
    ControllerContext,
    requeue_changed,
    requeue_owner_of_pods,
    write_status,
)
from multisched.cluster.controllers.controlled_pods import (
    LAG_RECHECK_S,
    ControlledPods,
    is_active,
    is_available,
    phase_of,
    pod_from_template,
    ready_since,
)
from multisched.cluster.controllers.orphan_pods import orphans_of, requeue_adopters
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue

REPLICA_SETS_AT_ONCE = 16
PODS_PER_RECONCILE = 500
"""The same as upstream's burstReplicas."""

_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


class ReplicaSetController:
    """One control loop over all ReplicaSets."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        events = context.events.writer("replicaset-controller")
        self._pods = ControlledPods(context.client, context.pods, owners=REPLICA_SETS, events=events)
        self.queue = ReconcileQueue("replicaset", self.reconcile, rng=context.rng, workers=REPLICA_SETS_AT_ONCE)
        requeue_changed(context.replica_sets, queue=self.queue)
        requeue_owner_of_pods(context.pods, kind="ReplicaSet", queue=self.queue)
        requeue_adopters(context.pods, context.replica_sets, queue=self.queue)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    async def reconcile(self, key: str) -> float | None:
        """Creates or deletes pods until there are `spec.replicas`, then writes the status."""
        replica_set = self._context.replica_sets.find(key)
        if replica_set is None:
            return None
        uid = replica_set["metadata"]["uid"]
        if not self._pods.is_current(uid):
            return LAG_RECHECK_S
        orphans = [pod for pod in orphans_of(replica_set, self._context.pods) if is_active(pod)]
        if await self._pods.claim(replica_set, orphans):
            return LAG_RECHECK_S
        active = self._pods.active(uid)
        requeue_s = await self._write_status(replica_set, active, sum(map(self._pods.is_going, self._pods.of(uid))))
        if replica_set["metadata"].get("deletionTimestamp"):
            return None
        missing = replica_set["spec"].get("replicas", 1) - len(active)
        if missing > 0:
            pod = pod_from_template(replica_set["spec"]["template"], owner=replica_set, resource=REPLICA_SETS)
            await self._pods.create(replica_set, [pod] * min(missing, PODS_PER_RECONCILE))
        elif missing < 0:
            await self._pods.delete(replica_set, victims(active, min(-missing, PODS_PER_RECONCILE)))
        return LAG_RECHECK_S if abs(missing) > PODS_PER_RECONCILE else requeue_s

    async def _write_status(self, replica_set: Document, active: Sequence[Document], terminating: int) -> float | None:
        spec, now = replica_set["spec"], self._context.now()
        min_ready_s = spec.get("minReadySeconds") or 0
        wanted = (spec["template"].get("metadata") or {}).get("labels") or {}
        labelled = [p for p in active if wanted.items() <= (p["metadata"].get("labels") or {}).items()]
        ready = [p for p in active if ready_since(p) is not None]
        available = [p for p in ready if is_available(p, min_ready_s, now)]
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": len(labelled) or None,
            "readyReplicas": len(ready) or None,
            "availableReplicas": len(available) or None,
            "terminatingReplicas": terminating,
            "observedGeneration": replica_set["metadata"].get("generation", 0),
        }
        await write_status(self._context.client, REPLICA_SETS, replica_set, status)
        return float(min_ready_s) if len(available) < len(ready) else None


def victims(pods: Sequence[Document], count: int) -> list[Document]:
    """Returns the pods to delete first: unassigned, not running, not ready, low deletion cost, many on their node, young."""
    crowd = Counter(pod["spec"]["nodeName"] for pod in pods)

    def rank(pod: Document) -> tuple[object, ...]:
        since = ready_since(pod)
        return (
            bool(pod["spec"]["nodeName"]),
            _PHASE_RANK.get(phase_of(pod), 2),
            since is not None,
            _deletion_cost(pod),
            -crowd[pod["spec"]["nodeName"]],
            -since.timestamp() if since is not None else 0.0,
        )

    youngest_first = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), reverse=True)
    return sorted(youngest_first, key=rank)[:count]


def _deletion_cost(pod: Document) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(_DELETION_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0
