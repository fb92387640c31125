"""Writes to volumes and claims: what is sent, with which preconditions, and what each answer of a server means."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from multisched.client.limits import WriteLimiter
from multisched.client.volume_writer import ATTEMPTS_MAX, RETRY_DELAY_S, WRITE_TIMEOUT_S, ApiVolumeWriter
from multisched.framework.ports import ObjectRef, VolumeAnswer, VolumeReply
from multisched.model.version import NO_VERSION
from multisched.model.wire import MERGE_PATCH, AnswerLostError, ConnectFailedError
from tests.unit.client.scripted import Answer, Asked, LoopClock, ScriptedTransport, a_refusal, an_object, answer

pytestmark = pytest.mark.looptime

VOLUME = ObjectRef("PersistentVolume", "", "disk/1", "uid-v")
CLAIM = ObjectRef("PersistentVolumeClaim", "team", "data", "uid-c")
DONE = answer(200, an_object("disk", 42))
LOST = AnswerLostError("reset")


def a_writer(*answers: Answer) -> tuple[ApiVolumeWriter, ScriptedTransport]:
    script = list(answers)

    def respond(asked: Asked) -> Answer:
        return script.pop(0)

    transport = ScriptedTransport(respond=respond)
    return ApiVolumeWriter(transport, WriteLimiter(LoopClock())), transport


async def test_volume_is_bound_with_its_version_as_precondition() -> None:
    writer, transport = a_writer(DONE)
    reply = await writer.bind_volume(VOLUME, 7, CLAIM, claim_version=3, is_by_scheduler=True)

    assert reply == VolumeReply(VolumeAnswer.DONE, 42)
    (asked,) = transport.asked
    assert (asked.method, asked.path, asked.content_type) == (
        "PATCH",
        "/api/v1/persistentvolumes/disk%2F1",
        MERGE_PATCH,
    )
    assert asked.body == {
        "metadata": {
            "uid": "uid-v",
            "resourceVersion": "7",
            "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
        },
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "team",
                "name": "data",
                "uid": "uid-c",
                "resourceVersion": "3",
            }
        },
    }


async def test_prebound_volume_keeps_the_claim_of_the_user() -> None:
    writer, transport = a_writer(DONE)
    await writer.bind_volume(VOLUME, 7, CLAIM, claim_version=3, is_by_scheduler=False)
    assert transport.asked[0].body["metadata"] == {"uid": "uid-v", "resourceVersion": "7"}


async def test_claim_gets_the_selected_node_annotation() -> None:
    writer, transport = a_writer(DONE)
    assert (await writer.select_node(CLAIM, 5, "n1")).answer is VolumeAnswer.DONE
    (asked,) = transport.asked
    assert asked.path == "/api/v1/namespaces/team/persistentvolumeclaims/data"
    assert asked.body == {
        "metadata": {
            "uid": "uid-c",
            "resourceVersion": "5",
            "annotations": {"volume.kubernetes.io/selected-node": "n1"},
        }
    }


@pytest.mark.parametrize(
    ("refusal", "found"),
    [
        (a_refusal(409, "Conflict", "modified"), VolumeReply(VolumeAnswer.CONFLICT, message="modified")),
        (a_refusal(404, "NotFound", "gone"), VolumeReply(VolumeAnswer.NOT_FOUND, message="gone")),
        (a_refusal(403, "Forbidden", "no"), VolumeReply(VolumeAnswer.REFUSED, message="no")),
        (a_refusal(422, "Invalid", "bad"), VolumeReply(VolumeAnswer.REFUSED, message="bad")),
        (answer(400, "no Status"), VolumeReply(VolumeAnswer.REFUSED, message="HTTP 400")),
    ],
)
async def test_definite_refusal_is_not_retried(refusal: Answer, found: VolumeReply) -> None:
    writer, transport = a_writer(refusal)
    assert await writer.select_node(CLAIM, 5, "n1") == found
    assert [asked.timeout_s for asked in transport.asked] == [WRITE_TIMEOUT_S]


@pytest.mark.parametrize(
    "first", [[a_refusal(503)], [LOST], [ConnectFailedError("refused")], [a_refusal(429, retry_after="4"), LOST]]
)
async def test_volume_write_of_unknown_effect_is_retried(first: Sequence[Answer]) -> None:
    writer, transport = a_writer(*first, DONE)
    assert (await writer.select_node(CLAIM, 5, "n1")).answer is VolumeAnswer.DONE
    assert len({str(asked.body) for asked in transport.asked}) == 1
    assert len(transport.asked) == len(first) + 1
    waits = [later.at - earlier.at for earlier, later in pairwise(transport.asked)]
    assert waits[0] == pytest.approx(4.0 if "429" in repr(first[0]) else RETRY_DELAY_S)
    assert all(waits[at + 1] == pytest.approx(2 * wait) for at, wait in enumerate(waits[:-1]))


async def test_retry_after_of_the_server_is_followed() -> None:
    writer, transport = a_writer(a_refusal(429, retry_after="4"), DONE)
    await writer.select_node(CLAIM, 5, "n1")
    first, second = transport.asked
    assert second.at - first.at == pytest.approx(4.0)


async def test_unresponsive_server_fails_the_write() -> None:
    writer, transport = a_writer(*[LOST] * ATTEMPTS_MAX)
    assert await writer.select_node(CLAIM, 5, "n1") == VolumeReply(VolumeAnswer.UNKNOWN, message="reset")
    assert len(transport.asked) == ATTEMPTS_MAX


async def test_response_without_a_version_is_success() -> None:
    bodies: list[Any] = [{}, {"metadata": {"resourceVersion": ""}}, []]
    for body in bodies:
        writer, _ = a_writer(answer(200, body))
        assert await writer.select_node(CLAIM, 0, "n1") == VolumeReply(VolumeAnswer.DONE, NO_VERSION)


async def test_opaque_version_is_a_valid_precondition() -> None:
    writer, transport = a_writer(answer(200, {"metadata": {"resourceVersion": "next"}}))
    assert await writer.select_node(CLAIM, "this", "n1") == VolumeReply(VolumeAnswer.DONE, "next")
    assert transport.asked[0].body["metadata"]["resourceVersion"] == "this"
