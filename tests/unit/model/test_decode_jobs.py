"""What is read of a Job and a CronJob."""

from __future__ import annotations

import orjson

from multisched.model.cluster_objects import CronJob, Job
from multisched.model.object_kinds import ObjectKind


def test_deadline_start_and_owner_of_a_job_are_read() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "settle", "uid": "c", "controller": True}
    meta = {"name": "j", "namespace": "n", "creationTimestamp": "1970-01-01T00:00:10Z", "ownerReferences": [owner]}
    document = {
        "metadata": meta,
        "spec": {"activeDeadlineSeconds": 90},
        "status": {"startTime": "1970-01-01T00:00:12Z"},
    }
    job = ObjectKind.JOB.definition.decode(orjson.dumps(document))
    assert isinstance(job, Job)
    assert job.owner is not None
    assert (job.owner.kind, job.owner.name) == ("CronJob", "settle")
    assert (job.created_s, job.started_s, job.active_deadline_s) == (10.0, 12.0, 90)


def test_schedule_and_zone_of_a_cron_job_are_read() -> None:
    document = {"metadata": {"name": "c"}, "spec": {"schedule": "*/5 * * * *", "timeZone": "Asia/Tokyo"}}
    cron = ObjectKind.CRON_JOB.definition.decode(orjson.dumps(document))
    assert isinstance(cron, CronJob)
    assert (cron.schedule, cron.time_zone) == ("*/5 * * * *", "Asia/Tokyo")
