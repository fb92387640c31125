"""multisched is upgraded and rolled back with pods waiting, with kubectl and with helm, on the chosen cluster.

Processes stand for the pods of its Deployment (`tests/real/pod_processes.py`), so the rollouts are real. The old program and
its manifests are those of the release before (`tests/real/releases.py`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.integration.kubectl.install_kit import Cluster, cluster_of
from tests.real.admin import until
from tests.real.audit_log import bound, calls, denied, unknown
from tests.real.deployed import Scheduler
from tests.real.pod_processes import PodProcesses
from tests.real.releases import extract, release_before
from tests.real.rendering import BASE, CHART, DEPLOY, NAMESPACE, RefusedError

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[3]
DEPLOYMENT = "deployment/multisched"
AT_FIRST, WAITING, MEANWHILE = 30, 12, 80
"""Pods that are there before the upgrade, those that no node takes until the end, and those that come while it goes on."""
REFUSED_LIMIT_S = 60
ROLLOUT = ("rollout", "status", DEPLOYMENT, "--timeout=120s")


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
        accepted = bound(seen)
        assert set(accepted.values()) == {1}
        assert accepted.keys() | {uid for uid, _node in unknown(seen)} == set(cluster.created.values())
        assert denied(seen, f"system:serviceaccount:{NAMESPACE}:multisched") == []


async def test_kustomization_is_upgraded_and_rolled_back_with_pending_pods(
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

        async with PodProcesses.watching(cluster.kubectl, cluster.kubeconfig, NAMESPACE, tmp_path, trees) as processes:
            await apply(before / "deploy/base", "old")
            assert len(processes.running) == 2
            back = partial(apply, before / "deploy/base", "old")
            await rolled_with_pods_waiting(cluster, processes, partial(apply, BASE, "new"), back)


async def test_chart_release_is_upgraded_and_rolled_back_with_pending_pods(
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
            await processes.wait_none()
            left = await cluster("get", "crd,clusterrole,validatingadmissionpolicy", "-o", "name")
            assert "podgroups.scheduling.x-k8s.io" in left, "helm never takes definitions away, and objects with them"
            assert "/multisched" not in left
        assert len(await cluster.pods()) == len(cluster.created)


async def test_refused_configuration_at_an_upgrade_keeps_the_old_replicas(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The new pod does not come up and says why; the old ones go on by what they had. Mended, the rollout goes through."""
    old_image, new_image = (f"registry.example.com/multisched:{tag}" for tag in ("old", "new"))
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    changed = tmp_path / "deploy/base"
    good = (changed / "multisched.yaml").read_text()
    wrong = "domains: [{name: forecast, profile: {plugins: {enabled: [{name: PeakForcast}]}}}]\n"

    async with cluster_of(request, tmp_path) as cluster:

        async def apply(image: str, more: str) -> None:
            (changed / "multisched.yaml").write_text(good + more)
            rendered = await cluster("kustomize", str(changed))
            await cluster("apply", "-f", "-", document=re.sub(r"image: multisched:.*", f"image: {image}", rendered))

        trees = {old_image: ROOT, new_image: ROOT}
        async with PodProcesses.watching(cluster.kubectl, cluster.kubeconfig, NAMESPACE, tmp_path, trees) as processes:
            await apply(old_image, "")
            await cluster("-n", NAMESPACE, *ROLLOUT)
            old = dict(processes.running)
            await cluster.create_pods("first", AT_FIRST)
            await cluster.create_pods("waiting", WAITING, zone="late")
            await cluster.wait_bound(AT_FIRST)

            processes.may_crash = True
            await apply(new_image, wrong)
            with pytest.raises(RefusedError, match=r"timed out|exceeded"):
                await cluster("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=5s")
            await until(partial(_have_said, old.values(), "configuration rejected"), REFUSED_LIMIT_S)
            await until(partial(_has_crashed, processes), REFUSED_LIMIT_S)
            await cluster.create_pods("meanwhile", MEANWHILE)
            await cluster.wait_bound(AT_FIRST + MEANWHILE)
            assert old.items() <= processes.running.items(), "the old replicas run as before"
            ((first, code), *_others) = next(iter(processes.crashed.values()))
            assert code == 2
            assert "'PeakForcast'" in first.program.log.read_text()
            assert "did you mean PeakForecast?" in first.program.log.read_text()

            await apply(new_image, "")
            await cluster("-n", NAMESPACE, *ROLLOUT)
            await processes.wait_without(old.keys())
            await cluster.create_nodes(["late"], zone="late")
            await cluster.wait_bound(len(cluster.created))
            found = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await cluster.pods()}
            assert found == cluster.created
            assert {code for _scheduler, code in processes.ended.values()} == {0}
            if cluster.plane is not None and cluster.plane.audit_log is not None:
                assert bound(calls(cluster.plane.audit_log)) == dict.fromkeys(cluster.created.values(), 1)


async def _have_said(schedulers: Iterable[Scheduler], message: str) -> bool:
    """Each of them, in its log."""
    return all(any(message in line["message"] for line in one.log_lines()) for one in schedulers)


async def _has_crashed(processes: PodProcesses) -> bool:
    return bool(processes.crashed)
