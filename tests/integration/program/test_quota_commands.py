"""`multisched quota` on a live cluster, by its kubeconfig: what is there is listed, and who may not list is told so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from multisched.client.transport import connect
from multisched.cluster.embedded import EmbeddedCluster
from multisched.model.wire import MERGE_PATCH, Transport
from tests.integration.client.conftest import WallClock
from tests.integration.program.command import asked
from tests.kit import definitions
from tests.unit.plugins.quota.trees import acks_example
from tests.unit.whatif.quota_clusters import quota_tree, walk_through

PATHS: Final = {
    "Node": "/api/v1/nodes",
    "Namespace": "/api/v1/namespaces",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ElasticQuotaTree": "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/{}/elasticquotatrees",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}


async def create(transport: Transport, document: Mapping[str, Any]) -> None:
    path = PATHS[document["kind"]].format(document["metadata"].get("namespace"))
    answer = await transport.request("POST", path, body=orjson.dumps(document))
    assert answer.status == 201, answer.body


@asynccontextmanager
async def cluster(folder: Path, *, has_quotas: bool = True) -> AsyncIterator[Path]:
    """The third step of ACK's walk-through, as a kubeconfig."""
    async with EmbeddedCluster.start(WallClock()) as embedded:
        kubeconfig = folder / "kubeconfig"
        embedded.write_kubeconfig(kubeconfig)
        of_quotas = [
            one for one in definitions.all_definitions() if one["spec"]["names"]["kind"].startswith("ElasticQuota")
        ]
        found = sorted(walk_through(3, 3, 2, 0), key=lambda one: list(PATHS).index(one["kind"]))
        async with connect(kubeconfig) as transport:
            for one in [*of_quotas, *found] if has_quotas else []:
                await create(transport, one)
        yield kubeconfig


async def call(*arguments: str) -> tuple[int, str, str]:
    ended = await asked("quota", *arguments)
    return ended.code, ended.out, ended.err


async def test_quota_tree_reads_a_live_cluster(tmp_path: Path) -> None:
    async with cluster(tmp_path) as kubeconfig:
        code, text, _ = await call("tree", "--kubeconfig", str(kubeconfig))
        assert code == 1, "no scheduler runs"
        assert text.startswith("Not enforced: ElasticQuotaTree kube-system/teams")
        async with connect(kubeconfig) as transport:
            status = {"conditions": [{"type": "InForce", "status": "True", "reason": "InForce"}]}
            path = f"{PATHS['ElasticQuotaTree'].format('kube-system')}/teams/status"
            answer = await transport.request(
                "PATCH", path, body=orjson.dumps({"status": status}), content_type=MERGE_PATCH
            )
            assert answer.status == 200, answer.body
        code, text, errors = await call("tree", "--kubeconfig", str(kubeconfig))
        assert (code, errors) == (0, "")
        assert text.startswith("In force: ElasticQuotaTree kube-system/teams (scheduling.sigs.k8s.io/v1beta1)\n")
        assert (
            "root.a.1  namespace1\n  cpu             [##########+++++     ]     15     10     20        5      -"
            in text
        )


async def test_lint_checks_against_a_live_cluster(tmp_path: Path) -> None:
    path = tmp_path / "teams.json"
    path.write_text(json.dumps(quota_tree(acks_example())))
    async with cluster(tmp_path) as kubeconfig:
        code, text, _ = await call("lint", str(path), "--kubeconfig", str(kubeconfig), "-o", "json")
        found = json.loads(text)
        assert (code, found["problems"]) == (0, [])
        assert [(one["leaf"], one["preemptorLeaf"]) for one in found["evictions"]] == [
            ("root.a.1", "root.b.4"),
            ("root.a.2", "root.b.4"),
        ]
        path.write_text(json.dumps(quota_tree(acks_example(), "second")))
        code, text, _ = await call("lint", str(path), "--kubeconfig", str(kubeconfig))
        assert code == 1
        assert "there is also the tree kube-system/teams, and only one is allowed" in text


async def test_cluster_without_quotas_has_none_in_force(tmp_path: Path) -> None:
    async with cluster(tmp_path, has_quotas=False) as kubeconfig:
        assert await call("tree", "--kubeconfig", str(kubeconfig)) == (0, "No quota is in force\n", "")
    code, _, errors = await call("tree", "--kubeconfig", str(kubeconfig))
    assert (code, bool(errors)) == (3, True), "nobody answers any more"
