"""Reading priority classes for a question: what an answer that is none becomes."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.decode import Decoder
from multisched.model.wire import ConnectFailedError, LineStream, Response
from multisched.shell.ingest.priority_classes import PlannedPod, PriorityClass, admitted, read_classes

POD = b'{"metadata": {"name": "new", "namespace": "default", "uid": "u"}, "spec": {"containers": []}}'


class OneAnswer:
    """A network that has one answer to everything, or none."""

    def __init__(self, answer: Response | None) -> None:
        self._answer = answer

    async def request(self, method: str, path: str, **how: Any) -> Response:
        if self._answer is None:
            raise ConnectFailedError("no route to host")
        return self._answer

    def stream(self, path: str, **how: Any) -> LineStream:
        raise AssertionError("nothing is watched")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "no route to host"),
        (Response(403, b"{}"), "the API server answered 403"),
        (Response(200, b'{"items": [{"value": 5}]}'), "Object missing required field `metadata` - at `$.items[0]`"),
        (Response(200, b"<html>"), "JSON is malformed: invalid character (byte 0)"),
    ],
)
async def test_unreadable_priority_classes_are_reported_and_pod_values_kept(answer: Response | None, why: str) -> None:
    found = await read_classes(OneAnswer(answer))  # type: ignore[arg-type]  # no streams
    assert found == why
    planned = admitted(PlannedPod(Decoder().pod(POD), "new", "high"), None, why)
    assert planned.pod.spec.priority == 0
    assert planned.notes == (
        (
            "the value of priority class high is unknown: priority 0 is assumed;"
            " write priority: N in addition to priorityClassName, as the API server will"
        ),
        f"priority classes cannot be read: {why}",
    )
    told = admitted(PlannedPod(Decoder().pod(POD), "new", "high", priority=7), None, "")
    assert told.notes == (), "it says itself what the class stands for"
    assert admitted(PlannedPod(Decoder().pod(POD), "new", ""), None, "").notes == ()
    system = admitted(PlannedPod(Decoder().pod(POD), "new", "system-node-critical"), None, why)
    assert (system.pod.spec.priority, system.notes) == (2_000_001_000, ())


async def test_priority_classes_are_read_with_default_and_policy() -> None:
    body = b"""{"items": [
        {"metadata": {"name": "usual"}, "value": 5, "globalDefault": true},
        {"metadata": {"name": "meek"}, "value": -3, "preemptionPolicy": "Never"}
    ]}"""
    assert await read_classes(OneAnswer(Response(200, body))) == (  # type: ignore[arg-type]  # no streams
        PriorityClass("usual", 5, is_default=True),
        PriorityClass("meek", -3, preemption_policy="Never"),
    )
