"""DaemonSets through kubectl. Their pods wait for a scheduler, and none runs here: the test binds them itself."""

from __future__ import annotations

import json
import time

from tests.integration.kubectl.conftest import Document, Kubectl, pod, rows

PATIENCE_S = 60.0
POLL_S = 0.2


def daemon_set(name: str, node: str) -> Document:
    """On one node only: the cluster has others, of other tests."""
    spec = {**pod(name)["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    }


def bind_next(ctl: Kubectl) -> Document:
    """Binds the pod that waits to the node that its affinity names."""
    for _ in range(round(PATIENCE_S / POLL_S)):
        waiting = [p for p in ctl.get("pods", "-l", "app=d")["items"] if not p["spec"].get("nodeName")]
        if waiting:
            break
        time.sleep(POLL_S)
    [found] = waiting
    required = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    name, [node] = found["metadata"]["name"], term["matchFields"][0]["values"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{ctl.namespace}/pods/{name}/binding"
    ctl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    return {**found, "node": node}


def test_daemon_set_runs_on_selected_nodes_and_rolls_over_and_back(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=daemon_set("d", node))
    first = bind_next(ctl)
    assert first["node"] == node
    keys = {t["key"] for t in first["spec"]["tolerations"]}
    assert {"node.kubernetes.io/unschedulable", "node.kubernetes.io/memory-pressure"} <= keys
    ctl("rollout", "status", "daemonset/d", "--timeout=60s")
    [row] = rows(ctl("get", "daemonset", "d"))
    assert [row[column] for column in ("DESIRED", "CURRENT", "READY", "UP-TO-DATE", "AVAILABLE")] == ["1"] * 5
    assert "Created pod: d-" in ctl("describe", "daemonset", "d")

    ctl("set", "image", "daemonset/d", "main=app:2")
    bind_next(ctl)
    ctl("rollout", "status", "daemonset/d", "--timeout=60s")
    history = ctl("rollout", "history", "daemonset/d")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["1", "2"]
    ctl("rollout", "undo", "daemonset/d")
    assert bind_next(ctl)["spec"]["containers"][0]["image"] == "app:1"
    ctl("rollout", "status", "daemonset/d", "--timeout=60s")


def test_drain_keeps_daemon_set_pods_with_the_flag(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=daemon_set("d", node))
    bind_next(ctl)
    ctl("rollout", "status", "daemonset/d", "--timeout=60s")
    assert "DaemonSet-managed Pods" in ctl.fails("drain", node, "--timeout=60s")
    ctl("drain", node, "--ignore-daemonsets", "--timeout=60s")
    assert len(ctl.names("pods", "-l", "app=d")) == 1
    ctl("uncordon", node)
