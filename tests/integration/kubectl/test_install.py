"""multisched as an operator installs, upgrades and rolls it back, with kubectl and with helm, on the chosen cluster.

Processes stand for the pods of its Deployment (`tests/real/pod_processes.py`); all else is what the documents say. The old
program and its manifests are those of the release before (`tests/real/releases.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.integration.conftest import MULTISCHED, START_LIMIT_S
from tests.real.admin import until
from tests.real.audit_log import bound, calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.pod_processes import PodProcesses
from tests.real.program import Program
from tests.real.releases import extract, release_before
from tests.real.rendering import BASE, CHART, NAMESPACE, run, tools

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[3]
DEPLOYMENT = "deployment/multisched"
NODES = 6
AT_FIRST, WAITING, MEANWHILE = 30, 12, 80
"""Pods that are there before the upgrade, those that no node takes until the end, and those that come while it goes on."""
BATCH = 10
ROLLOUT = ("rollout", "status", DEPLOYMENT, "--timeout=120s")
BOUND_LIMIT_S = 120
SHOP = "default"


@dataclass
class Cluster:
    """A cluster of the test's own."""

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
        found: list[dict[str, Any]] = json.loads(await self("get", "pods", "-n", SHOP, "-o", "json"))["items"]
        return found

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
        yield Cluster(kubectl, kubeconfig, folder)
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
    async with ControlPlane.start(folder, audit=True) as plane:
        yield Cluster(kubectl, plane.kubeconfig, folder, plane)


async def rolled_with_pods_waiting(
    cluster: Cluster,
    processes: PodProcesses,
    upgrade: Callable[[], Awaitable[None]],
    roll_back: Callable[[], Awaitable[None]],
) -> None:
    """Both, while pods come in and others wait; then nothing is lost, and each pod was bound once."""
    old = set(processes.running)
    await cluster.create_pods("first", AT_FIRST)
    await cluster.create_pods("waiting", WAITING, zone="late")
    await cluster.wait_bound(AT_FIRST)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.create_pods, "meanwhile", MEANWHILE)
        await upgrade()
        await processes.wait_without(old)
        new = set(processes.running)
        await roll_back()
        await processes.wait_without(old | new)
        assert len(processes.running) == len(new) == len(old)
    await cluster.wait_bound(AT_FIRST + MEANWHILE)
    assert sum("nodeName" in pod["spec"] for pod in await cluster.pods()) == AT_FIRST + MEANWHILE
    await cluster.create_nodes(["late"], zone="late")
    await cluster.wait_bound(len(cluster.created))

    assert len(cluster.created) == AT_FIRST + WAITING + MEANWHILE
    found = {pod["metadata"]["name"]: pod for pod in await cluster.pods()}
    assert {name: pod["metadata"]["uid"] for name, pod in found.items()} == cluster.created
    assert {name for name, pod in found.items() if pod["spec"]["nodeName"] == "late"} >= {
        f"waiting-{number}" for number in range(WAITING)
    }
    assert {code for _scheduler, code in processes.ended.values()} == {0}
    assert [line for one in processes.schedulers for line in (*one.denials(), *one.failures())] == []
    if cluster.plane is not None and cluster.plane.audit_log is not None:
        seen = calls(cluster.plane.audit_log)
        assert bound(seen) == dict.fromkeys(cluster.created.values(), 1)
        assert denied(seen, f"system:serviceaccount:{NAMESPACE}:multisched") == []


async def test_a_kustomization_is_upgraded_and_rolled_back_with_pods_waiting(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    before = extract(release_before(), tmp_path / "before")
    trees = {"registry.example.com/multisched:old": before, "registry.example.com/multisched:new": ROOT}

    async with cluster_of(request, tmp_path) as cluster:

        async def apply(folder: Path, tag: str) -> None:
            image = f"image: registry.example.com/multisched:{tag}"
            rendered = re.sub(r"image: multisched:.*", image, await cluster("kustomize", str(folder)))
            await cluster("apply", "-f", "-", document=rendered)
            await cluster("-n", NAMESPACE, *ROLLOUT)

        async def undo() -> None:
            await cluster("-n", NAMESPACE, "rollout", "undo", DEPLOYMENT)
            await cluster("-n", NAMESPACE, *ROLLOUT)

        async with PodProcesses.watching(cluster.kubectl, cluster.kubeconfig, NAMESPACE, tmp_path, trees) as processes:
            await apply(before / "deploy/base", "old")
            assert len(processes.running) == 2
            await rolled_with_pods_waiting(cluster, processes, lambda: apply(BASE, "new"), undo)


async def test_a_release_of_the_chart_is_upgraded_and_rolled_back_with_pods_waiting(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    before = extract(release_before(), tmp_path / "before")
    trees = {"multisched:old": before, "multisched:new": ROOT}
    old_chart = before / CHART.relative_to(ROOT)
    if not old_chart.exists():
        old_chart = CHART  # the first release that has a chart

    async with cluster_of(request, tmp_path) as cluster:
        # helm waits for the address of a Service, and the embedded cluster gives none.
        wait = ("--wait", "--timeout=120s") if cluster.plane is not None else ()

        async def install(chart: Path, tag: str, *flags: str) -> None:
            values = ("--set", f"image.tag={tag}", *flags)
            await cluster.helm("upgrade", "--install", "multisched", chart, "--create-namespace", *values, *wait)
            await cluster("-n", NAMESPACE, *ROLLOUT)

        async def upgrade() -> None:
            await install(CHART, "new", "--set", "config.verify.every=10m")

        async def roll_back() -> None:
            await cluster.helm("rollback", "multisched", *wait)
            await cluster("-n", NAMESPACE, *ROLLOUT)

        async with PodProcesses.watching(cluster.kubectl, cluster.kubeconfig, NAMESPACE, tmp_path, trees) as processes:
            await install(old_chart, "old")
            assert len(processes.running) == 2
            await rolled_with_pods_waiting(cluster, processes, upgrade, roll_back)
            history = json.loads(await cluster.helm("history", "multisched", "-o", "json"))
            assert [one["status"] for one in history] == ["superseded", "superseded", "deployed"]
            await cluster.helm("uninstall", "multisched", "--wait", "--timeout=120s")

            async def is_gone() -> bool:
                return not processes.running

            await until(is_gone, BOUND_LIMIT_S)
            left = await cluster("get", "crd,clusterrole,validatingadmissionpolicy", "-o", "name")
            assert "podgroups.scheduling.x-k8s.io" in left, "helm never takes definitions away, and objects with them"
            assert "/multisched" not in left
        assert len(await cluster.pods()) == len(cluster.created)
