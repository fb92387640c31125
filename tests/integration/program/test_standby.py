"""Two replicas that lead a domain each: whichever is asked, the leader's answer is told; when one dies the other answers itself."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from multisched.testing.builders import GPU, container, node_document, pod_document
from tests.integration.program.command import Command, asked, multisched
from tests.integration.program.faulty_api import FaultyApi
from tests.integration.program.test_bad_answers import CONFIGURATION, url_of

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
REFUSED = "0/1 nodes are available: 1 Insufficient cpu."
LED_BY = {"forecast": "first", "gpu": "second"}
LIMIT_S = 120.0


class Steered(FaultyApi):
    """Whoever should not lead a domain does not get its lease, until `is_open`."""

    is_open = False

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if "/leases" in request.path and request.method in ("POST", "PUT") and not self.is_open:
            lease = json.loads(await request.read())
            domain = lease["metadata"]["name"].removeprefix("multisched-")
            if lease["spec"]["holderIdentity"] not in ("", LED_BY[domain]):
                return web.json_response({"kind": "Status", "reason": "Conflict", "code": 409}, status=409)
        return await super()._answer(request)

    async def wait_led(self, holders: dict[str, str], urls: dict[str, str]) -> None:
        """Until every domain is led by its holder, whose Lease says where it answers."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                leases = (await self.get(LEASES))["items"]
                found = {
                    lease["metadata"]["name"].removeprefix("multisched-"): (
                        lease["spec"].get("holderIdentity"),
                        lease["metadata"].get("annotations", {}).get("multisched.io/address"),
                    )
                    for lease in leases
                }
                if found == {domain: (holder, urls[holder]) for domain, holder in holders.items()}:
                    return
                await asyncio.sleep(0.1)


async def explained(server: str, pod: str) -> dict[str, Any]:
    """Once the domain decides, and has decided about the pod."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            ended = await asked("explain", "pod", pod, "-o", "json", "--server", server)
            view: dict[str, Any] = json.loads(ended.out) if ended.code == 0 else {}
            if view.get("state") == "unschedulable":
                return view
            await asyncio.sleep(0.1)


async def problem(server: str, domain: str) -> dict[str, Any]:
    async with aiohttp.request("GET", f"{server}/api/v1/queue?domain={domain}") as answer:
        assert (answer.status, answer.content_type) == (421, "application/problem+json")
        found: dict[str, Any] = await answer.json()
        return found


async def test_each_replica_answers_as_the_leader_and_the_next_leader_itself(tmp_path: Path) -> None:
    kubeconfig, config = tmp_path / "kubeconfig", tmp_path / "config.yaml"
    domains = {"domains": [{"name": "forecast"}, {"name": "gpu"}]}
    # Long enough for a busy machine: who cannot renew in time ends.
    lease = {"duration": "8s", "renewDeadline": "6s", "retryPeriod": "500ms", "perDomain": True}
    config.write_text(yaml.safe_dump({**CONFIGURATION, **domains, "lease": lease}))

    def run(identity: str) -> Any:
        arguments = ("--kubeconfig", str(kubeconfig), "--config", str(config), "--identity", identity)
        return multisched("run", *arguments)

    async with Steered.start() as api:
        assert isinstance(api, Steered)
        api.write_kubeconfig(kubeconfig)
        await api.create("/api/v1/nodes", node_document("work", cpu="1"))
        await api.create("/api/v1/nodes", node_document("gpu", cpu="1", extra={GPU: 2}))
        for domain in LED_BY:
            pod = pod_document(f"large-{domain}", container("c", cpu="1000"), schedulerName=f"{domain}-scheduler")
            await api.create("/api/v1/namespaces/default/pods", pod)
        first: Command
        async with run("first") as first, run("second") as second:
            urls = {"first": await url_of(first), "second": await url_of(second)}
            await api.wait_led(LED_BY, urls)

            for domain, leader in LED_BY.items():
                for server in urls.values():
                    view = await explained(server, f"large-{domain}")
                    assert view["attempts"][0]["message"].startswith(REFUSED), "as only the leader knows"
                other = urls["first" if leader == "second" else "second"]
                found = await problem(other, domain)
                assert (found["domain"], found["leader"]["identity"]) == (domain, leader)
                assert found["leader"]["address"] == urls[leader]
                told = await asked("explain", "pod", f"large-{domain}", "--server", other)
                assert (told.code, REFUSED in told.out) == (0, True), told.err

            queues = [await asked("queue", "-o", "json", "--server", url) for url in urls.values()]
            for queue in queues:
                assert queue.code == 0, queue.err
                view = json.loads(queue.out)
                assert [(one["domain"], one["isLeading"]) for one in view["domains"]] == [
                    ("forecast", True),
                    ("gpu", True),
                ]
                assert {pod["name"] for pod in view["pods"]} == {"large-forecast", "large-gpu"}
                assert all(pod["message"].startswith(REFUSED) for pod in view["pods"])

            assert (await first.end(signal.SIGKILL)).code == -signal.SIGKILL
            gone = await asked("queue", "--server", urls["second"], "--domain", "forecast")
            assert (gone.code > 0, gone.out) == (True, ""), "nobody else may take the lease yet"
            is_named = (
                "domain forecast is led by first since " in gone.err
                and "give a reachable address with --server" in gone.err
            )
            assert is_named or "no replica leads domain forecast at the moment" in gone.err, gone.err
            api.is_open = True
            await api.wait_led({"forecast": "second", "gpu": "second"}, urls)
            view = await explained(urls["second"], "large-forecast")
            assert view["attempts"][0]["message"].startswith(REFUSED)
            assert (await second.end()).code == 0
