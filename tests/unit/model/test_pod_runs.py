"""What is read of a succeeded pod, a Job and a CronJob."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.model.cluster_objects import CronJob, Job
from multisched.model.object_kinds import ObjectKind
from multisched.model.pod_run import PodRun, run_of


def ended(*runs: tuple[str, str], phase: str = "Succeeded", bound: str = "") -> bytes:
    statuses = [{"state": {"terminated": {"startedAt": begin, "finishedAt": end}}} for begin, end in runs]
    status: dict[str, Any] = {"phase": phase, "containerStatuses": statuses}
    if bound:
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}]
    return orjson.dumps({"metadata": {"name": "p"}, "status": status})


def test_a_run_lasts_from_its_first_container_to_its_last_one() -> None:
    two = (("1970-01-01T00:01:05Z", "1970-01-01T00:01:30Z"), ("1970-01-01T00:01:00Z", "1970-01-01T00:01:20Z"))
    run = run_of(ended(*two, bound="1970-01-01T00:00:48Z"))
    assert run == PodRun(48.0, 60.0, 90.0)
    assert (run.duration_s, run.start_up_s) == (30.0, 12.0)


@pytest.mark.parametrize(
    "document",
    [
        ended(("1970-01-01T00:01:00Z", "1970-01-01T00:01:30Z"), phase="Failed"),
        ended(),
        b"{",
        b'{"status": {"phase": "Succeeded", "containerStatuses": 1}}',
        b'{"status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"startedAt": "soon"}}}]}}',
    ],
)
def test_a_document_that_does_not_tell_is_no_run(document: bytes) -> None:
    assert run_of(document) is None


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
