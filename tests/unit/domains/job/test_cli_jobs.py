"""`multisched jobs` on a dump of a cluster with and without serverless units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from typer.testing import CliRunner

from domains.job.commands.answers import tables
from domains.job.providers.figures import document_of
from domains.job.providers.sandbox_ledger import SandboxLedger
from domains.job.providers.settings import provider_settings
from multisched.cli.commands import app
from multisched.model.pod_outcome import PodOutcome
from multisched.testing.builders import make_node, make_pod, node_document

Document = dict[str, Any]
UNITS = [
    {
        "name": "eci",
        "nodeSelector": {"unit": "eci"},
        "rate": {"burst": 20, "perSecond": 4},
        "quota": {"pods": 12},
    },
    {"name": "other", "nodeSelector": {"unit": "other"}},
]
CONFIGURATION: Document = {
    "apiVersion": "multisched.io/v1",
    "kind": "MultischedConfiguration",
    "domains": [{"name": "job"}],
}


def pod(name: str, node: str = "", phase: str = "Pending") -> Document:
    requests = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    spec: Document = {
        "schedulerName": "job-scheduler",
        "containers": [{"name": "c", "image": "app", "resources": requests}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": spec | ({"nodeName": node} if node else {}),
        "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z"},
    }


def output_of(folder: Path, *arguments: str, units: list[Document] | None = UNITS) -> str:
    labels = {"type": "virtual-kubelet", "unit": "eci"}
    node = {"apiVersion": "v1", "kind": "Node", **node_document("v", cpu=64, memory="1Ti", pods=64, labels=labels)}
    items = [node, pod("runs", "v", "Running"), pod("starts", "v"), pod("waits")]
    (folder / "dump.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    domain: Document = {"name": "job"}
    if units is not None:
        domain["profile"] = {"plugins": {"enabled": [{"name": "ServerlessUnits", "args": {"units": units}}]}}
    (folder / "config.yaml").write_text(json.dumps({**CONFIGURATION, "domains": [domain]}))
    command = ["jobs", "--snapshot", str(folder / "dump.json"), "--config", str(folder / "config.yaml"), *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return result.output


def row_of(output: str, name: str) -> list[str]:
    return next(line for line in output.splitlines() if line.startswith(name)).split("   ")


def test_units_are_listed_with_rate_quota_and_pods(tmp_path: Path) -> None:
    found = output_of(tmp_path)
    cells = [cell.strip() for cell in row_of(found, "eci") if cell.strip()]
    assert cells[:6] == ["eci", "closed", "4/4 per s", "18/19", "2/12", "1"], "1 of 20 tokens is kept unused"
    assert [cell.strip() for cell in row_of(found, "other") if cell.strip()][4] == "0/-"


def test_units_are_in_the_document(tmp_path: Path) -> None:
    found = json.loads(output_of(tmp_path, "-o", "json"))
    assert [(one["name"], one["used"]["pods"], one["starting"]) for one in found["units"]] == [
        ("eci", 2, 1),
        ("other", 0, 0),
    ]
    assert found["waiting"] == 0, "a sandbox queues no pods"


def test_a_domain_without_units_shows_its_jobs(tmp_path: Path) -> None:
    assert json.loads(output_of(tmp_path, "-o", "json", units=None))["units"] == []
    assert "BREAKER" not in output_of(tmp_path, units=None)


def test_refused_images_and_failures_are_named() -> None:
    ledger = SandboxLedger(provider_settings({"units": UNITS}), None)
    ledger.set_node(0, make_node("n", labels={"unit": "eci"}))
    made = make_pod("p")
    one = replace(made, spec=replace(made.spec, images=("registry.example/bad:1",)))
    ledger.take(one, 0)
    ledger.bound(one.uid)
    failed = replace(one, node="n", phase="Failed")
    ledger.learn(PodOutcome(failed, "ProviderFailed", "InvalidParameter.Image: the image is not allowed"))
    shown: Document = {"domain": "job", "waiting": 0, "atRisk": 0, "predictedAt": None, "pods": [], "owners": []}
    found = tables(shown | {"units": document_of(ledger)}, is_wide=True)
    assert [cell.strip() for cell in row_of(found, "eci ") if cell.strip()][-7:] == ["0", "1", "0", "0", "0", "0", "1"]
    assert "eci refuses registry.example/bad:1 of namespace default for 10m0s: InvalidParameter.Image" in found
