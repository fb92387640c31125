"""The CronJob controller: creates one Job per due time, and deletes old Jobs.

Source: pkg/controller/cronjob/cronjob_controllerv2.go (1.36). Of several missed Jobs, it starts only the latest, as in upstream.
Omitted: the Event for an invalid schedule, which is logged instead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from multisched.cluster.client.object_client import CRON_JOBS, JOBS, Document, controller_of, key_of, owner_reference
from multisched.cluster.controllers.context import ControllerContext, owner_key, requeue_changed, write_status
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.model.api_time import parse_timestamp, timestamp
from multisched.model.cron_schedule import Schedule, ScheduleError, parse_schedule

logger = logging.getLogger(__name__)

CRON_JOBS_AT_ONCE = 5
SCHEDULED_AT = "batch.kubernetes.io/cronjob-scheduled-timestamp"
_AFTER_DUE_S = 0.1
"""Delay of a reconcile after the due time, so that clocks with whole seconds have reached the due time."""


class CronJobController:
    """One control loop over all CronJobs."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._events = context.events.writer("cronjob-controller")
        self.queue = ReconcileQueue("cronjob", self.reconcile, rng=context.rng, workers=CRON_JOBS_AT_ONCE)
        requeue_changed(context.cron_jobs, queue=self.queue)
        context.jobs.listen(self._job_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _job_changed(self, old: Document | None, new: Document | None) -> None:
        key = owner_key(new or old, "CronJob")
        if key:
            self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Deletes old Jobs, starts the due one, writes the status; returns the seconds until the next due time."""
        cron_job = self._context.cron_jobs.find(key)
        if cron_job is None or cron_job["metadata"].get("deletionTimestamp"):
            return None
        uid = cron_job["metadata"]["uid"]
        jobs = [job for job in self._context.jobs.under(uid) if (controller_of(job) or {}).get("uid") == uid]
        await self._clear(cron_job, jobs)
        active = [
            job for job in jobs if not _outcome(job) and SCHEDULED_AT in (job["metadata"].get("annotations") or {})
        ]
        now = self._context.now()
        spec, status = cron_job["spec"], cron_job.get("status") or {}
        schedule = None if spec.get("suspend") else _schedule(cron_job)
        due = _due(cron_job, schedule, now) if schedule is not None else None
        last = status.get("lastScheduleTime")
        if due is not None and timestamp(due) != last and not (active and spec.get("concurrencyPolicy") == "Forbid"):
            if spec.get("concurrencyPolicy") == "Replace":
                for job in active:
                    await self._delete(cron_job, job)
                active = []
            active.append(await self._start(cron_job, due))
            last = timestamp(due)
        await self._write(cron_job, jobs, active, last)
        following = schedule.next_after(now) if schedule is not None else None
        return (following - now).total_seconds() + _AFTER_DUE_S if following is not None else None

    async def _start(self, cron_job: Document, due: datetime) -> Document:
        """Creates the Job of a due time. Its name contains the time, so it is created only once even if the cache is stale."""
        template, metadata = cron_job["spec"]["jobTemplate"], cron_job["metadata"]
        given = template.get("metadata") or {}
        namespace, name = metadata["namespace"], f"{metadata['name']}-{int(due.timestamp()) // 60}"
        zone = cron_job["spec"].get("timeZone")
        scheduled = due.astimezone(ZoneInfo(zone)).isoformat() if zone else timestamp(due)
        job = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": dict(given.get("labels") or {}),
                "annotations": {**(given.get("annotations") or {}), SCHEDULED_AT: scheduled},
                "ownerReferences": [owner_reference(CRON_JOBS, cron_job)],
            },
            "spec": template["spec"],
        }
        answer = (await self._context.client.create(JOBS, namespace, job)).expect(409)
        if answer.is_success:
            self._events.record(CRON_JOBS, cron_job, "Normal", "SuccessfulCreate", f"Created job {name}")
            return answer.document
        return (await self._context.client.get(JOBS, namespace, name)).expect().document

    async def _clear(self, cron_job: Document, jobs: Sequence[Document]) -> None:
        """Deletes the oldest finished Jobs beyond the history limits."""
        for outcome, field, default in (
            ("Complete", "successfulJobsHistoryLimit", 3),
            ("Failed", "failedJobsHistoryLimit", 1),
        ):
            ended = sorted((job for job in jobs if _outcome(job) == outcome), key=_started)
            ended = [job for job in ended if not job["metadata"].get("deletionTimestamp")]
            for job in ended[: max(0, len(ended) - int(cron_job["spec"].get(field, default)))]:
                await self._delete(cron_job, job)

    async def _delete(self, cron_job: Document, job: Document) -> None:
        metadata = job["metadata"]
        answer = await self._context.client.delete(
            JOBS, metadata["namespace"], metadata["name"], uid=metadata["uid"], propagation="Background"
        )
        answer.expect(404, 409)
        self._events.record(CRON_JOBS, cron_job, "Normal", "SuccessfulDelete", f"Deleted job {metadata['name']}")

    async def _write(
        self, cron_job: Document, jobs: Sequence[Document], active: Sequence[Document], last: str | None
    ) -> None:
        ended = [str(job["status"].get("completionTime") or "") for job in jobs if _outcome(job) == "Complete"]
        before = (cron_job.get("status") or {}).get("lastSuccessfulTime") or ""
        status: Document = {"active": [_reference(job) for job in active], "lastScheduleTime": last}
        succeeded = max([before, *ended])
        if succeeded:
            status["lastSuccessfulTime"] = succeeded
        await write_status(self._context.client, CRON_JOBS, cron_job, status)


def _schedule(cron_job: Document) -> Schedule | None:
    """Parses the schedule. Logs an invalid schedule or time zone and returns None: only an edit can fix it."""
    spec = cron_job["spec"]
    try:
        zone = ZoneInfo(spec["timeZone"]) if spec.get("timeZone") else None
        return parse_schedule(spec["schedule"], zone=zone) if zone is not None else parse_schedule(spec["schedule"])
    except (ScheduleError, ZoneInfoNotFoundError, ValueError) as error:
        logger.warning("unreadable schedule", extra={"cronjob": key_of(cron_job), "error": str(error)})
        return None


def _due(cron_job: Document, schedule: Schedule, now: datetime) -> datetime | None:
    """Returns the latest due time that is after the last scheduled one and within the starting deadline."""
    done = (cron_job.get("status") or {}).get("lastScheduleTime")
    after = parse_timestamp(done or cron_job["metadata"]["creationTimestamp"])
    deadline_s = cron_job["spec"].get("startingDeadlineSeconds")
    due = schedule.last_until(now, after=after)
    if due is not None and deadline_s is not None and due + timedelta(seconds=deadline_s) < now:
        return None
    return due


def _outcome(job: Document) -> str:
    """Returns Complete, Failed, or an empty string for an unfinished Job."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return str(condition["type"])
    return ""


def _started(job: Document) -> str:
    return str((job.get("status") or {}).get("startTime") or job["metadata"].get("creationTimestamp", ""))


def _reference(job: Document) -> Document:
    metadata = job["metadata"]
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
