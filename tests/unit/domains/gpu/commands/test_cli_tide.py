"""`multisched gpu tide` on a dump of a cluster with inference, training and pods that wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.testing.builders import node_document

Document = dict[str, Any]
GPU = "nvidia.com/gpu"
CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: gpu
  profile:
    plugins:
      enabled:
      - name: GpuTide
        args: {inference: {selector: {matchLabels: {tier: serving}}}, evictable: {namespaces: [ml]}, headroom: {min: 2}}
"""
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "job", "controller": True}


def pod(
    name: str, cards: int, node: str = "", *, namespace: str = "ml", is_owned: bool = True, **spec: Any
) -> Document:
    """A pod; with a name that begins with `chat`, of inference."""
    resources = {"requests": {GPU: str(cards)}, "limits": {GPU: str(cards)}}
    labels = {"tier": "serving"} if name.startswith("chat") else {}
    metadata: Document = {"name": name, "namespace": namespace, "uid": name, "labels": labels}
    if is_owned:
        metadata["ownerReferences"] = [OWNER]
    spec |= {"nodeName": node} if node else {}
    container = {"name": "main", "image": "app", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "gpu-scheduler", "containers": [container], **spec},
        "status": {"phase": "Running" if node else "Pending", "startTime": "2026-01-01T00:00:00Z"},
    }


def node(name: str, model: str = "A100") -> Document:
    made = node_document(name, cpu=64, memory="1Ti", pods=64, extra={GPU: 8}, labels={"nvidia.com/gpu.product": model})
    return {"apiVersion": "v1", "kind": "Node", **made}


def output_of(tmp_path: Path, *items: Document, arguments: tuple[str, ...] = (), code: int = 0) -> str:
    dump, config = tmp_path / "dump.json", tmp_path / "config.yaml"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))
    config.write_text(CONFIGURATION)
    command = ["gpu", "tide", "--snapshot", str(dump), "--config", str(config), *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    return result.output


def document(tmp_path: Path, *items: Document) -> Document:
    found: Document = json.loads(output_of(tmp_path, *items, arguments=("-o", "json")))
    return found


def test_cards_are_shown_by_use_with_headroom_and_what_waits(tmp_path: Path) -> None:
    pods = (pod("chat-0", 4, "a"), pod("chat-1", 2), pod("train-0", 8, "b"), pod("train-1", 8))
    found = document(tmp_path, node("a"), node("b"), *pods)
    assert found["cards"] == {
        "total": 16,
        "inference": 4,
        "waitingInference": 2,
        "training": 8,
        "free": 4,
        "leaving": 0,
    }
    assert (found["demandCards"], found["headroom"]["errorCards"]) == (6, 2)
    assert found["headroom"]["cards"] == 4, "for one more of the largest inference pods"
    assert len(found["forecast"]["hours"]) == 25
    [waiting] = found["training"]["waiting"]
    assert (waiting["gang"], waiting["cards"]) == ("ml/train-1", 8)
    assert "held back: inference is expected to need" in waiting["why"]
    text = output_of(tmp_path, node("a"), node("b"), *pods)
    assert "INFERENCE" in text
    assert "ml/train-1" in text


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (pod("train", 8, "a", namespace="default"), "`evictable` does not select it"),
        (pod("train", 8, "a", is_owned=False), "no controller would create its pod again"),
        (pod("train", 8, "a", schedulerName="another"), "another scheduler placed it, or a pod of it"),
    ],
)
def test_gangs_that_are_never_evicted_are_shown_with_the_reason(tmp_path: Path, kept: Document, why: str) -> None:
    [shown] = document(tmp_path, node("a"), kept)["training"]["protected"]
    assert (shown["cards"], shown["why"]) == (8, why)


def test_nodes_of_models_that_inference_does_not_accept_are_outside_the_tide(tmp_path: Path) -> None:
    chat = pod("chat", 1, nodeSelector={"nvidia.com/gpu.product": "A100"})
    found = document(tmp_path, node("a"), node("h", "H100"), chat, pod("train", 8, "h"), pod("more", 8))
    assert found["training"]["limitCards"] <= 8
    assert found["cards"]["training"] == 0, "of the nodes of the tide"


def test_waiting_inference_for_a_model_that_no_node_has_is_reported(tmp_path: Path) -> None:
    chat = pod("chat", 1, nodeSelector={"nvidia.com/gpu.product": "B200"})
    [unmet] = document(tmp_path, node("a"), chat, pod("train", 8, "a"))["unmet"]
    assert unmet["uid"] == "chat"


def test_domain_without_a_tide_has_no_document(tmp_path: Path) -> None:
    config = tmp_path / "plain.yaml"
    output_of(tmp_path, node("a"))
    config.write_text(CONFIGURATION.partition("  profile:")[0])
    command = ["gpu", "tide", "--snapshot", str(tmp_path / "dump.json"), "--config", str(config)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert "no plugin serves the view tide" in result.output
