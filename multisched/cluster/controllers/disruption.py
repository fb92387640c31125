"""The disruption controller: how many pods of each PodDisruptionBudget may be evicted now.

Source: pkg/controller/disruption/disruption.go (1.36). Reads the scale of ReplicaSets, their Deployments, and StatefulSets.
For pods of other controllers, a budget in percent or with maxUnavailable allows no disruption, as in upstream if it finds no scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from multisched.cluster.base.selectors import from_label_selector
from multisched.cluster.client.object_client import DISRUPTION_BUDGETS, Document, controller_of, key_of
from multisched.cluster.controllers.context import ControllerContext, requeue_changed, set_condition
from multisched.cluster.controllers.controlled_pods import is_terminating, namespace_index, ready_since
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.cluster.controllers.rollout import Disruption, disruption
from multisched.model.api_time import parse_timestamp, timestamp

BUDGETS_AT_ONCE = 4
EVICTION_TIMEOUT_S = 120.0
"""An evicted pod that still exists after this time counts as healthy again. Source: DeletionTimeout."""
POD_EVENTS_COALESCED_S = 0.05


class _NoScaleError(Exception):
    """A budget is invalid, or needs the scale of a controller without a known scale; the message is written to its condition."""


class DisruptionController:
    """One control loop over all PodDisruptionBudgets."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = ReconcileQueue("disruption", self.reconcile, rng=context.rng, workers=BUDGETS_AT_ONCE)
        requeue_changed(context.budgets, queue=self.queue)
        context.pods.listen(self._in_namespace_changed)
        context.replica_sets.listen(self._in_namespace_changed)
        context.deployments.listen(self._in_namespace_changed)
        context.stateful_sets.listen(self._in_namespace_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _in_namespace_changed(self, old: Document | None, new: Document | None) -> None:
        changed = new or old
        if changed is not None:
            for budget in self._context.budgets.under(changed["metadata"]["namespace"]):
                self.queue.add_after(key_of(budget), POD_EVENTS_COALESCED_S)

    async def reconcile(self, key: str) -> float | None:
        """Counts healthy pods and writes a changed status; returns the seconds until the oldest eviction times out."""
        budget = self._context.budgets.find(key)
        if budget is None:
            return None
        now = self._context.now()
        matches = from_label_selector(budget["spec"].get("selector"))
        namespace = budget["metadata"]["namespace"]
        in_namespace = self._context.pods.under(namespace_index(namespace))
        pods = [pod for pod in in_namespace if matches(pod["metadata"].get("labels") or {})]
        disrupted, requeue_s = _still_disrupted(budget, pods, now)
        healthy = [
            pod
            for pod in pods
            if not is_terminating(pod) and pod["metadata"]["name"] not in disrupted and ready_since(pod) is not None
        ]
        try:
            numbers = self._numbers(budget["spec"], pods, len(healthy))
            condition = _allowed_condition(numbers)
            allowed = numbers.allowed
        except _NoScaleError as error:
            numbers, allowed = Disruption(0, 0, len(healthy)), 0
            condition = {"status": "False", "reason": "SyncFailed", "message": str(error)}
        await self._write(budget, numbers, allowed, disrupted, {"type": "DisruptionAllowed", **condition})
        return requeue_s

    def _numbers(self, spec: Document, pods: Sequence[Document], healthy: int) -> Disruption:
        lowest, highest = spec.get("minAvailable"), spec.get("maxUnavailable")
        needs_scale = highest is not None or (isinstance(lowest, str) and lowest.strip().endswith("%"))
        try:
            return disruption(
                min_available=lowest,
                max_unavailable=highest,
                pods=len(pods),
                scale=self._scale(pods) if needs_scale else 0,
                healthy=healthy,
            )
        except ValueError as error:
            raise _NoScaleError(f"the budget is neither a number nor a percentage: {error}") from error

    def _scale(self, pods: Sequence[Document]) -> int:
        """Returns the sum of replicas of these pods' controllers, each counted once; ignores pods without a controller."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is not None and owner["uid"] not in scales:
                uid, scale = self._controller_scale(pod, owner)
                scales[uid] = scale
        return sum(scales.values())

    def _controller_scale(self, pod: Document, owner: Document) -> tuple[str, int]:
        """Returns uid and replicas of the pod's topmost controller."""
        context, namespace = self._context, pod["metadata"]["namespace"]
        caches = {"ReplicaSet": context.replica_sets, "StatefulSet": context.stateful_sets}
        cache = caches.get(owner["kind"])
        found = cache.find(f"{namespace}/{owner['name']}") if cache is not None else None
        if found is None or found["metadata"]["uid"] != owner["uid"]:
            name = pod["metadata"]["name"]
            raise _NoScaleError(f"found no scale of {owner['kind']} {owner['name']}, which controls pod {name}")
        above = controller_of(found)
        if above is not None and above["kind"] == "Deployment":
            deployment = context.deployments.find(f"{namespace}/{above['name']}")
            if deployment is not None and deployment["metadata"]["uid"] == above["uid"]:
                found = deployment
        return found["metadata"]["uid"], int(found["spec"].get("replicas", 1))

    async def _write(
        self, budget: Document, numbers: Disruption, allowed: int, disrupted: dict[str, str], condition: Document
    ) -> None:
        """Writes the status. The version read is a precondition, because an eviction since then has lowered disruptionsAllowed."""
        metadata, before = budget["metadata"], budget.get("status") or {}
        now = timestamp(self._context.now())
        generation = metadata.get("generation", 0)
        status: Document = {
            "currentHealthy": numbers.current_healthy,
            "desiredHealthy": numbers.desired_healthy,
            "expectedPods": numbers.expected,
            "disruptionsAllowed": allowed,
            "observedGeneration": generation,
            "conditions": set_condition(before, {**condition, "observedGeneration": generation}, now),
        }
        ended = {name: None for name in before.get("disruptedPods") or () if name not in disrupted}
        if not ended and all(before.get(name) == value for name, value in status.items()):
            return
        if ended:
            status["disruptedPods"] = ended
        versions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        answer = await self._context.client.patch(
            DISRUPTION_BUDGETS,
            metadata["namespace"],
            metadata["name"],
            body={"metadata": versions, "status": status},
            subresource="status",
        )
        answer.expect(404)


def _still_disrupted(budget: Document, pods: Sequence[Document], now: datetime) -> tuple[dict[str, str], float | None]:
    """Returns evicted pods that still exist and have not timed out, and the seconds until the first of them times out."""
    evicted = (budget.get("status") or {}).get("disruptedPods") or {}
    waiting = {pod["metadata"]["name"] for pod in pods if not is_terminating(pod)}
    still: dict[str, str] = {}
    ends: list[float] = []
    for name, since in evicted.items():
        left_s = (parse_timestamp(since) + timedelta(seconds=EVICTION_TIMEOUT_S) - now).total_seconds()
        if name in waiting and left_s > 0:
            still[name] = since
            ends.append(left_s)
    return still, min(ends, default=None)


def _allowed_condition(numbers: Disruption) -> Document:
    if numbers.allowed > 0:
        return {"status": "True", "reason": "SufficientPods", "message": ""}
    return {"status": "False", "reason": "InsufficientPods", "message": ""}
