"""A deployed multisched is asked through the API server: found by its Leases, reached by a port-forward to the leader's pod.

No kubectl is asked: the command line speaks to the API server by itself, and that to a kubelet which forwards ports.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from tests.integration.program.command import Ended, call
from tests.real.admin import Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import BASE, NAMESPACE, Deployed, Scheduler
from tests.real.fake_kubelet import FakeKubelet

pytestmark = pytest.mark.timeout(300)

NODE: Final = "machine"
REASON: Final = "Insufficient cpu"
SECTION: Final = (
    (Path(__file__).parents[2] / "docs" / "operators.md")
    .read_text()
    .split("\n## Asking it from outside\n")[1]
    .split("\n## ")[0]
)
LIMIT_S: Final = 90
ASK: Final = ("explain", "pod", "default/web")
INSECURE: Final = "--insecure-skip-tls-verify"


@dataclass
class Site:
    """A control plane, its one kubelet, and a scheduler in place of a pod."""

    plane: ControlPlane
    admin: Admin
    kubelet: FakeKubelet
    deployed: Deployed

    async def start(self, pod: str) -> Scheduler:
        """A pod of this name, and the process that stands for it."""
        await self.plane.kubectl("create", "-f", "-", document=json.dumps(_pod(pod)))
        scheduler = await self.deployed.start(pod)
        await scheduler.wait_ready()
        port = urlsplit(self.url_of(scheduler)).port or 0
        self.kubelet.ports[pod, port] = port
        return scheduler

    @staticmethod
    def url_of(scheduler: Scheduler) -> str:
        (url,) = (line["url"] for line in scheduler.log_lines() if "url" in line)
        return str(url)

    async def user(self, name: str, *manifests: str) -> Path:
        """A kubeconfig of somebody who may read multisched, and has the rights of the manifests besides."""
        await self.plane.kubectl("create", "serviceaccount", name, "-n", "default")
        binding = ("create", "clusterrolebinding", f"readers-{name}", "--clusterrole=multisched-reader")
        await self.plane.kubectl(*binding, f"--serviceaccount=default:{name}")
        for manifest in manifests:
            await self.plane.kubectl("apply", "-f", "-", document=manifest)
        return await self.plane.service_account_kubeconfig("default", name)

    async def asked(self, *arguments: str, told: str) -> Ended:
        """Once an answer has these words: rights come into force a moment after they are stored, and so do decisions."""
        ended = await call(*arguments)

        async def is_told() -> bool:
            nonlocal ended
            if told not in ended.out + ended.err:
                ended = await call(*arguments)
            return told in ended.out + ended.err

        try:
            await until(is_told, LIMIT_S)
        except TimeoutError:
            raise AssertionError(f"no {told!r} in {ended}") from None
        return ended


def _pod(name: str) -> dict[str, Any]:
    """As the Deployment would make it, on the node."""
    template = yaml.safe_load((BASE / "deployment.yaml").read_text())["spec"]["template"]
    template["spec"] |= {"nodeName": NODE, "schedulerName": "default-scheduler"}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def role_of_the_document(subject: str) -> str:
    """What docs/operators.md gives to those who ask, for this account of `default`."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    documents = list(yaml.safe_load_all(text))
    (binding,) = [one for one in documents if one["kind"] == "RoleBinding"]
    binding["metadata"]["name"] = f"asks-{subject}"
    binding["subjects"] = [{"kind": "ServiceAccount", "name": subject, "namespace": "default"}]
    return yaml.safe_dump_all(documents)


def commands_of_the_document() -> list[list[str]]:
    """Those of multisched, without that word."""
    found = [shlex.split(line) for line in SECTION.splitlines() if line.startswith("multisched ")]
    assert len(found) == 2
    return [["real" if word == "production" else word for word in words[1:]] for words in found]


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Site]:
    async with (
        ControlPlane.start(folder, controller_manager=False) as plane,
        Admin.open(plane) as admin,
        FakeKubelet.serving(plane.certificates) as kubelet,
    ):
        deployed = await Deployed.install(plane)
        await admin.create_all([kubelet.node(NODE), _web()])
        yield Site(plane, admin, kubelet, deployed)


def _web() -> dict[str, Any]:
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "900"}}}
    spec = {"schedulerName": "forecast-scheduler", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}, "spec": spec}


def by(kubeconfig: Path, *more: str) -> Sequence[str]:
    return ("--kubeconfig", str(kubeconfig), "--context", "real", *more)


async def test_commands_find_the_leader_and_errors_name_the_next_step(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        stranger = await site.user("stranger")
        ended = await site.asked(*ASK, *by(stranger), told="cannot be read")
        assert (ended.code, "leases.coordination.k8s.io is forbidden" in ended.err) == (3, True), ended.err
        assert "docs/operators.md, Asking it from outside, has the Role" in ended.err

        asker = await site.user("asker", role_of_the_document("asker"))
        ended = await site.asked(*ASK, *by(asker), told="has a Lease")
        assert (
            ended.code,
            "give another --namespace, or --server" in ended.err,
        ) == (3, True), ended.err
        ended = await call(*ASK, "--kubeconfig", str(asker), "--context", "reel")
        assert (ended.code, "has no context reel; did you mean real?" in ended.err) == (3, True), ended.err

        first = await site.start("first")
        await first.wait_leading(site.admin)
        ended = await site.asked(*ASK, *by(asker, INSECURE), told=REASON)
        assert ended.code == 0, ended.err
        view = json.loads((await call(*ASK, *by(asker, INSECURE, "-o", "json"))).out)
        assert (view["state"], view["attempts"][0]["outcome"]) == ("unschedulable", "refused")
        for command in commands_of_the_document():
            ended = await call(*command, environment={"KUBECONFIG": str(asker)})
            assert (ended.code, REASON in ended.out, ended.err) == (0, True, "")
        assert set(site.kubelet.forwarded) == {"first"}
        ended = await call(*ASK, *by(asker))
        assert (ended.code, "certificate verify failed" in ended.err) == (3, True), ended.err

        # A standby is asked first, by a Lease that comes before the other: its answer names the leader, who is asked next.
        second = await site.start("second")
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": "a-lease",
                "namespace": NAMESPACE,
                "annotations": {"multisched.io/address": site.url_of(second)},
            },
            "spec": {"holderIdentity": "second-0123abcd"},
        }
        await site.plane.kubectl("create", "-f", "-", document=json.dumps(lease))
        site.kubelet.forwarded.clear()
        ended = await call(*ASK, *by(asker, INSECURE))
        assert (ended.code, REASON in ended.out, ended.err) == (0, True, "")
        assert site.kubelet.forwarded == ["second", "first"]
        ended = await call("queue", *by(asker, INSECURE))
        assert (ended.code, REASON in ended.out, ended.err) == (0, True, "")
        await site.plane.kubectl("delete", "lease", "a-lease", "-n", NAMESPACE)

        # The leader's process is gone, its pod is not: its kubelet says that nobody listens.
        assert await second.program.kill() == -9
        assert await first.program.kill() == -9
        ended = await call(*ASK, *by(asker, INSECURE))
        assert (ended.code, "of pod first: error forwarding port" in ended.err) == (3, True), ended.err
        await site.plane.kubectl("delete", "pod", "first", "-n", NAMESPACE, "--force", "--grace-period=0")
        ended = await call(*ASK, *by(asker, INSECURE))
        assert (ended.code, 'pods "first" not found: the leader first-' in ended.err) == (3, True), ended.err

        leases = json.loads(await site.plane.kubectl("get", "lease", "-n", NAMESPACE, "-o", "json"))["items"]
        free = json.dumps({"spec": {"holderIdentity": ""}})
        for one in leases:
            await site.plane.kubectl(
                "patch", "lease", one["metadata"]["name"], "-n", NAMESPACE, "--type=merge", "-p", free
            )
        ended = await call(*ASK, *by(asker))
        assert (ended.code, "no replica holds multisched-forecast in namespace multisched-system" in ended.err) == (
            1,
            True,
        )


async def test_user_without_the_port_forward_right_gets_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        first = await site.start("first")
        await first.wait_leading(site.admin)
        documents = list(yaml.safe_load_all(role_of_the_document("looker")))
        for one in documents:
            one["rules"] = [rule for rule in one.get("rules", []) if "leases" in rule["resources"]]
            if not one["rules"]:
                del one["rules"]
        looker = await site.user("looker", yaml.safe_dump_all(documents))
        ended = await site.asked(*ASK, *by(looker, INSECURE), told="pods/portforward")
        assert (ended.code, 'cannot get resource "pods/portforward"' in ended.err) == (3, True), ended.err
        assert "has the Role that callers need" in ended.err
        assert site.kubelet.forwarded == []
