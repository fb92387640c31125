"""multisched is installed, asked and removed by the commands of docs/operators.md, on the chosen cluster.

Processes stand for the pods of its Deployment (`tests/real/pod_processes.py`), and docker only writes down what it is asked.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.integration.kubectl.install_kit import cluster_of
from tests.real.pod_processes import PodProcesses
from tests.real.rendering import NAMESPACE, configuration, kustomized, run, the, tools

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "operators.md"
SCRIPT_LIMIT_S = 300


@pytest.mark.parametrize("way", ["kubectl", "helm"])
async def test_documented_commands_install_it(request: pytest.FixtureRequest, tmp_path: Path, way: str) -> None:
    """Every command of the section, in its order, but for those of the other way; docker only writes down what it is asked."""
    section = DOCUMENT.read_text().split("\n## Install\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    of_the_other = {"kubectl": "helm ", "helm": "kubectl kustomize "}[way]
    chosen = [block for block in blocks if of_the_other not in block]
    assert len(blocks) - len(chosen) == {"kubectl": 2, "helm": 1}[way]
    (kustomization,) = re.findall(r"^```yaml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    removal = {
        "kubectl": "kubectl delete --ignore-not-found -k deploy/overlays/two-replicas",
        "helm": "helm -n multisched-system uninstall multisched",
    }[way]
    assert f"`{removal}`" in section

    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "docker").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/docker\n')
    (binaries / "docker").chmod(0o755)
    (binaries / "helm").symlink_to(tools() / "helm")
    (binaries / "kubectl").symlink_to(request.getfixturevalue("kubectl"))
    script = "\n".join(["set -euxo pipefail", *chosen])
    async with cluster_of(request, tmp_path) as cluster:
        trees = {"registry.example.com/multisched:0.1.0": ROOT}
        async with PodProcesses.watching(cluster.kubectl, cluster.kubeconfig, NAMESPACE, tmp_path, trees) as processes:
            path = f"{binaries}:{os.environ['PATH']}"
            variables = {"PATH": path, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path)}

            async def shell(commands: str) -> str:
                """What it printed."""
                command = ["bash", "-c", commands]
                return await anyio.to_thread.run_sync(lambda: run(command, "", variables, ROOT, SCRIPT_LIMIT_S))

            told = await shell(script)
            # The removal deletes the roles before the pods, which may then still be denied.
            assert [line for one in processes.schedulers for line in one.denials()] == []
            await shell(removal)
            await processes.wait_none()
        assert {code for _scheduler, code in processes.ended.values()} == {0}
        assert "condition met" in told
        assert "Successfully assigned default/checkout" in told
    assert (tmp_path / "docker").read_text().splitlines() == [
        "build -f deploy/Dockerfile -t registry.example.com/multisched:0.1.0 .",
        "push registry.example.com/multisched:0.1.0",
    ]
    own = tmp_path / "own"
    (own / "mine").mkdir(parents=True)
    (own / "deploy").symlink_to(ROOT / "deploy")
    (own / "mine" / "kustomization.yaml").write_text(kustomization)
    (own / "mine" / "multisched.yaml").write_text("kind: MultischedConfiguration\n")
    objects = kustomized(own / "mine")
    assert configuration(objects) == "kind: MultischedConfiguration\n"
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/multisched:0.1.0"
