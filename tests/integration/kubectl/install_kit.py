"""A cluster of a test's own, on which multisched is installed with kubectl and helm, and pods of users on it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from tests.integration.conftest import MULTISCHED, START_LIMIT_S
from tests.real.admin import PODS, Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.program import Program
from tests.real.rendering import NAMESPACE, run, tools

NODES: Final = 6
BATCH: Final = 10
BOUND_LIMIT_S: Final = 120
SHOP: Final = "default"


@dataclass
class Cluster:
    """A cluster of the test's own."""

    admin: Admin
    kubectl: Path
    kubeconfig: Path
    folder: Path
    plane: ControlPlane | None = None
    """The real control plane, whose audit log counts bindings; None on the embedded cluster."""
    created: dict[str, str] = field(default_factory=dict)
    """Name -> uid, of pods."""

    async def __call__(self, *arguments: str, document: Any = None) -> str:
        """What kubectl printed."""
        text = document if isinstance(document, str) else json.dumps(document)
        command: list[str | Path] = [self.kubectl, "--kubeconfig", self.kubeconfig, *arguments]
        return await anyio.to_thread.run_sync(lambda: run(command, text, {"HOME": str(self.folder)}))

    async def helm(self, *arguments: str | Path) -> str:
        """What helm printed; it works in the scheduler's namespace."""
        command = [tools() / "helm", "--kubeconfig", self.kubeconfig, "--namespace", NAMESPACE, *arguments]
        return await anyio.to_thread.run_sync(lambda: run(command, "", {"HOME": str(self.folder)}))

    async def pods(self) -> list[dict[str, Any]]:
        """Of the users."""
        return await self.admin.items(PODS)

    async def create_pods(self, prefix: str, count: int, zone: str = "") -> None:
        """In batches, as they come in."""
        for start in range(0, count, BATCH):
            items = [pod(f"{prefix}-{number}", zone) for number in range(start, min(start + BATCH, count))]
            made = await self(
                "create",
                "-n",
                SHOP,
                "-o",
                "json",
                "-f",
                "-",
                document={"kind": "List", "apiVersion": "v1", "items": items},
            )
            documents = [json.loads(text) for text in re.split(r"(?<=\n})\n(?={)", made)]
            stored = [item for one in documents for item in one.get("items", [one])]
            self.created |= {item["metadata"]["name"]: item["metadata"]["uid"] for item in stored}

    async def create_nodes(self, names: Iterable[str], zone: str = "") -> None:
        """With room for all pods."""
        resources = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        for name in names:
            labels = {"kubernetes.io/hostname": name} | ({"zone": zone} if zone else {})
            status = {"capacity": resources, "allocatable": resources}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
            await self("create", "-f", "-", document=node)

    async def wait_bound(self, count: int) -> None:
        async def are_bound() -> bool:
            return sum("nodeName" in pod["spec"] for pod in await self.pods()) >= count

        await until(are_bound, BOUND_LIMIT_S)


def pod(name: str, zone: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulerName": "forecast-scheduler",
        "containers": [
            {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
        ],
    }
    if zone:
        spec["nodeSelector"] = {"zone": zone}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def embedded(kubectl: Path, folder: Path) -> AsyncIterator[Cluster]:
    kubeconfig = folder / "kubeconfig"
    program = await Program.start(
        "multisched-cluster", [str(MULTISCHED), "cluster", "--kubeconfig", str(kubeconfig)], folder / "cluster.log"
    )
    try:

        async def is_there() -> bool:
            program.check_running()
            return await anyio.Path(kubeconfig).exists()

        await until(is_there, START_LIMIT_S)
        async with Admin.by(kubeconfig) as admin:
            yield Cluster(admin, kubectl, kubeconfig, folder)
    finally:
        with anyio.CancelScope(shield=True):
            await program.kill()


@asynccontextmanager
async def cluster_of(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Cluster]:
    """The chosen kind, with nodes."""
    kubectl = request.getfixturevalue("kubectl")
    if request.config.getoption("--cluster") == "embedded":
        opened: Any = embedded(kubectl, folder)
    else:
        opened = real(kubectl, folder)
    async with opened as cluster:
        await cluster.create_nodes([f"node-{number}" for number in range(NODES)])
        yield cluster


@asynccontextmanager
async def real(kubectl: Path, folder: Path) -> AsyncIterator[Cluster]:
    async with ControlPlane.start(folder, audit=True) as plane, Admin.open(plane) as admin:
        yield Cluster(admin, kubectl, plane.kubeconfig, folder, plane)
