"""The run of a succeeded pod, by its status."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from domains.job.runtimes.pod_run import PodRun, run_of
from multisched.model.pod_outcome import PodOutcome, outcome_of
from multisched.testing.builders import make_pod


def read(document: bytes) -> PodOutcome:
    try:
        phase = orjson.loads(document)["status"]["phase"]
    except orjson.JSONDecodeError:
        phase = "Succeeded"
    return outcome_of(replace(make_pod("p"), phase=phase), document)


def ended(*runs: tuple[str, str], phase: str = "Succeeded", bound: str = "") -> bytes:
    statuses = [{"state": {"terminated": {"startedAt": begin, "finishedAt": end}}} for begin, end in runs]
    status: dict[str, Any] = {"phase": phase, "containerStatuses": statuses}
    if bound:
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}]
    return orjson.dumps({"metadata": {"name": "p"}, "status": status})


def test_a_run_lasts_from_its_first_container_to_its_last_one() -> None:
    two = (("1970-01-01T00:01:05Z", "1970-01-01T00:01:30Z"), ("1970-01-01T00:01:00Z", "1970-01-01T00:01:20Z"))
    run = run_of(read(ended(*two, bound="1970-01-01T00:00:48Z")))
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
    assert run_of(read(document)) is None
