"""The Job controller: runs pods until enough succeeded, too many failed, or the deadline passed.

Source: pkg/controller/job/job_controller.go (1.36). Omitted: pod failure policies, success policies, backoffLimitPerIndex,
and tracking finalizers. So a finished pod that a user deletes stays counted only if the status already counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from multisched.cluster.client.object_client import JOBS, Document
from multisched.cluster.controllers.context import (
    ControllerContext,
    requeue_changed,
    requeue_owner_of_pods,
    set_condition,
    write_status,
)
from multisched.cluster.controllers.controlled_pods import (
    LAG_RECHECK_S,
    ControlledPods,
    is_terminating,
    phase_of,
    pod_from_template,
    ready_since,
)
from multisched.cluster.controllers.orphan_pods import orphans_of, requeue_adopters
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.model.api_time import parse_timestamp, timestamp

JOBS_AT_ONCE = 32
BACKOFF_FIRST_S, BACKOFF_MAX_S = 10.0, 600.0
INDEX = "batch.kubernetes.io/job-completion-index"


class JobController:
    """One control loop over all Jobs."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._events = context.events.writer("job-controller")
        self._pods = ControlledPods(context.client, context.pods, owners=JOBS, events=self._events)
        self.queue = ReconcileQueue("job", self.reconcile, rng=context.rng, workers=JOBS_AT_ONCE)
        requeue_changed(context.jobs, queue=self.queue)
        requeue_owner_of_pods(context.pods, kind="Job", queue=self.queue)
        requeue_adopters(context.pods, context.jobs, queue=self.queue)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    async def reconcile(self, key: str) -> float | None:
        """Finishes the Job, or adjusts its active pods to the wanted number; then writes the status."""
        job = self._context.jobs.find(key)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        if _is_finished(job):
            return await self._expire(job)
        uid = job["metadata"]["uid"]
        if not self._pods.is_current(uid):
            return LAG_RECHECK_S
        if await self._pods.claim(job, orphans_of(job, self._context.pods)):
            return LAG_RECHECK_S
        pods, active = self._pods.of(uid), self._pods.active(uid)
        spec, status = job["spec"], job.get("status") or {}
        now = self._context.now()
        succeeded = [p for p in pods if phase_of(p) == "Succeeded"]
        failed = max(sum(phase_of(p) == "Failed" for p in pods), status.get("failed", 0))
        indexes = completed_indexes(status, succeeded) if _is_indexed(job) else set()
        done = len(indexes) if _is_indexed(job) else max(len(succeeded), status.get("succeeded", 0))
        fresh: Document = {
            "active": len(active),
            "ready": sum(ready_since(p) is not None for p in active),
            "terminating": sum(is_terminating(p) for p in pods if phase_of(p) not in ("Succeeded", "Failed")),
            "succeeded": done,
            "failed": failed,
        }
        if _is_indexed(job):
            fresh["completedIndexes"] = format_indexes(indexes)
        end = self._verdict(job, done=done, failed=failed, active=len(active))
        if end is not None:
            return await self._finish(job, fresh, end, active)
        if spec.get("suspend"):
            return await self._suspend(job, fresh, active)
        fresh |= {"startTime": status.get("startTime") or timestamp(now)}
        if any(c["type"] == "Suspended" and c["status"] == "True" for c in status.get("conditions") or ()):
            condition = {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed"}
            fresh["conditions"] = set_condition(status, condition, timestamp(now))
            self._events.record(JOBS, job, "Normal", "Resumed", "Job resumed")
        await write_status(self._context.client, JOBS, job, fresh)
        wait_s = self._backoff_left_s(pods, failed)
        wanted = wanted_active(spec, done=done)
        if len(active) > wanted:
            await self._pods.delete(job, active[wanted:])
        elif len(active) < wanted and wait_s <= 0:
            await self._pods.create(job, self._new_pods(job, active, indexes, wanted - len(active)))
        deadline_s = self._deadline_left_s(job, fresh["startTime"])
        return min((s for s in (wait_s, deadline_s) if s is not None and s > 0), default=None)

    def _verdict(self, job: Document, *, done: int, failed: int, active: int) -> tuple[str, str, str] | None:
        """Returns type, reason and message of the condition that finishes the Job; None for an unfinished Job."""
        spec, status = job["spec"], job.get("status") or {}
        if failed > spec.get("backoffLimit", 6):
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        left_s = self._deadline_left_s(job, status.get("startTime"))
        if left_s is not None and left_s <= 0 and not spec.get("suspend"):
            return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
        completions = spec.get("completions")
        if (completions is None and done > 0 and active == 0) or (completions is not None and done >= completions):
            return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    def _deadline_left_s(self, job: Document, started: str | None) -> float | None:
        deadline_s = job["spec"].get("activeDeadlineSeconds")
        if deadline_s is None or not started:
            return None
        end = parse_timestamp(started) + timedelta(seconds=deadline_s)
        return (end - self._context.now()).total_seconds()

    def _backoff_left_s(self, pods: Sequence[Document], failed: int) -> float:
        """Returns the seconds until a failed pod may be replaced: 10 s after the first failure, doubled per failure, at most 10 min."""
        ends = [_ended_at(p) for p in pods if phase_of(p) == "Failed"]
        last = max((end for end in ends if end), default="")
        if not failed or not last:
            return 0.0
        delay_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(failed - 1, 10))
        return (parse_timestamp(last) + timedelta(seconds=delay_s) - self._context.now()).total_seconds()

    async def _finish(
        self, job: Document, fresh: Document, end: tuple[str, str, str], active: Sequence[Document]
    ) -> float | None:
        await self._pods.delete(job, active)
        kind, reason, message = end
        now = timestamp(self._context.now())
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        fresh |= {"active": 0, "ready": 0, "conditions": set_condition(job.get("status") or {}, condition, now)}
        fresh["startTime"] = (job.get("status") or {}).get("startTime") or now
        if kind == "Complete":
            fresh["completionTime"] = now
        await write_status(self._context.client, JOBS, job, fresh)
        if kind == "Complete":
            self._events.record(JOBS, job, "Normal", "Completed", "Job completed")
        else:
            self._events.record(JOBS, job, "Warning", reason, message)
        return None

    async def _suspend(self, job: Document, fresh: Document, active: Sequence[Document]) -> float | None:
        await self._pods.delete(job, active)
        condition = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}
        now, before = timestamp(self._context.now()), job.get("status") or {}
        fresh |= {"startTime": None, "conditions": set_condition(before, condition, now)}
        if fresh["conditions"] != (before.get("conditions") or []):
            self._events.record(JOBS, job, "Normal", "Suspended", "Job suspended")
        await write_status(self._context.client, JOBS, job, fresh)
        return None

    async def _expire(self, job: Document) -> float | None:
        """Deletes a finished Job after its ttlSecondsAfterFinished."""
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        if ttl_s is None:
            return None
        ended = next(c["lastTransitionTime"] for c in job["status"]["conditions"] if _ends(c))
        left_s = (parse_timestamp(ended) + timedelta(seconds=ttl_s) - self._context.now()).total_seconds()
        if left_s > 0:
            return left_s
        meta = job["metadata"]
        answer = await self._context.client.delete(
            JOBS, meta["namespace"], meta["name"], uid=meta["uid"], propagation="Background"
        )
        answer.expect(404, 409)
        return None

    def _new_pods(self, job: Document, active: Sequence[Document], done: set[int], count: int) -> list[Document]:
        pod = pod_from_template(job["spec"]["template"], owner=job, resource=JOBS)
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        for prefix in ("", "batch.kubernetes.io/"):
            pod["metadata"]["labels"] |= {f"{prefix}job-name": name, f"{prefix}controller-uid": uid}
        if not _is_indexed(job):
            return [pod] * count
        taken = done | {_index_of(p) for p in active}
        free = [i for i in range(job["spec"]["completions"]) if i not in taken]
        return [_indexed(pod, name, index) for index in free[:count]]


def wanted_active(spec: Document, *, done: int) -> int:
    """Returns the number of pods that should be active: none after the first success if the Job has no `completions` (a work queue)."""
    parallelism, completions = int(spec.get("parallelism", 1)), spec.get("completions")
    if completions is None:
        return 0 if done else parallelism
    return max(0, min(parallelism, int(completions) - done))


def completed_indexes(status: Document, succeeded: Sequence[Document]) -> set[int]:
    """Returns the indexes that succeeded, including those in the status."""
    indexes = {_index_of(pod) for pod in succeeded}
    for part in filter(None, str(status.get("completedIndexes") or "").split(",")):
        first, _, last = part.partition("-")
        indexes |= set(range(int(first), int(last or first) + 1))
    return indexes - {-1}


def format_indexes(indexes: set[int]) -> str:
    """Formats indexes like `0-2,5`; as in upstream, a run of two is written `1,2`."""
    parts: list[str] = []
    rest = sorted(indexes)
    while rest:
        length = next((i for i, value in enumerate(rest) if value != rest[0] + i), len(rest))
        first, last = rest[0], rest[length - 1]
        parts.append(str(first) if length == 1 else f"{first},{last}" if length == 2 else f"{first}-{last}")
        rest = rest[length:]
    return ",".join(parts)


def _indexed(pod: Document, job: str, index: int) -> Document:
    metadata = {**pod["metadata"], "generateName": f"{job}-{index}-"}
    metadata["labels"] = {**metadata["labels"], INDEX: str(index)}
    metadata["annotations"] = {**metadata["annotations"], INDEX: str(index)}
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    env = [{"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]
    containers = [{**c, "env": [*(c.get("env") or ()), *env]} for c in pod["spec"]["containers"]]
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "hostname": f"{job}-{index}", "containers": containers},
    }


def _is_indexed(job: Document) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def _index_of(pod: Document) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else -1


def _ended_at(pod: Document) -> str:
    times = [c.get("lastTransitionTime") or "" for c in pod["status"]["conditions"] if c["type"] == "Ready"]
    return str(times[0]) if times else str(pod["metadata"].get("creationTimestamp", ""))


def _ends(condition: Document) -> bool:
    return bool(condition["type"] in ("Complete", "Failed") and condition["status"] == "True")


def _is_finished(job: Document) -> bool:
    return any(_ends(condition) for condition in (job.get("status") or {}).get("conditions") or ())
