"""ResourcePolicy with the whole program on an embedded API server: each case of `unit_cases`, and what needs its controllers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import Response, Transport
from tests.integration.job.unit_cases import APP, CASES, COST, PODS, World, two_pools, unit
from tests.integration.plugins.program_cluster import (
    HEAD,
    ProgramCluster,
    in_virtual_time,
    install_definitions,
    open_cluster,
    with_controllers,
)

LIMIT_S = 100.0
"""Far below the five minutes after which each waiting pod is tried again; above the time until a definition is noticed."""


class EmbeddedApi:
    """Implements `unit_cases.Api`."""

    def __init__(self, cluster: ProgramCluster) -> None:
        self._api = DirectTransport(cluster.server)

    async def send(
        self, method: str, path: str, document: Mapping[str, Any] | None = None, content_type: str = ""
    ) -> Any:
        body = None if document is None else orjson.dumps(document)
        answer = await self._api.request(method, path, body=body, content_type=content_type or "application/json")
        assert answer.status in (200, 201), f"{method} {path}: {answer.status} {answer.body!r}"
        return orjson.loads(answer.body)

    async def until(self, holds: Callable[[], Awaitable[str]]) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + LIMIT_S
        while why := await holds():
            assert loop.time() < deadline_s, why
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_case(case: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_cluster(HEAD, before=install_definitions) as cluster:
            await case(World(EmbeddedApi(cluster)))
            await cluster.at_rest()

    in_virtual_time(main)


DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def test_policies_are_noticed_when_their_definition_is_installed() -> None:
    async def main() -> None:
        async with open_cluster(HEAD) as cluster:
            world = World(EmbeddedApi(cluster))
            await two_pools(world, cpu=8)
            await world.pod("p", node="b")
            await install_definitions(cluster)
            await world.policy(unit("b", max=1), unit("a"))
            await cluster.until(lambda: len(cluster.program.cache.objects.all(ObjectKind.RESOURCE_POLICY)) == 1, 600.0)
            await world.pod("q")
            await world.on(q="a")  # p counts, although it was there before the policy
            await cluster.at_rest()

    in_virtual_time(main)


def test_policies_of_the_args_need_no_definition() -> None:
    policy = {"name": "web", "namespaces": ["default"], "selector": APP, "units": [unit("b", max=1), unit("a")]}
    enabled = [{"name": "ResourcePolicy", "args": {"policies": [policy]}}]
    domain = {"name": "job", "profile": {"plugins": {"enabled": enabled}}}

    async def main() -> None:
        async with open_cluster(HEAD + "domains: " + orjson.dumps([domain]).decode()) as cluster:
            world = World(EmbeddedApi(cluster))
            await two_pools(world, cpu=8)
            for name, node in (("p", "b"), ("q", "a")):
                await world.pod(name)
                await world.on(**{name: node})
            assert (await world.read("p"))["metadata"]["annotations"] == {"multisched.io/unit": "web#0"}
            await cluster.at_rest()

    in_virtual_time(main)


def test_scale_in_deletes_units_in_reverse_without_a_patch() -> None:
    """30 replicas over units of 10, 15 and the rest; 20, 10 and 5 remain. One pod has a cost of its own."""
    written: list[tuple[str, str]] = []

    class Recorded:
        """Records what the program writes."""

        def __init__(self, inner: Transport) -> None:
            self.stream = inner.stream
            self._inner = inner

        async def request(self, method: str, path: str, **rest: Any) -> Response:
            if method != "GET":
                written.append((method, path.partition("?")[0]))
            return await self._inner.request(method, path, **rest)

    async def main() -> None:
        async with (
            open_cluster(HEAD, before=install_definitions, behind=Recorded) as cluster,
            with_controllers(cluster),
        ):
            world = World(EmbeddedApi(cluster))
            for pool in "abc":
                await world.node(pool, pool, 100)
            await world.policy(unit("a", max=10), unit("b", max=15), unit("c"))
            container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": "1"}}}
            template = {
                "metadata": {"labels": APP},
                "spec": {
                    "schedulerName": "job-scheduler",
                    "terminationGracePeriodSeconds": 0,
                    "containers": [container],
                },
            }
            spec = {"replicas": 30, "selector": {"matchLabels": APP}, "template": template}
            await world.api.send("POST", DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})

            async def replicas(count: int) -> dict[str, dict[str, Any]]:
                found: dict[str, dict[str, Any]] = {}

                async def differs() -> str:
                    pods = (await world.api.send("GET", PODS))["items"]
                    found.clear()
                    found.update({one["metadata"]["name"]: one for one in pods})
                    bound = sum(bool(one["spec"].get("nodeName")) for one in pods)
                    return "" if len(pods) == bound == count else f"{len(pods)} pods, {bound} bound, not {count}"

                await world.api.until(differs)
                return dict(found)

            pods = await replicas(30)
            units = {name: one["spec"]["nodeName"] for name, one in pods.items()}
            assert Counter(units.values()) == {"a": 10, "b": 15, "c": 5}
            costs = {one["spec"]["nodeName"]: one["metadata"]["annotations"][COST] for one in pods.values()}
            assert costs == {"a": "100", "b": "99", "c": "98"}
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for name in pods:
                await world.change(f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [ready]}})
            kept = min(name for name, node in units.items() if node == "c")
            await world.change(f"{PODS}/{kept}", {"metadata": {"annotations": {COST: "7000"}}})
            for count, left in ((20, {"a": 10, "b": 9, "c": 1}), (10, {"a": 9, "c": 1}), (5, {"a": 4, "c": 1})):
                await world.change(f"{DEPLOYMENTS}/web", {"spec": {"replicas": count}})
                pods = await replicas(count)
                assert Counter(units[name] for name in pods) == left
            assert pods[kept]["metadata"]["annotations"][COST] == "7000"
            assert [one for one in written if one[0] == "PATCH" and "/pods/web-" in one[1]] == []
            assert sum(one[1].endswith("/binding") for one in written) == 30
            await cluster.at_rest()

    in_virtual_time(main)
