"""Faulty connections: a sent request continues without its sender, and events are lost only where a process can detect that."""

from __future__ import annotations

import asyncio
import random

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.model.wire import AnswerLostError
from multisched.testing.builders import node_document, pod_document
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from tests.kit.checkers.api.api_checker import ApiChecker
from tests.kit.wire.faults import Faults
from tests.kit.wire.faulty_transport import FaultyTransport

PODS = "/api/v1/namespaces/default/pods"


class Watcher(ApiChecker):
    """An ApiChecker that ignores bindings in flight."""

    def on_bind_sent(self, sender: str, path: str, body: bytes) -> None: ...

    def on_bind_answered(self, sender: str, body: bytes, answer: object) -> None: ...

    def on_line_lost(self, sender: str, uid: str) -> None: ...

    def on_eviction_sent(self, sender: str, path: str) -> None: ...

    def on_claim_answered(self, sender: str, path: str, answer: object) -> None: ...

    def on_object_status_sent(self, sender: str, path: str) -> None: ...

    def on_pod_status_sent(self, sender: str, body: bytes) -> None: ...

    def on_lease_read(self, sender: str, path: str) -> None: ...


def _wire(loop: SimLoop) -> tuple[DirectTransport, FaultyTransport, Watcher, Faults]:
    server = ApiServer(SimClock(loop), rbac=False)
    faults = Faults(random.Random(1))
    for name in vars(faults):
        if isinstance(getattr(faults, name), float):
            setattr(faults, name, 0.0)
    watcher = Watcher(server, [])
    api = DirectTransport(server)
    return api, FaultyTransport(api, faults, "me", watcher), watcher, faults


async def _pod(api: DirectTransport, name: str) -> bytes:
    await api.request("POST", "/api/v1/nodes", body=orjson.dumps(node_document("a")))
    pod = await api.request("POST", PODS, body=orjson.dumps(pod_document(name)))
    uid = orjson.loads(pod.body)["metadata"]["uid"]
    return orjson.dumps({"metadata": {"name": name, "uid": uid}, "target": {"name": "a"}})


def test_binding_in_flight_arrives_after_its_sender_was_killed() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        api, transport, watcher, _ = _wire(loop)
        body = await _pod(api, "pod")
        sending = loop.create_task(transport.request("POST", f"{PODS}/pod/binding", body=body))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.sleep(1.0)
        assert watcher.history == [("default/pod", "a")]

    simulate(main(), loop)


def test_no_request_arrives_over_a_cut_connection() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        api, transport, watcher, _ = _wire(loop)
        body = await _pod(api, "pod")
        sending = loop.create_task(transport.request("POST", f"{PODS}/pod/binding", body=body))
        await asyncio.sleep(0)
        transport.cut()
        with pytest.raises(AnswerLostError):
            await sending
        with pytest.raises(AnswerLostError):
            await transport.request("GET", PODS)
        assert watcher.history == []

    simulate(main(), loop)


def test_watch_events_are_lost_only_for_the_chosen_pods() -> None:
    loop = SimLoop(seed=1)

    async def main() -> list[str]:
        api, transport, _, faults = _wire(loop)
        faults.undelivered_pods.add("secret")
        seen: list[str] = []

        async def watch() -> None:
            async with transport.stream("/api/v1/pods?watch=1&resourceVersion=1") as lines:
                async for line in lines:
                    name = orjson.loads(line)["object"]["metadata"]["name"]
                    seen.append(name)

        watching = loop.create_task(watch())
        await asyncio.sleep(1.0)
        await _pod(api, "secret")
        faults.line_lost = 1.0
        await _pod(api, "foreign-1")
        await _pod(api, "lost")
        await asyncio.sleep(0.5)
        faults.line_lost = 0.0
        await _pod(api, "heard")
        await asyncio.sleep(1.0)
        watching.cancel()
        assert faults.injected["lost line"] == 2
        return seen

    seen = simulate(main(), loop)

    assert not {"secret", "lost"} & set(seen)
    assert "foreign-1" in seen
    assert seen[-1] == "heard"
