"""Quotas at apply time on a real API server: what the policies of `deploy/base` refuse, and what the program's webhook refuses besides."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import yaml

from tests.real.admin import until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import BASE, Deployed, Scheduler
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import Json, acks_example, leaf, node
from tests.unit.whatif.quota_clusters import quota_tree

pytestmark = pytest.mark.timeout(240)

DEPLOY: Final = BASE.parent
EFFECTIVE_LIMIT_S: Final = 30
"""Until the API server goes by a policy, a webhook or a definition that was stored."""


class Site:
    """A control plane with the definitions of quotas."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    async def refusal(self, document: Json, *options: str) -> str:
        """What kubectl was told; empty if it was let through. Nothing is stored unless `--dry-run=none` is given."""
        text = json.dumps(document)
        command = ["apply", "-f", "-", *(options or ("--dry-run=server",))]
        try:
            await self.plane.kubectl(*command, document=text)
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        return ""

    async def warnings(self, document: Json) -> str:
        """What kubectl printed of it on stderr; it was let through."""
        command = [str(self.plane.binaries / "kubectl"), "--kubeconfig", str(self.plane.kubeconfig)]
        command += ["apply", "-f", "-", "--dry-run=server"]
        done = await anyio.run_process(command, input=json.dumps(document).encode())
        return done.stderr.decode()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Site]:
    async with ControlPlane.start(folder, controller_manager=False) as plane:
        await plane.apply_definitions(DEPLOY / "crds")
        yield Site(plane)


def deep(levels: int, bottom: Json) -> Json:
    """A tree with a path of so many levels above the bottom."""
    one = bottom
    for number in reversed(range(levels)):
        one = node(f"l{number}", {"cpu": 4}, {"cpu": 4}, one)
    return quota_tree(one)


BAD_LEAF: Final = leaf("bad", 3, 2)
TREES: Final[dict[str, tuple[Json, str]]] = {
    "min over max of the root": (quota_tree(node("root", {"cpu": "4500m"}, {"cpu": 4})), "min is no amount, or over max, of root"),
    "an amount that is none": (quota_tree(node("root", {"cpu": "many"}, {"cpu": 4})), "min is no amount, or over max, of root"),
    "a root that differs": (quota_tree(node("root", {"cpu": 2}, {"cpu": 4})), "min and max of the root differ"),
    "a root without a max": (quota_tree(node("root", {"cpu": 2}, {})), "min and max of the root differ"),
    "elsewhere": (quota_tree(acks_example(), namespace="default"), "a tree has effect in kube-system only"),
    **{
        f"min over max in level {levels + 1}": (deep(levels, BAD_LEAF), "min is no amount, or over max, of bad")
        for levels in range(1, 5)
    },
    **{
        f"children over min in level {levels}": (
            deep(levels - 1, node(f"p{levels}", {"cpu": 4}, {"cpu": 4}, leaf("a", 2, 4), leaf("b", 3, 4))),
            f"min of the children is in all over min of p{levels}",
        )
        for levels in range(1, 5)
    },
    "a resource that the parent lacks": (
        quota_tree(node("root", {"cpu": 4}, {"cpu": 4}, node("a", {"memory": "1Gi"}, {}))),
        "min of the children is in all over min of root",
    ),
    "a max over that of the parent": (
        deep(1, node("p", {"cpu": 1}, {"cpu": 2}, leaf("a", 1, 3))),
        "max of a child is over max of p",
    ),
    "namespaces of an inner level": (
        deep(1, node("p", {"cpu": 1}, {"cpu": 2}, leaf("a", 1, 2), namespaces=["x"])),
        "namespaces are for leaves, and there are children of p",
    ),
}  # fmt: skip


QUEUE: Final = {"kube-queue/max-jobs": 9}
"""Of ACK's queue: no level bounds another one by it."""
WITH_MAX_JOBS: Final = node(
    "root", {"cpu": 4}, {"cpu": 4, **QUEUE}, node("a", {"cpu": 1, **QUEUE}, {"kube-queue/max-jobs": 99})
)

AMOUNTS: Final = (("1500m", 1), ("many", 1), (1, "1500m"))


def quotas(least: Any, most: Any) -> list[Json]:
    """Of scheduler-plugins, and of Koordinator."""
    return [flat("default", least, most), linked("quota", least, most, namespace="default")]


async def test_policies_refuse_invalid_trees_and_name_the_level(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.plane.kubectl("apply", "-f", str(BASE / "quota-admission.yaml"))

        async def is_effective() -> bool:
            elsewhere = await site.refusal(quota_tree(acks_example(), namespace="default"))
            return "kube-system only" in elsewhere and bool(await site.refusal(flat("default", 3, 2)))

        await until(is_effective, EFFECTIVE_LIMIT_S)
        for name, (document, told) in TREES.items():
            assert told in await site.refusal(document), name
        for good in (
            quota_tree(acks_example()),
            deep(4, leaf("a", 0, 4)),
            quota_tree(WITH_MAX_JOBS),
            quota_tree(node("root", {}, {}, leaf("a", 0, 3))),
        ):
            assert await site.refusal(good) == ""
        assert await site.refusal(deep(5, BAD_LEAF)) == "", "deeper levels are for the webhook and the scheduler"

        for over, unreadable, good in zip(*(quotas(least, most) for least, most in AMOUNTS), strict=True):
            assert "spec.min: over max of cpu" in await site.refusal(over)
            assert "spec: no amount of cpu" in await site.refusal(unreadable)
            assert await site.refusal(good) == ""

        leaves = [leaf(f"l{number}", 1, 2) for number in range(1_000)]
        large = node("root", {"cpu": 1_000}, {"cpu": 1_000}, *leaves)
        assert await site.refusal(quota_tree(large)) == ""
        leaves[-1]["max"] = {"cpu": "500m"}
        assert "over max, of l999" in await site.refusal(quota_tree(large)), "a thousand leaves are not too many"


@asynccontextmanager
async def reviewed(site: Site) -> AsyncIterator[Scheduler]:
    """The program with the webhook on, and the API server that asks it."""
    certificates = site.plane.certificates
    tls = {"certFile": str(certificates.serving), "keyFile": str(certificates.serving_key)}
    deployed = await Deployed.install(site.plane)
    for name in ("multisched-quota-trees", "multisched-elastic-quotas"):
        await site.plane.kubectl("delete", "validatingadmissionpolicybinding", name)
    scheduler = await deployed.start("only", {"server": {"quotaWebhook": True, "tls": tls, "probePort": 0}})
    await scheduler.wait_ready()
    (url,) = (line["url"] for line in scheduler.log_lines() if "url" in line)
    webhook = yaml.safe_load((DEPLOY / "webhook" / "validatingwebhook.yaml").read_text("utf-8"))
    for one in webhook["webhooks"]:
        path = one["clientConfig"].pop("service")["path"]
        authority = base64.b64encode(certificates.ca.read_bytes()).decode()
        one["clientConfig"] = {"url": url + path, "caBundle": authority}
        one["failurePolicy"] = "Fail"
    await site.plane.kubectl("apply", "-f", "-", document=json.dumps(webhook))
    yield scheduler
    assert await scheduler.program.stop(20) == 0


def second(document: Json) -> Json:
    found: dict[str, Any] = copy.deepcopy(dict(document))
    found["metadata"]["name"] = "second"
    return found


async def test_all_objects_of_the_overlay_are_accepted(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.plane.kubectl("apply", "-k", str(BASE))
        await site.plane.kubectl("apply", "-k", str(DEPLOY / "webhook"))


async def test_webhook_refuses_the_same_trees_as_lint(tmp_path: Path) -> None:
    async with opened(tmp_path) as site, reviewed(site) as scheduler:
        good = quota_tree(acks_example())

        async def is_effective() -> bool:
            return "move it to kube-system" in await site.refusal(quota_tree(acks_example(), namespace="default"))

        await until(is_effective, EFFECTIVE_LIMIT_S)
        for name, (document, _) in TREES.items():
            assert "The request is invalid: " in await site.refusal(document), name
        told = await site.refusal(deep(5, BAD_LEAF))
        assert "l0.l1.l2.l3.l4.bad.min.cpu: min 3 is over max 2; lower min or raise max of l0.l1.l2.l3.l4.bad" in told
        twice = node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 1, 2, "x"), leaf("b", 1, 2, "x"))
        assert "namespace 'x' is already in root.a" in await site.refusal(quota_tree(twice))

        assert "no namespace belongs to this leaf" in await site.warnings(
            quota_tree(node("root", {}, {}, node("a", {}, {})))
        )
        assert await site.refusal(good, "--dry-run=none") == ""

        async def is_known() -> bool:
            return "only one is allowed" in await site.refusal(second(good))

        await until(is_known, EFFECTIVE_LIMIT_S)
        assert "one API is read at a time" in await site.refusal(flat("default", 1, 2))
        tree = ("elasticquotatree", "teams", "--namespace", "kube-system")
        with pytest.raises(subprocess.CalledProcessError) as refused:
            await site.plane.kubectl("delete", *tree)
        assert "deleting this tree lifts the limits of all teams" in refused.value.stderr
        await site.plane.kubectl("annotate", *tree, "multisched.io/lift-quotas=true")
        await site.plane.kubectl("delete", *tree)
        assert scheduler.failures() == []


async def test_quota_label_of_a_bound_pod_cannot_be_changed(tmp_path: Path) -> None:
    label = "quota.scheduling.koordinator.sh/name"
    async with opened(tmp_path) as site:
        await site.plane.kubectl("apply", "-f", str(BASE / "quota-admission.yaml"))
        await site.plane.kubectl("create", "serviceaccount", "default")
        for name, where in (("bound", {"nodeName": "nowhere"}), ("waits", {"schedulerName": "forecast-scheduler"})):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "labels": {label: "a"}},
                "spec": {**where, "containers": [{"name": "c", "image": "i"}]},
            }
            await site.plane.kubectl("create", "-f", "-", document=json.dumps(pod))

        async def is_refused() -> bool:
            try:
                await site.plane.kubectl("label", "pod", "bound", f"{label}=b", "--overwrite", "--dry-run=server")
            except subprocess.CalledProcessError as error:
                return "counts for the quota that it had then" in error.stderr
            return False

        await until(is_refused, EFFECTIVE_LIMIT_S)
        await site.plane.kubectl("label", "pod", "bound", "other=b")
        await site.plane.kubectl("label", "pod", "waits", f"{label}=b", "--overwrite")
