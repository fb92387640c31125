"""The DaemonSet controller: one pod on every matching node, updated within maxUnavailable or maxSurge.

The node affinity of each pod allows only its node; the pod's scheduler binds it. Source: pkg/controller/daemon (1.36):
daemon_controller.go, update.go. Omitted: the label of the deprecated template generation.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.cluster.client.object_client import DAEMON_SETS, Document
from multisched.cluster.controllers import daemon_pods
from multisched.cluster.controllers.context import (
    ControllerContext,
    requeue_changed,
    requeue_owner_of_pods,
    write_status,
)
from multisched.cluster.controllers.controlled_pods import LAG_RECHECK_S, ControlledPods, ready_since
from multisched.cluster.controllers.daemon_pods import NodeRule
from multisched.cluster.controllers.daemon_rollout import OnNode, Rollout, keep_up, replace, surge_over
from multisched.cluster.controllers.orphan_pods import orphans_of, requeue_adopters
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.cluster.controllers.revisions import REVISION_LABEL, TemplateRevisions, name_of

DAEMON_SETS_AT_ONCE = 4
NODE_EVENTS_COALESCED_S = 0.2
"""Delay of reconciles after node events: every DaemonSet reads all nodes, and a starting cluster adds thousands at once."""


class DaemonSetController:
    """One control loop over all DaemonSets."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        events = context.events.writer("daemonset-controller")
        self._pods = ControlledPods(context.client, context.pods, owners=DAEMON_SETS, events=events)
        self._revisions = TemplateRevisions(context, DAEMON_SETS, hash_label=REVISION_LABEL)
        self.queue = ReconcileQueue("daemonset", self.reconcile, rng=context.rng, workers=DAEMON_SETS_AT_ONCE)
        requeue_changed(context.daemon_sets, queue=self.queue)
        context.nodes.listen(self._node_changed)
        requeue_owner_of_pods(context.pods, kind="DaemonSet", queue=self.queue)
        requeue_adopters(context.pods, context.daemon_sets, queue=self.queue)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _node_changed(self, old: Document | None, new: Document | None) -> None:
        if old is None or new is None or _decisive(old) != _decisive(new):
            for key in self._context.daemon_sets.objects:
                self.queue.add_after(key, NODE_EVENTS_COALESCED_S)

    async def reconcile(self, key: str) -> float | None:
        """Creates missing daemons and deletes surplus ones, or else does one step of the rollout; then writes the status."""
        daemon_set = self._context.daemon_sets.find(key)
        if daemon_set is None or daemon_set["metadata"].get("deletionTimestamp"):
            return None
        if not self._pods.is_current(daemon_set["metadata"]["uid"]):
            return LAG_RECHECK_S
        if await self._pods.claim(daemon_set, orphans_of(daemon_set, self._context.pods)):
            return LAG_RECHECK_S
        history = await self._revisions.history(daemon_set)
        revision_hash = history.update["metadata"]["labels"][REVISION_LABEL]
        nodes, strays = self._look(daemon_set)
        desired = sum(node.verdict.may_start for node in nodes)
        rollout = Rollout(daemon_set, revision_hash, self._context.now(), desired)
        steps = keep_up(rollout, nodes)
        steps.delete += strays
        if not steps.create_on and not steps.delete and rollout.is_rolling:
            (surge_over if rollout.surge else replace)(rollout, nodes, steps)
        try:
            await self._pods.delete(daemon_set, steps.delete)
            made = [daemon_pods.new_pod(daemon_set, node, revision_hash=revision_hash) for node in steps.create_on]
            await self._pods.create(daemon_set, made)
        finally:  # the status shows the current state even if a step was rejected
            is_waiting = await self._write_status(rollout, nodes)
        used = {(pod["metadata"].get("labels") or {}).get(REVISION_LABEL) for node in nodes for pod in node.pods}
        live = {name_of(r) for r in history.revisions if r["metadata"]["labels"].get(REVISION_LABEL) in used}
        await self._revisions.truncate(daemon_set, history, live | {name_of(history.update)})
        min_ready_s = float(daemon_set["spec"].get("minReadySeconds") or 0)
        return min((s for s in (steps.recheck_s, min_ready_s if is_waiting else None) if s is not None), default=None)

    def _look(self, daemon_set: Document) -> tuple[list[OnNode], list[Document]]:
        """Returns all nodes with their daemons, and the daemons without a known node."""
        rule = NodeRule(daemon_set)
        by_node: dict[str, list[Document]] = {}
        for pod in self._pods.of(daemon_set["metadata"]["uid"]):
            by_node.setdefault(daemon_pods.node_of(pod), []).append(pod)
        nodes = []
        for node in self._context.nodes.objects.values():
            name = node["metadata"]["name"]
            pods = sorted(by_node.pop(name, []), key=_age)
            staying = [pod for pod in pods if not self._pods.is_going(pod)]
            nodes.append(OnNode(name, rule.verdict(node), pods, staying))
        return nodes, [pod for pods in by_node.values() for pod in pods if not self._pods.is_going(pod)]

    async def _write_status(self, rollout: Rollout, nodes: Sequence[OnNode]) -> bool:
        """Writes the status; returns whether some pod is ready but not yet available."""
        wanted = [node for node in nodes if node.verdict.may_start]
        oldest = [node.pods[0] for node in wanted if node.pods]
        ready = [pod for pod in oldest if ready_since(pod) is not None]
        available = sum(map(rollout.is_available, ready))
        status = {
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": len(oldest),
            "numberMisscheduled": sum(bool(node.pods) for node in nodes if not node.verdict.may_start),
            "numberReady": len(ready),
            "updatedNumberScheduled": sum(map(rollout.is_updated, oldest)) or None,
            "numberAvailable": available or None,
            "numberUnavailable": (len(wanted) - available) or None,
            "observedGeneration": rollout.daemon_set["metadata"].get("generation", 0),
        }
        await write_status(self._context.client, DAEMON_SETS, rollout.daemon_set, status)
        return available < len(ready)


def _decisive(node: Document) -> tuple[object, object]:
    return node["metadata"].get("labels"), node["spec"]


def _age(pod: Document) -> tuple[bool, str, str]:
    """Sort key: bound pods first, then older ones."""
    metadata = pod["metadata"]
    return not pod["spec"]["nodeName"], str(metadata.get("creationTimestamp", "")), str(metadata["name"])
