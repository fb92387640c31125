"""Requests about SliceSets: of two writes of one version one succeeds, spec and status are written apart, answers have one meaning."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.client.limits import WriteLimiter
from multisched.client.slice_writer import ApiSliceWriter
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.framework.slice_writes import SliceAnswer, SliceCall, SliceReply, SliceRequest
from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import NOTHING, SliceAmount, SliceOffer, SliceSpec, SliceStatus
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response
from multisched.plugins.slices.borrower_slices import BorrowerSlices
from multisched.plugins.slices.lender_slices import LenderSlices
from tests.kit import definitions
from tests.unit.client.scripted import Answer, LoopClock, ScriptedTransport, a_refusal, answer

pytestmark = pytest.mark.looptime

SYSTEM = "kube-system"
BLANK = SliceSet(name="gpu.job.0", namespace=SYSTEM)
EMPTY = SliceSpec("gpu", "job")
AMOUNT = SliceAmount(4_000, 1 << 34, 20)


class Api:
    """The embedded API server with the definition, and one writer."""

    def __init__(self) -> None:
        self.transport = DirectTransport(ApiServer(LoopClock(), seed=0, rbac=False))
        self.writer = ApiSliceWriter(self.transport, WriteLimiter(LoopClock()))

    async def define(self) -> None:
        await self.user("POST", definitions.PATH, definitions.definition("slicesets"))

    async def user(self, method: str, path: str, document: Any = None) -> Response:
        body = None if document is None else orjson.dumps(document)
        response = await self.transport.request(method, path, body=body)
        assert response.status < 300, response.body
        return response

    async def send(self, call: SliceCall, known: SliceSet = BLANK, **halves: Any) -> SliceReply:
        return await self.writer.send(SliceRequest(call, known, **halves), timeout_s=5)

    async def created(self) -> SliceSet:
        reply = await self.send(SliceCall.CREATE, spec=EMPTY)
        assert reply.found is not None
        return reply.found


async def test_spec_and_status_are_written_apart_and_fence_each_other() -> None:
    api = Api()
    await api.define()
    first = await api.created()
    offered = SliceSpec("gpu", "job", 1, 1, {"n": SliceOffer(AMOUNT, 1_800_000_000)})
    second = (await api.send(SliceCall.PUT_SPEC, first, spec=offered)).found
    assert second is not None
    assert (second.spec, second.status, second.malformed) == (offered, SliceStatus(), "")
    held = SliceStatus(1, 1, is_complete=True, held={"n": AMOUNT})
    assert (await api.send(SliceCall.PUT_STATUS, first, status=held)).answer is SliceAnswer.CONFLICT
    third = (await api.send(SliceCall.PUT_STATUS, second, status=held)).found
    assert third is not None
    assert (third.spec, third.status) == (offered, held)
    assert (await api.send(SliceCall.PUT_SPEC, second, spec=EMPTY)).answer is SliceAnswer.CONFLICT
    read = (await api.send(SliceCall.READ)).found
    assert read is not None
    assert (read.spec, read.status, read.version) == (offered, held, third.version)


async def test_second_creation_conflicts_and_missing_objects_are_not_found() -> None:
    api = Api()
    unserved = await api.send(SliceCall.CREATE, spec=EMPTY)
    assert unserved.answer is SliceAnswer.NOT_FOUND
    assert "deploy/crds/slicesets.yaml" in unserved.message
    await api.define()
    assert (await api.send(SliceCall.READ)).answer is SliceAnswer.NOT_FOUND
    await api.created()
    assert (await api.send(SliceCall.CREATE, spec=EMPTY)).answer is SliceAnswer.CONFLICT


async def test_deleted_object_remains_until_it_is_released() -> None:
    api = Api()
    await api.define()
    made = await api.created()
    await api.user("DELETE", f"/apis/multisched.io/v1alpha1/namespaces/{SYSTEM}/slicesets/{made.name}")
    known = (await api.send(SliceCall.READ)).found
    assert known is not None
    assert known.is_deleting
    released = SliceSpec("gpu", "job", 1, 1)
    assert (await api.send(SliceCall.RELEASE, known, spec=released)).answer is SliceAnswer.DONE
    assert (await api.send(SliceCall.READ)).answer is SliceAnswer.NOT_FOUND


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (a_refusal(403, "Forbidden"), SliceAnswer.REFUSED),
        (a_refusal(404, "NotFound"), SliceAnswer.NOT_FOUND),
        (a_refusal(408, "Timeout"), SliceAnswer.UNKNOWN),
        (a_refusal(409, "Conflict"), SliceAnswer.CONFLICT),
        (a_refusal(422, "Invalid"), SliceAnswer.REFUSED),
        (a_refusal(429, "TooManyRequests"), SliceAnswer.REFUSED),
        (a_refusal(500, "InternalError"), SliceAnswer.UNKNOWN),
        (answer(200, ["no object"]), SliceAnswer.UNKNOWN),
        (Response(502, b"<html>bad gateway</html>"), SliceAnswer.UNKNOWN),
        (ConnectFailedError("refused"), SliceAnswer.REFUSED),
        (AnswerLostError("reset"), SliceAnswer.UNKNOWN),
    ],
)
async def test_every_answer_has_one_meaning(reply: Answer, expected: SliceAnswer) -> None:
    transport = ScriptedTransport(respond=lambda _: reply)
    writer = ApiSliceWriter(transport, WriteLimiter(LoopClock()))
    request = SliceRequest(
        SliceCall.PUT_SPEC, SliceSet(name="gpu.job.0", namespace="s", uid="u", version=7), spec=EMPTY
    )
    assert (await writer.send(request, timeout_s=4.5)).answer is expected
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("PUT", "/apis/multisched.io/v1alpha1/namespaces/s/slicesets/gpu.job.0")
    assert asked.query == {"timeout": "4500ms"}
    assert asked.body["metadata"]["resourceVersion"] == "7"


async def test_loan_is_offered_claimed_recalled_and_returned() -> None:
    """Both state machines over the embedded cluster, each step as an administrator would read it there."""
    api = Api()
    await api.define()
    lender, borrower = LenderSlices("gpu", "job", SYSTEM, 1), BorrowerSlices("gpu", "job", SYSTEM)
    charged = dict[str, SliceAmount]()

    async def exchange() -> None:
        while requests := [*lender.next_requests(), *borrower.next_requests(charged)]:
            for request in requests:
                reply = await api.writer.send(request, timeout_s=5)
                (lender if request.spec is not None else borrower).answered(request, reply)
            if (found := (await api.send(SliceCall.READ)).found) is not None:
                lender.observe(found)
                borrower.observe(found)

    lender.begin_term([])
    borrower.begin_term([])
    borrower.settle()
    lender.offer("uid-1", "node-1", SliceOffer(AMOUNT), room=AMOUNT)
    await exchange()
    assert (lender.reserved("uid-1"), borrower.usable("uid-1")) == (AMOUNT, NOTHING)
    borrower.want("uid-1", AMOUNT)
    await exchange()
    assert (lender.held("uid-1"), borrower.usable("uid-1")) == (AMOUNT, AMOUNT)
    charged["uid-1"] = half = SliceAmount(2_000, 1 << 33, 10)
    lender.recall("uid-1", NOTHING, 1_700_000_000)
    await exchange()
    assert lender.reserved("uid-1") == AMOUNT
    borrower.return_kept()
    await exchange()
    (known,) = lender.known()
    assert known.spec is not None
    assert known.spec.offers["uid-1"] == SliceOffer(NOTHING, want_by_s=1_700_000_000)
    assert (lender.reserved("uid-1"), borrower.limit("uid-1", 0)) == (half, NOTHING)
    charged.clear()
    borrower.touch(("uid-1",))
    await exchange()
    assert (lender.reserved("uid-1"), borrower.usable("uid-1")) == (NOTHING, NOTHING)
    assert (lender.problems(), borrower.problems()) == ({}, {})
