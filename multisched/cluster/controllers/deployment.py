"""The Deployment controller: a ReplicaSet per template, rolling updates, Recreate, history, pause and status.

Source: pkg/controller/deployment (1.36): sync.go, rolling.go, recreate.go, progress.go. The template hash differs from
upstream's; its value has no meaning beyond the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from multisched.cluster.client.object_client import (
    DEPLOYMENTS,
    REPLICA_SETS,
    Answer,
    Document,
    controller_of,
    key_of,
    owner_reference,
    version_of,
)
from multisched.cluster.controllers.context import ControllerContext, owner_key, set_condition, write_status
from multisched.cluster.controllers.controlled_pods import LAG_RECHECK_S, TERMINAL, phase_of
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.cluster.controllers.revisions import template_hash
from multisched.cluster.controllers.rollout import Size, resolve_fenceposts, scale_new, scale_old
from multisched.model.api_time import parse_timestamp, timestamp

DEPLOYMENTS_AT_ONCE = 8
HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION, REVISION_HISTORY, DESIRED, MAX_REPLICAS)
_RECREATE_RECHECK_S = 1.0


class DeploymentController:
    """One control loop over all Deployments."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._events = context.events.writer("deployment-controller")
        self._written: dict[str, int] = {}
        """Deployment uid -> newest version written to one of its ReplicaSets."""
        self.queue = ReconcileQueue("deployment", self.reconcile, rng=context.rng, workers=DEPLOYMENTS_AT_ONCE)
        context.deployments.listen(self._changed)
        context.replica_sets.listen(self._replica_set_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None:
            self.queue.add(key_of(new))
        elif old is not None:
            self._written.pop(old["metadata"]["uid"], None)

    def _replica_set_changed(self, old: Document | None, new: Document | None) -> None:
        key = owner_key(new or old, "Deployment")
        if key:
            self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Does one step of the rollout, then writes the status."""
        deployment = self._context.deployments.find(key)
        if deployment is None:
            return None
        uid = deployment["metadata"]["uid"]
        if self._written.get(uid, 0) > self._context.replica_sets.version:
            return LAG_RECHECK_S
        owned = sorted(self._owned(uid), key=lambda rs: str(rs["metadata"].get("creationTimestamp", "")))
        if deployment["metadata"].get("deletionTimestamp"):
            return await self._write_status(deployment, _find_new(deployment, owned), owned)
        requeue_s: float | None = None
        if deployment["spec"].get("paused"):
            new = _find_new(deployment, owned)
            await self._scale_paused(deployment, owned)
        else:
            new = await self._new_replica_set(deployment, owned)
            if new is None:
                return LAG_RECHECK_S
            old = [rs for rs in owned if rs["metadata"]["uid"] != new["metadata"]["uid"]]
            if _strategy(deployment) == "Recreate":
                requeue_s = await self._recreate(deployment, new, old)
            else:
                await self._roll(deployment, new, old)
            await self._clean_history(deployment, old)
        status_s = await self._write_status(deployment, new, owned)
        return min((s for s in (requeue_s, status_s) if s is not None), default=None)

    def _owned(self, uid: str) -> list[Document]:
        return [rs for rs in self._context.replica_sets.under(uid) if (controller_of(rs) or {}).get("uid") == uid]

    # --- the new ReplicaSet --------------------------------------------------------------------------------------

    async def _new_replica_set(self, deployment: Document, owned: Sequence[Document]) -> Document | None:
        """Returns the ReplicaSet of the current template, created if necessary; None if its name is taken: reconcile again."""
        new = _find_new(deployment, owned)
        others = [rs for rs in owned if rs is not new]
        revision = max((_revision(rs) for rs in others), default=0) + 1
        if new is not None:
            missing = _copied_annotations(deployment)
            if _revision(new) < revision:
                missing |= _renumbered(new, revision)
            if not missing.items() <= (new["metadata"].get("annotations") or {}).items():
                await self._annotate(deployment, new, missing)
            await self._annotate_deployment(deployment, max(revision, _revision(new)))
            return new
        body = self._manifest(deployment, others, revision)
        namespace = deployment["metadata"]["namespace"]
        answer = await self._context.client.create(REPLICA_SETS, namespace, body)
        if answer.status == 409:
            taken = self._context.replica_sets.find(f"{namespace}/{body['metadata']['name']}")
            # A hash collision, or another owner's ReplicaSet: try the next name. If it is not in the cache, the cache is stale.
            if taken is not None:
                collisions = (deployment.get("status") or {}).get("collisionCount", 0) + 1
                await write_status(self._context.client, DEPLOYMENTS, deployment, {"collisionCount": collisions})
            return None
        created = answer.expect().document
        self._note(deployment, answer)
        if body["spec"]["replicas"]:
            self._record_scaled(deployment, created, 0, body["spec"]["replicas"])
        await self._annotate_deployment(deployment, revision)
        return created

    def _manifest(self, deployment: Document, others: Sequence[Document], revision: int) -> Document:
        spec, metadata = deployment["spec"], deployment["metadata"]
        name_hash = template_hash(spec["template"], (deployment.get("status") or {}).get("collisionCount", 0))
        template = {**spec["template"], "metadata": dict(spec["template"].get("metadata") or {})}
        template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), HASH_LABEL: name_hash}
        selector = {**spec["selector"]}
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH_LABEL: name_hash}
        desired = spec.get("replicas", 1)
        surge, _ = _fenceposts(deployment)
        replicas = 0
        if _strategy(deployment) != "Recreate":
            replicas = scale_new(Size(0, 0), [_size(rs) for rs in others], desired=desired, surge=surge)
        elif not any(rs["spec"].get("replicas", 1) or (rs.get("status") or {}).get("replicas") for rs in others):
            replicas = desired
        annotations = _copied_annotations(deployment)
        annotations |= {REVISION: str(revision), DESIRED: str(desired), MAX_REPLICAS: str(desired + surge)}
        return {
            "apiVersion": REPLICA_SETS.api_version,
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{metadata['name']}-{name_hash}",
                "namespace": metadata["namespace"],
                "labels": template["metadata"]["labels"],
                "annotations": annotations,
                "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
            },
            "spec": {
                "replicas": replicas,
                "minReadySeconds": spec.get("minReadySeconds") or 0,
                "selector": selector,
                "template": template,
            },
        }

    async def _annotate(self, deployment: Document, replica_set: Document, annotations: Document) -> None:
        await self._patch(deployment, replica_set, {"metadata": {"annotations": annotations}})

    async def _annotate_deployment(self, deployment: Document, revision: int) -> None:
        annotations = deployment["metadata"].get("annotations") or {}
        if annotations.get(REVISION) != str(revision):
            metadata = deployment["metadata"]
            body = {"metadata": {"uid": metadata["uid"], "annotations": {REVISION: str(revision)}}}
            client = self._context.client  # annotations written with the status do not raise the generation
            answer = await client.patch(
                DEPLOYMENTS, metadata["namespace"], metadata["name"], body=body, subresource="status"
            )
            answer.expect(404)

    # --- sizes ---------------------------------------------------------------------------------------------------

    async def _roll(self, deployment: Document, new: Document, old: Sequence[Document]) -> None:
        desired = deployment["spec"].get("replicas", 1)
        surge, unavailable = _fenceposts(deployment)
        new_size, old_sizes = _size(new), [_size(rs) for rs in old]
        wanted = scale_new(new_size, old_sizes, desired=desired, surge=surge)
        if await self._scale(deployment, new, wanted):
            return  # one step at a time: old ReplicaSets are scaled after the cache contains the new size
        for replica_set, size in zip(
            old, scale_old(new_size, old_sizes, desired=desired, unavailable=unavailable), strict=True
        ):
            await self._scale(deployment, replica_set, size)

    async def _recreate(self, deployment: Document, new: Document, old: Sequence[Document]) -> float | None:
        for replica_set in old:
            await self._scale(deployment, replica_set, 0)
        old_pods = [pod for rs in old for pod in self._context.pods.under(rs["metadata"]["uid"])]
        if any(rs["spec"].get("replicas", 1) for rs in old) or any(phase_of(p) not in TERMINAL for p in old_pods):
            return _RECREATE_RECHECK_S
        await self._scale(deployment, new, deployment["spec"].get("replicas", 1))
        return None

    async def _scale_paused(self, deployment: Document, owned: Sequence[Document]) -> None:
        """Scales a paused Deployment without a rollout: only its largest ReplicaSet grows or shrinks."""
        active = [rs for rs in owned if rs["spec"].get("replicas", 1)] or list(owned[-1:])
        difference = deployment["spec"].get("replicas", 1) - sum(rs["spec"].get("replicas", 1) for rs in active)
        asked = {(rs["metadata"].get("annotations") or {}).get(DESIRED) for rs in active}
        if active and difference and asked != {str(deployment["spec"].get("replicas", 1))}:
            largest = max(active, key=lambda rs: int(rs["spec"].get("replicas", 1)))
            await self._scale(deployment, largest, max(0, largest["spec"].get("replicas", 1) + difference))

    async def _scale(self, deployment: Document, replica_set: Document, replicas: int) -> bool:
        desired = deployment["spec"].get("replicas", 1)
        surge, _ = _fenceposts(deployment)
        annotations = {DESIRED: str(desired), MAX_REPLICAS: str(desired + surge)}
        has_size = replica_set["spec"].get("replicas", 1) == replicas
        if has_size and (not replicas or annotations.items() <= replica_set["metadata"]["annotations"].items()):
            return False
        await self._patch(
            deployment, replica_set, {"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}}
        )
        if not has_size:
            self._record_scaled(deployment, replica_set, replica_set["spec"].get("replicas", 1), replicas)
        return not has_size

    def _record_scaled(self, deployment: Document, replica_set: Document, before: int, after: int) -> None:
        name, way = replica_set["metadata"]["name"], "up" if before < after else "down"
        text = f"Scaled {way} replica set {name} from {before} to {after}"
        self._events.record(DEPLOYMENTS, deployment, "Normal", "ScalingReplicaSet", text)

    async def _patch(self, deployment: Document, replica_set: Document, body: Document) -> None:
        metadata = replica_set["metadata"]
        body = {**body, "metadata": {**body.get("metadata", {}), "uid": metadata["uid"]}}
        answer = await self._context.client.patch(REPLICA_SETS, metadata["namespace"], metadata["name"], body=body)
        self._note(deployment, answer.expect(404))

    def _note(self, deployment: Document, answer: Answer) -> None:
        if answer.is_success:
            uid = deployment["metadata"]["uid"]
            self._written[uid] = max(self._written.get(uid, 0), version_of(answer.document))

    async def _clean_history(self, deployment: Document, old: Sequence[Document]) -> None:
        limit = deployment["spec"].get("revisionHistoryLimit", 10)
        idle = [rs for rs in old if not rs["spec"].get("replicas", 1) and not (rs.get("status") or {}).get("replicas")]
        idle = sorted((rs for rs in idle if not rs["metadata"].get("deletionTimestamp")), key=_revision)
        for replica_set in idle[: max(0, len(idle) - limit)]:
            metadata = replica_set["metadata"]
            answer = await self._context.client.delete(
                REPLICA_SETS, metadata["namespace"], metadata["name"], uid=metadata["uid"], propagation="Background"
            )
            answer.expect(404, 409)

    # --- status --------------------------------------------------------------------------------------------------

    async def _write_status(
        self, deployment: Document, new: Document | None, owned: Sequence[Document]
    ) -> float | None:
        if new is not None and all(rs["metadata"]["uid"] != new["metadata"]["uid"] for rs in owned):
            owned = [*owned, new]
        spec, status = deployment["spec"], dict(deployment.get("status") or {})
        numbers = {
            name: sum((rs.get("status") or {}).get(name, 0) for rs in owned)
            for name in ("replicas", "readyReplicas", "availableReplicas", "terminatingReplicas")
        }
        expected = sum(rs["spec"].get("replicas", 1) for rs in owned)
        numbers["updatedReplicas"] = ((new or {}).get("status") or {}).get("replicas", 0)
        numbers["unavailableReplicas"] = max(0, expected - numbers["availableReplicas"])
        _, unavailable = _fenceposts(deployment)
        now = timestamp(self._context.now())
        is_available = numbers["availableReplicas"] >= spec.get("replicas", 1) - unavailable
        available: Document = {
            "type": "Available",
            "status": "True" if is_available else "False",
            "reason": "MinimumReplicasAvailable" if is_available else "MinimumReplicasUnavailable",
            "message": f"Deployment {'has' if is_available else 'does not have'} minimum availability.",
        }
        status["conditions"] = _stamped(status, available, now)
        progressing, requeue_s = self._progress(deployment, new, numbers, status)
        if progressing is not None:
            status["conditions"] = _stamped(status, progressing, now)
        await write_status(
            self._context.client,
            DEPLOYMENTS,
            deployment,
            {
                **{name: number or None for name, number in numbers.items()},
                "terminatingReplicas": numbers["terminatingReplicas"],
                "observedGeneration": deployment["metadata"].get("generation", 0),
                "conditions": status["conditions"],
            },
        )
        return requeue_s

    def _progress(
        self, deployment: Document, new: Document | None, numbers: dict[str, int], status: Document
    ) -> tuple[Document | None, float | None]:
        """Returns the Progressing condition (None: keep it), and the seconds until the progress deadline must be checked (None: never)."""
        spec, before = deployment["spec"], deployment.get("status") or {}
        present = next((c for c in before.get("conditions") or () if c["type"] == "Progressing"), None)
        desired, deadline_s = spec.get("replicas", 1), spec.get("progressDeadlineSeconds", 600)
        name = new["metadata"]["name"] if new is not None else deployment["metadata"]["name"]
        if spec.get("paused"):
            return _progressing("Unknown", "DeploymentPaused", "Deployment is paused"), None
        if (
            numbers["updatedReplicas"] == numbers["replicas"] == numbers["availableReplicas"] == desired
            and ((new or {}).get("status") or {}).get("availableReplicas", 0) == desired
        ):
            message = f'ReplicaSet "{name}" has successfully progressed.'
            return _progressing("True", "NewReplicaSetAvailable", message), None
        moved = (
            numbers["updatedReplicas"] != before.get("updatedReplicas", 0)
            or numbers["replicas"] < before.get("replicas", 0)
            or numbers["availableReplicas"] > before.get("availableReplicas", 0)
        )
        if present is None or moved or present["reason"] in ("NewReplicaSetAvailable", "DeploymentPaused"):
            message = f'ReplicaSet "{name}" is progressing.'
            condition = _progressing("True", "ReplicaSetUpdated", message)
            condition["lastUpdateTime"] = timestamp(self._context.now())
            return condition, float(deadline_s)
        if present["reason"] == "ProgressDeadlineExceeded":
            return None, None
        since = parse_timestamp(present.get("lastUpdateTime") or present["lastTransitionTime"])
        left_s = (since + timedelta(seconds=deadline_s) - self._context.now()).total_seconds()
        if left_s > 0:
            return None, left_s
        message = f'ReplicaSet "{name}" has timed out progressing.'
        return _progressing("False", "ProgressDeadlineExceeded", message), None


def _find_new(deployment: Document, owned: Sequence[Document]) -> Document | None:
    wanted = deployment["spec"]["template"]
    return next((rs for rs in owned if _without_hash(rs["spec"]["template"]) == _without_hash(wanted)), None)


def _without_hash(template: Document) -> Document:
    metadata = {k: v for k, v in (template.get("metadata") or {}).items() if v}
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != HASH_LABEL}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _revision(replica_set: Document) -> int:
    text = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def _renumbered(replica_set: Document, revision: int) -> dict[str, str]:
    """Returns annotations of a reused ReplicaSet: its new revision, and the history of its earlier ones."""
    annotations = replica_set["metadata"].get("annotations") or {}
    had = [name for name in (annotations.get(REVISION_HISTORY), annotations.get(REVISION)) if name]
    return {REVISION: str(revision), **({REVISION_HISTORY: ",".join(had)} if had else {})}


def _copied_annotations(deployment: Document) -> dict[str, str]:
    annotations = deployment["metadata"].get("annotations") or {}
    return {name: value for name, value in annotations.items() if name not in _NOT_COPIED}


def _size(replica_set: Document) -> Size:
    return Size(replica_set["spec"].get("replicas", 1), (replica_set.get("status") or {}).get("availableReplicas", 0))


def _strategy(deployment: Document) -> str:
    return str((deployment["spec"].get("strategy") or {}).get("type") or "RollingUpdate")


def _fenceposts(deployment: Document) -> tuple[int, int]:
    desired = deployment["spec"].get("replicas", 1)
    if _strategy(deployment) == "Recreate":
        return 0, desired
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return resolve_fenceposts(rolling.get("maxSurge", "25%"), rolling.get("maxUnavailable", "25%"), desired)


def _progressing(status: str, reason: str, message: str) -> Document:
    return {"type": "Progressing", "status": status, "reason": reason, "message": message}


def _stamped(status: Document, condition: Document, now: str) -> list[Document]:
    """Returns the conditions with this one set; sets its lastUpdateTime if any of its fields changed."""
    before = status.get("conditions") or []
    after = set_condition(status, condition, now)
    for present in after:
        if present["type"] == condition["type"] and present not in before:
            present["lastUpdateTime"] = now
    return after
