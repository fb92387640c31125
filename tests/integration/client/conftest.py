"""A cluster for the client, with the two faults that only a server or what lies before it can make.

`scene` is an embedded cluster reached in process, the same over TLS, or with `--cluster=real` the session's real control
plane behind a relay, since a real API server does not drop watches on demand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import orjson
import pytest

from multisched.client.transport import connect
from multisched.cluster.embedded import EmbeddedCluster
from multisched.model.wire import Transport
from tests.integration.client.relay import Relay
from tests.real.control_plane import ControlPlane

NAMESPACES = "/api/v1/namespaces"
EMBEDDED, EMBEDDED_TLS, REAL = "in process", "over TLS", "real"


class WallClock:
    """Real time: sockets are real here."""

    def monotonic(self) -> float:
        """Seconds."""
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """UTC."""
        return datetime.now(UTC)


class Faults(Protocol):
    """What goes wrong between a client and its server."""

    def drop_watches(self) -> None:
        """Cuts every open watch; the next one is served."""

    def lost_history(self) -> AbstractAsyncContextManager[None]:
        """What happens inside is not seen by watches, and afterwards no watch can resume where it was."""


class EmbeddedFaults:
    """Made by the embedded server itself."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster

    def drop_watches(self) -> None:
        self._cluster.server.drop_watches()

    @asynccontextmanager
    async def lost_history(self) -> AsyncIterator[None]:
        self._cluster.server.expire_watches()
        yield


class RealFaults:
    """Made by a relay before the API server, and by the server's death: the next one knows nothing of the past."""

    def __init__(self, relay: Relay, plane: ControlPlane) -> None:
        self._relay = relay
        self._plane = plane

    def drop_watches(self) -> None:
        self._relay.cut()

    @asynccontextmanager
    async def lost_history(self) -> AsyncIterator[None]:
        await self._relay.close()
        yield
        await self._plane.kill_api_server()
        await self._plane.restart_api_server()
        await self._relay.open()


@dataclass(frozen=True, slots=True)
class Scene:
    """A namespace of its own on a running cluster."""

    transport: Transport
    """For the test's own requests: never at fault."""
    watched: Transport
    """For the part under test."""
    faults: Faults
    namespace: str

    @property
    def pods(self) -> str:
        """Path of the namespace's pods."""
        return f"{NAMESPACES}/{self.namespace}/pods"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of this folder that takes a scene runs once per way to reach the chosen cluster."""
    if "server" in metafunc.fixturenames:
        is_real = metafunc.config.getoption("--cluster") == "real"
        metafunc.parametrize("server", [REAL] if is_real else [EMBEDDED, EMBEDDED_TLS])


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> ControlPlane | None:
    """The session's real control plane, if that is the cluster under test."""
    if request.config.getoption("--cluster") == "embedded":
        return None
    found: ControlPlane = request.getfixturevalue("control_plane")
    return found


@pytest.fixture
async def scene(server: str, plane: ControlPlane | None, tmp_path: Path) -> AsyncIterator[Scene]:
    """A cluster to play on."""
    async with _embedded(server, tmp_path) if plane is None else _real(plane, tmp_path) as scene:
        yield scene


@asynccontextmanager
async def _embedded(server: str, folder: Path) -> AsyncIterator[Scene]:
    async with EmbeddedCluster.start(WallClock()) as cluster:
        faults = EmbeddedFaults(cluster)
        if server == EMBEDDED:
            transport = cluster.transport()
            yield Scene(transport, transport, faults, "default")
            return
        kubeconfig = folder / "kubeconfig"
        cluster.write_kubeconfig(kubeconfig)
        async with connect(kubeconfig) as connected:
            yield Scene(connected, connected, faults, "default")


@asynccontextmanager
async def _real(plane: ControlPlane, folder: Path) -> AsyncIterator[Scene]:
    async with (
        Relay.start(plane.ports.api_server) as relay,
        connect(plane.kubeconfig) as transport,
        connect(_through(relay, plane, folder)) as watched,
    ):
        body = {"metadata": {"generateName": "client-test-"}}
        answer = await transport.request("POST", NAMESPACES, body=orjson.dumps(body))
        namespace = str(orjson.loads(answer.body)["metadata"]["name"])
        yield Scene(transport, watched, RealFaults(relay, plane), namespace)
        await transport.request("DELETE", f"{NAMESPACES}/{namespace}")


def _through(relay: Relay, plane: ControlPlane, folder: Path) -> Path:
    """The administrator's kubeconfig, but by way of the relay."""
    document = json.loads(plane.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
    path = folder / "relayed.kubeconfig"
    path.write_text(json.dumps(document))
    return path
