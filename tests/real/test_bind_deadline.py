"""The deadline that every bind carries (`?timeout=`) on the real API server: a bind that comes too late does not happen.

A new leader waits this deadline out before its first bind (I9); here is the proof that this is enough. A webhook holds
the binding back inside the API server, after the request was accepted and before it is stored.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from msgspec.structs import replace

from multisched.client.binder import ApiBinder
from multisched.client.limits import WriteLimiter
from multisched.client.transport import connect
from multisched.framework.ports import BindAnswer, BindRequest
from tests.real import burst
from tests.real.admin import PODS, Admin
from tests.real.control_plane import LOOPBACK, ControlPlane

pytestmark = pytest.mark.timeout(300)

DEADLINE_S = 1.0
TRIES = 400
"""Bindings until the API server has surely learned of its webhook."""
WEBHOOK_LIMIT_S = 20


class WallClock:
    """Real time: the API server's is."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return datetime.now(UTC)


@dataclass(slots=True)
class Gate:
    """Holds every binding until it is opened, then lets them pass."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the API server hangs up on a binding that is held."""

    async def review(self, request: web.Request) -> web.Response:
        """The admission webhook."""
        uid = orjson.loads(await request.read())["request"]["uid"]
        self.asked += 1
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        answer = {"uid": uid, "allowed": True}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})


@asynccontextmanager
async def gated(plane: ControlPlane, admin: Admin) -> AsyncIterator[Gate]:
    """Every binding passes the gate while the block runs."""
    gate, application = Gate(), web.Application()
    application.router.add_post("/", gate.review)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(plane.certificates.serving, plane.certificates.serving_key)
    await web.TCPSite(runner, LOOPBACK, 0, ssl_context=tls).start()
    try:
        await admin.request(
            "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", _webhook(plane, runner)
        )
        yield gate
    finally:
        await runner.cleanup()


def _webhook(plane: ControlPlane, runner: web.AppRunner) -> dict[str, object]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    webhook = {
        "name": "gate.test.multisched.io",
        "rules": [rule],
        "clientConfig": {
            "url": f"https://{LOOPBACK}:{runner.addresses[0][1]}/",
            "caBundle": base64.b64encode(plane.certificates.ca.read_bytes()).decode(),
        },
        "timeoutSeconds": WEBHOOK_LIMIT_S,
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": "gate"}, "webhooks": [webhook]}


async def test_late_bind_is_never_stored(tmp_path: Path) -> None:
    async with (
        ControlPlane.start(tmp_path, controller_manager=False) as plane,
        Admin.open(plane) as admin,
        connect(plane.kubeconfig) as transport,
        gated(plane, admin) as gate,
    ):
        binder = ApiBinder(transport, WriteLimiter(WallClock()))
        await admin.create_all(burst.pods("pod", TRIES))
        pods = await admin.items(PODS)
        late = await first_held(binder, gate, (bind_of(pod) for pod in pods))
        async with asyncio.timeout(WEBHOOK_LIMIT_S / 2):
            await gate.given_up.wait()
        gate.opened.set()

        truth = await binder.read(late.namespace, late.name, timeout_s=5)
        assert truth is not None
        assert truth.node == ""
        assert (await binder.post(replace(late, node="node-b"), timeout_s=5)).answer is BindAnswer.CREATED
        truth = await binder.read(late.namespace, late.name, timeout_s=5)
        assert truth is not None
        assert truth.node == "node-b"


async def first_held(binder: ApiBinder, gate: Gate, binds: Iterator[BindRequest]) -> BindRequest:
    """The first bind that the gate held past its deadline; those before it were too early for the API server to know it."""
    for bind in binds:
        reply = await binder.post(bind, timeout_s=DEADLINE_S)
        if gate.asked:
            assert reply.answer is BindAnswer.UNKNOWN
            return bind
        assert reply.answer is BindAnswer.CREATED
    raise AssertionError(f"none of {TRIES} bindings met the webhook")


def bind_of(pod: Mapping[str, Any]) -> BindRequest:
    return BindRequest("default", pod["metadata"]["name"], pod["metadata"]["uid"], "node-a")
