"""`deploy/base/admission.yaml` on a real API server: who may write the annotations that GPU devices are held by, and who not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from multisched.client.limits import WriteLimiter
from multisched.client.pod_writer import ApiPodWriter
from multisched.client.transport import connect
from multisched.framework.ports import ObjectRef, WriteAnswer
from tests.real.admin import Admin, until
from tests.real.control_plane import UNPRIVILEGED, ControlPlane
from tests.real.deployed import ACCOUNT, NAMESPACE, Deployed
from tests.unit.client.scripted import LoopClock

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

MILLI, COUNT, DEVICES, ALLOCATED = (
    f"multisched.io/gpu-{name}" for name in ("milli", "count", "devices", "allocated-milli")
)
NOTICES: Final = ("multisched.io/tide-notice", "multisched.io/loan-notice")
OF_THE_SCHEDULER: Final = (DEVICES, ALLOCATED)
OF_THE_AUTHOR: Final = (MILLI, COUNT)
GIVEN: Final = {DEVICES: "0", ALLOCATED: "600"}
EFFECTIVE_LIMIT_S: Final = 20
"""Until the API server goes by a policy that was stored."""
RIGHTS: Final = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: tenant, namespace: default}
rules:
  - apiGroups: [""]
    resources: [pods, pods/status, pods/resize, pods/binding, bindings]
    verbs: ["*"]
"""
NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "1"}},
}


def pod(name: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations)},
        "spec": {"schedulerName": "gpu-scheduler", "containers": [{"name": "main", "image": "app"}]},
    }


class Site:
    """The base on a control plane, a node, and a tenant who may do anything to pods of `default`."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.tenant = plane.write_kubeconfig(UNPRIVILEGED, plane.unprivileged_token)

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator[Site]:
        async with ControlPlane.start(folder, controller_manager=False) as plane:
            await Deployed.install(plane)
            await plane.kubectl("apply", "-f", "-", document=RIGHTS)
            await plane.kubectl("create", "rolebinding", "tenant", "--role=tenant", f"--user={UNPRIVILEGED}")
            await plane.kubectl("create", "-f", "-", document=json.dumps(NODE))
            site = cls(plane)

            async def is_effective() -> bool:
                return "denied request" in await site.refusal("create", pod("probe", {DEVICES: "0"}))

            await until(is_effective, EFFECTIVE_LIMIT_S)
            yield site

    async def refusal(self, verb: str, document: object, *options: str, user: Path | None = None) -> str:
        """What kubectl was told; empty if it was let through. Nothing is stored."""
        return await self._asked(user, verb, "-f", "-", "--dry-run=server", *options, document=document)

    async def patched(self, name: str, annotations: Mapping[str, str | None], *options: str) -> str:
        """As `refusal`; a patch of a pod's annotations, which is stored."""
        patch = json.dumps({"metadata": {"annotations": dict(annotations)}})
        return await self._asked(None, "patch", "pod", name, "--type=merge", "-p", patch, *options)

    async def bound(self, name: str, annotations: Mapping[str, str], user: Path, *, path: str = "") -> str:
        """As `refusal`; a binding to the node."""
        metadata = {"name": name, "namespace": "default", "annotations": dict(annotations)}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "n"}}
        path = path or f"/api/v1/namespaces/default/pods/{name}/binding"
        return await self._asked(user, "create", "--raw", path, "-f", "-", document=binding)

    async def _asked(self, user: Path | None, *arguments: str, document: object = None) -> str:
        text = None if document is None else json.dumps(document)
        try:
            await self.plane.kubectl(*arguments, kubeconfig=user or self.tenant, document=text)
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        return ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with Site.open(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module")
async def site(opened: Site) -> AsyncIterator[Site]:
    """One for all tests, each of which finds it without pods."""
    yield opened
    await opened.plane.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")


async def test_only_the_scheduler_can_write_device_annotations(site: Site) -> None:
    admin = site.plane.kubeconfig
    scheduler = await site.plane.service_account_kubeconfig(NAMESPACE, ACCOUNT)
    for key in OF_THE_SCHEDULER:
        for user in (site.tenant, admin):
            told = await site.refusal("create", pod("new", {key: "0"}), user=user)
            assert f"metadata.annotations[{key}]: only the scheduler writes it, when it binds the pod" in told
            assert "leave it out of new pods" in told
    await site.plane.kubectl("create", "-f", "-", document=json.dumps(pod("p", {MILLI: "600"})))
    assert await site.patched("p", {MILLI: "500"}) == "", "a pod that waits may ask for something else"
    assert await site.patched("p", {MILLI: "600"}) == ""
    for key in OF_THE_SCHEDULER:
        assert "leave it out of new pods and unchanged in others" in await site.patched("p", {key: "0"})

    everywhere = ("", "/api/v1/namespaces/default/bindings")
    for path in everywhere:
        for user in (site.tenant, admin):
            told = await site.bound("p", GIVEN, user, path=path)
            assert f"metadata.annotations[{DEVICES}]: only the scheduler writes it" in told
    assert await site.bound("p", GIVEN, scheduler) == ""

    stored = json.loads(await site.plane.kubectl("get", "pod", "p", "-o", "json"))
    assert stored["spec"]["nodeName"] == "n"
    assert stored["metadata"]["annotations"].items() >= GIVEN.items()


async def test_tenant_cannot_change_the_devices_of_a_bound_pod(site: Site) -> None:
    scheduler = await site.plane.service_account_kubeconfig(NAMESPACE, ACCOUNT)
    await site.plane.kubectl("create", "-f", "-", document=json.dumps(pod("p", {MILLI: "600"})))
    assert await site.bound("p", GIVEN, scheduler) == ""

    for options in ((), ("--subresource=status",)):
        for key in (*OF_THE_SCHEDULER, *OF_THE_AUTHOR):
            assert f"metadata.annotations[{key}]: " in await site.patched("p", {key: "1"}, *options)
        for key in (*OF_THE_SCHEDULER, MILLI):
            assert f"metadata.annotations[{key}]: " in await site.patched("p", {key: None}, *options)
        assert await site.patched("p", {"note": "mine", DEVICES: "0"}, *options) == ""
    assert "create a new pod" in await site.patched("p", {MILLI: "1"})
    assert await site.patched("p", {f"note-{number}": "x" for number in range(1_100)}) == ""
    running = json.dumps({"status": {"phase": "Running"}})
    await site.plane.kubectl("patch", "pod", "p", "--subresource=status", "--type=merge", "-p", running)

    stored = json.loads(await site.plane.kubectl("get", "pod", "p", "-o", "json"))
    assert stored["metadata"]["annotations"].items() >= {**GIVEN, MILLI: "600"}.items()
    assert len(stored["metadata"]["annotations"]) > 1_100


async def test_program_binds_fractions_with_the_policy_in_force(site: Site) -> None:
    async with Admin.open(site.plane) as admin:
        scheduler = await Deployed(site.plane).start("first")
        await scheduler.wait_ready()
        for name in ("first", "second"):
            await site.plane.kubectl("create", "-f", "-", document=json.dumps(pod(name, {MILLI: "600"})))

        async def found() -> dict[str, dict[str, Any]]:
            return {one["metadata"]["name"]: one for one in await admin.items("/api/v1/namespaces/default/pods")}

        async def is_one_bound_and_one_told() -> bool:
            pods = (await found()).values()
            told = [c["message"] for p in pods for c in p["status"].get("conditions", ()) if c["status"] == "False"]
            return sum("nodeName" in p["spec"] for p in pods) == 1 and any("Insufficient gpu-milli" in t for t in told)

        await until(is_one_bound_and_one_told, 30)
        (bound,) = [one for one in (await found()).values() if "nodeName" in one["spec"]]
        assert bound["metadata"]["annotations"] == {MILLI: "600", **GIVEN}
        assert scheduler.denials() == []
        assert await scheduler.program.stop(20) == 0


@pytest.mark.parametrize("notice", NOTICES)
async def test_scheduler_writes_notices_with_the_status_and_nobody_else_does(site: Site, notice: str) -> None:
    kubeconfig = await site.plane.service_account_kubeconfig(NAMESPACE, ACCOUNT)
    await site.plane.kubectl("create", "-f", "-", document=json.dumps(pod("p", {MILLI: "600"})))
    stored = json.loads(await site.plane.kubectl("get", "pod", "p", "-o", "json"))
    ref = ObjectRef("Pod", "default", "p", stored["metadata"]["uid"])
    async with connect(kubeconfig) as transport:
        clock = LoopClock()
        writer = ApiPodWriter(transport, WriteLimiter(clock), clock)
        assert (await writer.annotate(ref, {notice: "text"}, timeout_s=10.0)).answer is WriteAnswer.DONE
        stored = json.loads(await site.plane.kubectl("get", "pod", "p", "-o", "json"))
        assert stored["metadata"]["annotations"][notice] == "text"
        for options in ((), ("--subresource=status",)):
            for text in ("another", None):
                assert "only the scheduler writes it" in await site.patched("p", {notice: text}, *options)
        patch = json.dumps({"metadata": {"annotations": {notice: "text"}}})
        assert "Forbidden" in await site._asked(kubeconfig, "patch", "pod", "p", "-p", patch), "not the pod itself"
        assert (await writer.annotate(ref, {notice: None}, timeout_s=10.0)).answer is WriteAnswer.DONE
    stored = json.loads(await site.plane.kubectl("get", "pod", "p", "-o", "json"))
    assert notice not in stored["metadata"]["annotations"]
