"""Policies of a simulated cluster: refused requests, changes that end a refusal, and allowed attempts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.model.wire import MERGE_PATCH, Response
from multisched.queueing.quarantine import EQUAL_REFUSALS_MAX
from multisched.testing.builders import node_document, pod_document
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.processes.replicas import Replicas
from tests.kit.settings.changed_files import ChangedFile
from tests.kit.settings.setting import drawn, rng_of, text_of
from tests.kit.wire.faults import Faults
from tests.kit.world.policies import COMPLIANT, NEVER, OWNER, POLICY, TENANT, TRUSTED, Policies

NAMESPACE = "/api/v1/namespaces/default"
REFUSED = Response(422, b'{"message": "policy denied the binding to node-1"}')


class PolicyCluster:
    """A cluster with one node, and a pod under a policy."""

    def __init__(self, loop: SimLoop) -> None:
        server = ApiServer(SimClock(loop), rbac=False)
        self.policies = Policies(server, seed=0)
        self._api = DirectTransport(server)

    async def build(self, policy: str) -> None:
        await self.send("POST", "/api/v1/nodes", node_document("node-1"))
        await self.send("POST", f"{NAMESPACE}/pods", pod_document("pod", labels={POLICY: policy}))

    async def send(self, method: str, path: str, body: Mapping[str, Any]) -> Response:
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        return await self._api.request(method, path, body=orjson.dumps(body), content_type=kind)

    async def label(self, path: str, label: str, value: str) -> None:
        assert (await self.send("PATCH", path, {"metadata": {"labels": {label: value}}})).status == 200

    async def bind(self) -> int:
        binding = {"metadata": {"name": "pod"}, "target": {"name": "node-1"}}
        return (await self.send("POST", f"{NAMESPACE}/pods/pod/binding", binding)).status


@pytest.mark.parametrize(
    ("policy", "path", "label", "value", "status"),
    [
        (OWNER, f"{NAMESPACE}/pods/pod", POLICY, COMPLIANT, 201),
        (OWNER, NAMESPACE, TRUSTED, "yes", 422),
        (TENANT, NAMESPACE, TRUSTED, "yes", 201),
        (TENANT, f"{NAMESPACE}/pods/pod", "other", "yes", 422),
        (NEVER, NAMESPACE, TRUSTED, "yes", 422),
    ],
)
def test_policy_ends_only_with_its_own_change(policy: str, path: str, label: str, value: str, status: int) -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        cluster = PolicyCluster(loop)
        await cluster.build(policy)
        assert await cluster.bind() == 422
        await cluster.label(path, label, value)
        assert await cluster.bind() == status

    simulate(main(), loop)


def _answer_and_change(answers: list[Response | None], changes: int = 0) -> str:
    loop = SimLoop(seed=1)

    async def main() -> str:
        policies = Policies(ApiServer(SimClock(loop), rbac=False), seed=0)
        for _ in range(changes):
            policies.pod_changed("uid")
        await asyncio.sleep(0)
        return [policies.answered("me", "uid", answer) for answer in answers][-1]

    return simulate(main(), loop)


@pytest.mark.parametrize("again", [None, Response(429, b"{}"), Response(503, b"{}"), Response(0, b"")])
def test_attempt_after_the_last_allowed_one_is_a_fault(again: Response | None) -> None:
    enough: list[Response | None] = [REFUSED] * EQUAL_REFUSALS_MAX

    assert _answer_and_change(enough) == ""
    assert "not set aside" in _answer_and_change([*enough, REFUSED])
    assert _answer_and_change([*enough, REFUSED], changes=1) == ""
    assert _answer_and_change([*enough, again]) == ""


def test_different_message_restarts_the_count_of_refusals() -> None:
    others = Response(422, b'{"message": "not now"}')

    assert _answer_and_change([*[REFUSED] * EQUAL_REFUSALS_MAX, others, *[REFUSED] * EQUAL_REFUSALS_MAX]) == ""


def test_refusal_after_a_lost_response_is_not_counted() -> None:
    assert _answer_and_change([*[REFUSED] * EQUAL_REFUSALS_MAX, None, REFUSED]) == ""


def test_only_a_valid_configuration_change_allows_another_attempt() -> None:
    """A quarantined pod is tried once by each profile that comes into force."""
    loop, rng, broken = SimLoop(seed=1), random.Random(0), list[str]()
    server, setting = ApiServer(SimClock(loop), rbac=False), drawn(0, rng_of(0))
    bind_checker = BindChecker(server, setting.configuration, loop.time, broken, Policies(server, seed=0))
    replicas = Replicas(setting, 0, loop, rng, DirectTransport(server), Faults(rng), bind_checker)

    def refuse(times: int) -> list[str]:
        return [bind_checker.policies.answered("me", "uid", REFUSED) for _ in range(times)]

    assert not any(refuse(EQUAL_REFUSALS_MAX))
    replicas.change_file(ChangedFile(text_of(setting.document), is_good=True))
    assert not any(refuse(1))
    replicas.change_file(ChangedFile("a mistake", is_good=False))
    assert all(refuse(1))
    loop.close()
