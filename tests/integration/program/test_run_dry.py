"""`multisched run --dry-run`: it decides as ever, says what it would bind, and the API server hears of nothing but reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from multisched.cluster.embedded import EmbeddedCluster
from multisched.testing.builders import node_document
from tests.integration.program.command import Command, multisched
from tests.integration.program.faulty_api import Fault, FaultyApi
from tests.integration.program.test_bad_answers import forecast_pod
from tests.integration.program.test_refusals import configuration

PODS = 5


class Recording(FaultyApi):
    """Keeps the methods that it was asked with."""

    def __init__(self, cluster: EmbeddedCluster, fault: Fault | None) -> None:
        super().__init__(cluster, fault)
        self.methods: set[str] = set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.methods.add(request.method)
        return await super()._answer(request)


def decisions(command: Command) -> Iterator[dict[str, Any]]:
    for line in command.err:
        document = json.loads(line)
        if document["message"] == "would bind":
            yield document


async def test_dry_run_logs_binds_and_only_reads(tmp_path: Path) -> None:
    async with Recording.start() as api:
        assert isinstance(api, Recording)
        kubeconfig = tmp_path / "kubeconfig"
        api.write_kubeconfig(kubeconfig)
        await api.create("/api/v1/nodes", node_document("n1", cpu="4"))
        for number in range(PODS):
            await api.create("/api/v1/namespaces/default/pods", forecast_pod(f"p{number}", cpu="1"))
        arguments = ("--kubeconfig", str(kubeconfig), "--config", configuration(tmp_path), "--dry-run")
        async with multisched("run", *arguments) as command:
            # debug lines: the condition of the one for which there is no room would be written last
            await command.has_printed("would write")
            while len({one["pod"] for one in decisions(command)}) < PODS - 1:
                await command.has_printed("would bind", after=len(command.err))
            ended = await command.end()
        pods = [await api.get(f"/api/v1/namespaces/default/pods/p{number}") for number in range(PODS)]

        assert ended.code == 0
        assert api.methods == {"GET"}
        assert [pod["spec"].get("nodeName") for pod in pods] == [None] * PODS
        bound = list(decisions(command))
        assert {one["node"] for one in bound} == {"n1"}
        assert len(bound) == len({one["pod"] for one in bound}) == PODS - 1, "four fit, each is said once"
