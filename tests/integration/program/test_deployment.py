"""A multisched in a cluster that cannot be reached: every way to miss it has a sentence with the next step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.program.command import asked
from tests.integration.program.faulty_api import FaultyApi
from tests.integration.program.test_refusals import refusing_port, unreachable

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
ASK = ("explain", "pod", "web")


def lease(holder: str, annotations: Mapping[str, str], name: str = "multisched-forecast") -> dict[str, Any]:
    metadata = {"name": name, "annotations": dict(annotations)}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": holder},
    }


SEEN = {"multisched.io/nodes-seen": "7"}
TLS, PLAIN = ({**SEEN, "multisched.io/address": f"{scheme}://10.0.0.5:10260"} for scheme in ("https", "http"))


@pytest.mark.parametrize(
    ("found", "code", "told"),
    [
        (None, 3, ["no multisched has a Lease in namespace kube-system: give another --namespace, or --server"]),
        (lease("other", {"theirs": "yes"}), 3, ["no multisched has a Lease in namespace kube-system"]),
        (
            lease("", SEEN),
            1,
            [
                "no replica holds multisched-forecast in namespace kube-system, so none leads",
                "kubectl -n kube-system get pods",
                "retry in a moment",
            ],
        ),
        (
            lease("pod-a-0123abcd", SEEN),
            3,
            ["pod-a-0123abcd leads, but its Lease has no address", "--server"],
        ),
        (
            lease("pod-a-0123abcd", TLS),
            2,
            [
                "has no token (client certificates are not accepted here)",
                "kubectl create token ACCOUNT >token",
                "--token-file token",
            ],
        ),
        (
            lease("pod-a-0123abcd", PLAIN),
            3,
            [
                "no multisched responds at pod pod-a",
                "the leader pod-a-0123abcd was deleted",
                "--server http://10.0.0.5:10260",
            ],
        ),
    ],
    ids=["no-lease", "of-others", "nobody", "silent", "certificate", "no-pod"],
)
async def test_missing_deployment_is_named(
    found: dict[str, Any] | None, code: int, told: list[str], tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with FaultyApi.start() as api:
        api.write_kubeconfig(kubeconfig)
        kubeconfig.write_text(kubeconfig.read_text().replace("token: any", "{}"))
        if found is not None:
            await api.create(LEASES, found)
        ended = await asked(*ASK, "--kubeconfig", str(kubeconfig), "--namespace", "kube-system")
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert [words for words in told if words not in ended.err] == [], ended.err
    assert "Traceback" not in ended.err


async def test_missing_cluster_or_context_is_named(tmp_path: Path) -> None:
    kubeconfig = unreachable(tmp_path, refusing_port())
    ended = await asked(*ASK, "--kubeconfig", str(kubeconfig))
    assert (ended.code, "cannot connect to http://127.0.0.1:" in ended.err) == (3, True), ended.err
    ended = await asked(*ASK, "--context", "d", environment={"KUBECONFIG": str(kubeconfig)})
    assert (ended.code, f"kubeconfig {kubeconfig}: has no context d" in ended.err) == (3, True), ended.err
    ended = await asked(*ASK, "--context", "c", environment={"KUBECONFIG": str(tmp_path / "none")})
    assert (ended.code, f"no kubeconfig at {tmp_path / 'none'}" in ended.err) == (3, True), ended.err
