"""A running demo for the tests of the page, configured so that every view has data: a tide, units, loans, a forecast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from multisched.client.transport import connect
from multisched.demo.configuration import HISTORY_DAYS, TIDE, sample_history
from multisched.testing.builders import container, pod_document
from tests.integration.program.command import multisched

NODES: Final = 60
SETTLED_S: Final = 60.0
LOOK_S: Final = 0.2
HOSTILE: Final = "<img src=x onerror=window.hurt=1>"
"""Markup that a page must show as text."""
BIDI: Final = "\u202egnp.exe"

UNITS: Final = {
    "name": "ServerlessUnits",
    "args": {
        "units": [
            {
                "name": "eci",
                "nodeSelector": {"type": "virtual-kubelet"},
                "rate": {"burst": 100, "perSecond": 20},
                "quota": {"pods": 1000},
                "price": {"cpu": 0.05, "memory": 0.006},
            }
        ]
    },
}


def configuration() -> dict[str, Any]:
    """Returns the configuration of the demo, with plugins for all views."""
    forecast = {"name": "PeakForecast", "args": {"files": [str(sample_history())], "windowDays": HISTORY_DAYS}}
    loan = {"from": "gpu", "resources": ["cpu", "memory"], "headroom": {"cpu": "4"}, "return": {"notice": "1m"}}
    return {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "domains": [
            {"name": "forecast", "profile": {"plugins": {"enabled": [forecast]}}},
            {"name": "gpu", "profile": {"plugins": {"enabled": [TIDE]}}},
            {"name": "job", "loans": [loan], "profile": {"plugins": {"enabled": [UNITS]}}},
        ],
    }


class Demo:
    """A running demo."""

    def __init__(self, url: str, kubeconfig: Path) -> None:
        self.url = url
        self._kubeconfig = kubeconfig

    async def read(self, path: str) -> Any:
        """Returns a document of the API."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/api/v1/{path}") as answer:
            assert answer.status == 200, await answer.text()
            return orjson.loads(await answer.read())

    async def create(self, path: str, document: Mapping[str, Any]) -> None:
        """Creates an object in the cluster."""
        async with connect(self._kubeconfig, None) as transport:
            answer = await transport.request("POST", path, body=orjson.dumps(document))
            assert answer.status == 201, answer.body

    async def pod(self, name: str, *, cpu: str, **fields: Any) -> None:
        """Creates a pod of the forecast domain."""
        document = pod_document(name, container(cpu=cpu, image="app:v1"), schedulerName="forecast-scheduler", **fields)
        await self.create("/api/v1/namespaces/default/pods", document)

    async def settled(self) -> None:
        """Waits until the workload is bound: two pods of a full quota and one that is too big keep waiting."""
        async with asyncio.timeout(SETTLED_S):
            while True:
                domains = {one["domain"]: one for one in (await self.read("overview"))["domains"]}
                if not all(one["isLeading"] for one in domains.values()):
                    await asyncio.sleep(LOOK_S)
                    continue
                gangs = (await self.read("gangs/now?domain=gpu"))["gangs"]
                waiting = sum(sum(one["counts"].values()) for one in domains.values())
                if domains["job"]["bound"] > 100 and waiting <= 5 and gangs and gangs[0]["hasStarted"]:
                    return
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def running_demo(folder: Path) -> AsyncIterator[Demo]:
    """Starts the demo at any free port, and waits until its workload is bound."""
    file, kubeconfig = folder / "page.yaml", folder / "kubeconfig"
    file.write_bytes(orjson.dumps(configuration()))  # JSON is YAML
    environment = {"TMPDIR": str(folder), "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "KUBECONFIG": ""}
    arguments = ("--nodes", str(NODES), "--port", "0", "--config", str(file), "--kubeconfig", str(kubeconfig))
    async with multisched("demo", *arguments, environment=environment) as command:
        line = await command.has_printed("MULTISCHED_SERVER=")
        demo = Demo(line.partition("=")[2].strip(), kubeconfig)
        await demo.settled()
        yield demo
