"""The StatefulSet controller: pods with stable names, created and deleted in order, each with its own claims.

Source: pkg/controller/statefulset/stateful_set_control.go (1.36), with that release's default feature gates: a rolling
update replaces one pod at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat

from multisched.cluster.base.selectors import from_label_selector
from multisched.cluster.client.object_client import (
    CLAIMS,
    PODS,
    STATEFUL_SETS,
    Document,
    RefusedError,
    controller_of,
    key_of,
)
from multisched.cluster.controllers import stateful_pods
from multisched.cluster.controllers.context import (
    ControllerContext,
    requeue_changed,
    requeue_owner_of_pods,
    write_status,
)
from multisched.cluster.controllers.controlled_pods import (
    LAG_RECHECK_S,
    TERMINAL,
    ControlledPods,
    each,
    is_available,
    is_terminating,
    phase_of,
    ready_since,
)
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.cluster.controllers.revisions import TemplateHistory, TemplateRevisions, name_of, template_of
from multisched.cluster.controllers.stateful_pods import ordinal_of, ordinals, revision_of

STATEFUL_SETS_AT_ONCE = 8
_CONFLICT = 409


@dataclass(frozen=True, slots=True)
class _Members:
    """The pods of a StatefulSet at one time."""

    stateful_set: Document
    replicas: dict[int, Document]
    """Ordinal -> pod, for wanted ordinals."""
    condemned: list[Document]
    """Pods with other ordinals, highest first."""
    now: datetime

    @property
    def is_ordered(self) -> bool:
        return bool(self.stateful_set["spec"].get("podManagementPolicy") != "Parallel")

    def is_available(self, pod: Document) -> bool:
        return is_available(pod, self.stateful_set["spec"].get("minReadySeconds") or 0, self.now)

    def is_ready(self, pod: Document) -> bool:
        return phase_of(pod) == "Running" and ready_since(pod) is not None


class StatefulSetController:
    """One control loop over all StatefulSets."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._pods = ControlledPods(context.client, context.pods, owners=STATEFUL_SETS)
        self._revisions = TemplateRevisions(context, STATEFUL_SETS, hash_label="controller.kubernetes.io/hash")
        self._events = context.events.writer("statefulset-controller")
        self.queue = ReconcileQueue("statefulset", self.reconcile, rng=context.rng, workers=STATEFUL_SETS_AT_ONCE)
        requeue_changed(context.stateful_sets, queue=self.queue)
        requeue_owner_of_pods(context.pods, kind="StatefulSet", queue=self.queue)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    async def reconcile(self, key: str) -> float | None:
        """Does one step of scaling or updating, then writes the status."""
        stateful_set = self._context.stateful_sets.find(key)
        if stateful_set is None:
            return None
        if not self._pods.is_current(stateful_set["metadata"]["uid"]):
            return LAG_RECHECK_S
        if await self._claim(stateful_set):
            return LAG_RECHECK_S
        history = await self._revisions.history(stateful_set)
        members = self._members(stateful_set)
        requeue_s: float | None = None
        try:
            if not is_terminating(stateful_set):
                requeue_s = await self._step(members, history)
        finally:  # the status shows the current state even if the step was rejected
            ready, available = await self._write_status(members, history)
        pods = [*members.replicas.values(), *members.condemned]
        live = {name_of(history.update), (stateful_set.get("status") or {}).get("currentRevision", "")}
        await self._revisions.truncate(stateful_set, history, live | {revision_of(pod) for pod in pods})
        if requeue_s is None and available < ready:
            requeue_s = float(stateful_set["spec"].get("minReadySeconds") or 0)
        return requeue_s

    def _members(self, stateful_set: Document) -> _Members:
        wanted = ordinals(stateful_set)
        found = {ordinal_of(stateful_set, pod): pod for pod in self._pods.of(stateful_set["metadata"]["uid"])}
        replicas = {ordinal: found[ordinal] for ordinal in sorted(found) if ordinal in wanted}
        condemned = [found[n] for n in sorted(found, reverse=True) if n >= 0 and n not in wanted]
        return _Members(stateful_set, replicas, condemned, self._context.now())

    async def _claim(self, stateful_set: Document) -> bool:
        """Adopts orphaned pods with members' names, and releases pods that the selector no longer matches; reports whether it did."""
        if is_terminating(stateful_set):
            return False
        orphans = [
            pod
            for pod in map(self._pod_of_name, repeat(stateful_set), ordinals(stateful_set))
            if pod is not None and _may_be_adopted(stateful_set, pod)
        ]
        return await self._pods.claim(stateful_set, orphans)

    def _pod_of_name(self, stateful_set: Document, ordinal: int) -> Document | None:
        """Returns the pod with a member's name, whether or not it is a member."""
        namespace = stateful_set["metadata"]["namespace"]
        return self._context.pods.find(f"{namespace}/{stateful_pods.pod_name(stateful_set, ordinal)}")

    # --- one step ------------------------------------------------------------------------------------------------

    async def _step(self, members: _Members, history: TemplateHistory) -> float | None:
        """Scales up, then scales down, then updates; each only when the one before is done."""
        is_done, requeue_s = await self._fill(members, history)
        if is_done:
            for pod in members.condemned:
                await self._own_claims(members.stateful_set, pod)
            is_done = await self._scale_down(members)
        if is_done and members.stateful_set["spec"]["updateStrategy"].get("type") != "OnDelete":
            await self._roll(members, name_of(history.update))
        return requeue_s

    async def _fill(self, members: _Members, history: TemplateHistory) -> tuple[bool, float | None]:
        """Creates missing members; returns whether scaling down may begin, and the seconds until the next check."""
        missing: list[int] = []
        is_done, requeue_s = True, None
        for ordinal in ordinals(members.stateful_set):
            pod = members.replicas.get(ordinal)
            if pod is not None:
                is_settled = await self._settle(members, ordinal, pod)
            else:
                is_settled = False
                if self._pod_of_name(members.stateful_set, ordinal) is not None or self._has_claim_to_go(
                    members.stateful_set, ordinal
                ):
                    # Another owner's pod or an old claim has the name. Its deletion does not queue this key.
                    requeue_s = LAG_RECHECK_S
                else:
                    missing.append(ordinal)
            if members.is_ordered and not is_settled:
                is_done = False
                break
        await self._create(members, history, missing)
        return is_done, requeue_s

    async def _settle(self, members: _Members, ordinal: int, pod: Document) -> bool:
        """Deletes an ended pod, corrects labels and claims of a live one; returns True for an available one: the next may follow."""
        stateful_set = members.stateful_set
        if phase_of(pod) in TERMINAL:
            if not self._pods.is_going(pod):
                await self._delete(stateful_set, pod)
            return False
        if phase_of(pod) == "Pending" and not self._pods.is_going(pod):
            await self._create_claims(stateful_set, ordinal)
        await self._own_claims(stateful_set, pod)
        labels = stateful_pods.identity_labels(stateful_set, ordinal)
        if not labels.items() <= (pod["metadata"].get("labels") or {}).items():
            metadata = pod["metadata"]
            body = {"metadata": {"uid": metadata["uid"], "labels": labels}}
            answer = await self._context.client.patch(PODS, metadata["namespace"], metadata["name"], body=body)
            answer.expect(404)
        return not self._pods.is_going(pod) and members.is_ready(pod) and members.is_available(pod)

    async def _create(self, members: _Members, history: TemplateHistory, missing: Sequence[int]) -> None:
        stateful_set = members.stateful_set
        current = history.current((stateful_set.get("status") or {}).get("currentRevision", ""))

        async def make(ordinal: int) -> None:
            revision = current if _is_held_back(stateful_set, ordinal) else history.update
            pod = stateful_pods.new_pod(
                stateful_set, ordinal, template=template_of(revision), revision=name_of(revision)
            )
            try:
                await self._create_claims(stateful_set, ordinal)
                await self._pods.create(stateful_set, [pod])
            except RefusedError as refused:
                self._record(stateful_set, "Create", pod, refused)
                raise
            self._record(stateful_set, "Create", pod)

        await each(missing, make)

    async def _scale_down(self, members: _Members) -> bool:
        """Deletes surplus pods; reports whether none is left. With OrderedReady: one at a time, and only while all others are available."""
        if not members.is_ordered:
            for pod in members.condemned:
                if not self._pods.is_going(pod):
                    await self._delete(members.stateful_set, pod)
            return not members.condemned
        if members.condemned:
            pod = members.condemned[0]
            in_order = [*members.replicas.values(), *reversed(members.condemned)]
            unwell = [p for p in in_order if self._pods.is_going(p) or not members.is_available(p)]
            may_go = (members.is_ready(pod) and members.is_available(pod)) or unwell[:1] == [pod]
            if may_go and not self._pods.is_going(pod):
                await self._delete(members.stateful_set, pod)
        return not members.condemned

    async def _roll(self, members: _Members, update: str) -> None:
        """Deletes the last pod that has another revision, if all pods after it are available."""
        rolling = members.stateful_set["spec"]["updateStrategy"].get("rollingUpdate") or {}
        for ordinal in reversed(ordinals(members.stateful_set)[rolling.get("partition", 0) :]):
            pod = members.replicas.get(ordinal)
            if pod is None:
                return
            if revision_of(pod) != update and not self._pods.is_going(pod):
                await self._delete(members.stateful_set, pod)
                return
            if self._pods.is_going(pod) or not members.is_available(pod):
                return

    async def _delete(self, stateful_set: Document, pod: Document) -> None:
        try:
            await self._pods.delete(stateful_set, [pod])
        except RefusedError as refused:
            self._record(stateful_set, "Delete", pod, refused)
            raise
        self._record(stateful_set, "Delete", pod)

    def _record(self, stateful_set: Document, verb: str, pod: Document, refused: RefusedError | None = None) -> None:
        names = f"{verb} Pod {pod['metadata']['name']} in StatefulSet {stateful_set['metadata']['name']}"
        if refused is None:
            kind, reason, message = "Normal", f"Successful{verb}", f"{names} successful"
        else:
            kind, reason, message = "Warning", f"Failed{verb}", f"{names} failed error: {refused.answer.message}"
        self._events.record(STATEFUL_SETS, stateful_set, kind, reason, message)

    # --- claims --------------------------------------------------------------------------------------------------

    def _has_claim_to_go(self, stateful_set: Document, ordinal: int) -> bool:
        """Reports whether a claim of an earlier pod of this ordinal must be deleted before a new pod is created, which must not use it."""
        name = stateful_pods.pod_name(stateful_set, ordinal)
        known = (self._context.claims.find(key_of(c)) for _, c in stateful_pods.claims_of(stateful_set, ordinal))
        return any(
            claim is not None and (is_terminating(claim) or stateful_pods.is_stale(claim, stateful_set, name))
            for claim in known
        )

    async def _create_claims(self, stateful_set: Document, ordinal: int) -> None:
        for _, claim in stateful_pods.claims_of(stateful_set, ordinal):
            if self._context.claims.find(key_of(claim)) is not None:
                continue
            metadata = claim["metadata"]
            answer = await self._context.client.create(CLAIMS, metadata["namespace"], claim)
            if answer.expect(_CONFLICT).status != _CONFLICT:
                pod, name = stateful_pods.pod_name(stateful_set, ordinal), stateful_set["metadata"]["name"]
                message = f"Create Claim {metadata['name']} Pod {pod} in StatefulSet {name} success"
                self._events.record(STATEFUL_SETS, stateful_set, "Normal", "SuccessfulCreate", message)

    async def _own_claims(self, stateful_set: Document, pod: Document) -> None:
        for _, claim in stateful_pods.claims_of(stateful_set, ordinal_of(stateful_set, pod)):
            known = self._context.claims.find(key_of(claim))
            owners = stateful_pods.claim_owners(known, stateful_set, pod) if known is not None else None
            if known is None or owners is None:
                continue
            metadata = known["metadata"]
            kept = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            body = {"metadata": {**kept, "ownerReferences": owners or None}}
            answer = await self._context.client.patch(CLAIMS, metadata["namespace"], metadata["name"], body=body)
            answer.expect(404)

    # --- status --------------------------------------------------------------------------------------------------

    async def _write_status(self, members: _Members, history: TemplateHistory) -> tuple[int, int]:
        """Writes the status; returns the numbers of ready and of available pods."""
        stateful_set, update = members.stateful_set, name_of(history.update)
        current = name_of(history.current((stateful_set.get("status") or {}).get("currentRevision", "")))
        pods = [*members.replicas.values(), *members.condemned]
        ready = [pod for pod in pods if members.is_ready(pod)]
        available = sum(members.is_available(pod) for pod in ready)
        staying = [revision_of(pod) for pod in pods if not self._pods.is_going(pod)]
        wanted = stateful_set["spec"].get("replicas", 1)
        updated = staying.count(update)
        is_rolling = stateful_set["spec"]["updateStrategy"].get("type") != "OnDelete"
        if is_rolling and updated == len(ready) == len(pods) == wanted:
            current = update
        status = {
            "observedGeneration": stateful_set["metadata"].get("generation", 0),
            "replicas": len(pods),
            "availableReplicas": available,
            "readyReplicas": len(ready) or None,
            "currentReplicas": staying.count(current) or None,
            "updatedReplicas": updated or None,
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": history.collisions,
        }
        await write_status(self._context.client, STATEFUL_SETS, stateful_set, status)
        return len(ready), available


def _may_be_adopted(stateful_set: Document, pod: Document) -> bool:
    matches = from_label_selector(stateful_set["spec"].get("selector"))
    return controller_of(pod) is None and not is_terminating(pod) and matches(pod["metadata"].get("labels") or {})


def _is_held_back(stateful_set: Document, ordinal: int) -> bool:
    """Reports whether a new pod of this ordinal gets the current revision instead of the update revision."""
    strategy, status = stateful_set["spec"]["updateStrategy"], stateful_set.get("status") or {}
    index = ordinal - ordinals(stateful_set).start
    rolling = strategy.get("rollingUpdate")
    if rolling is not None:
        return bool(index < rolling.get("partition", 0))
    return bool(strategy.get("type") == "RollingUpdate" and index < (status.get("currentReplicas") or 0))
