"""What an administrator does to nodes: taint, cordon, drain, label, and their descriptions."""

from __future__ import annotations

import re
import time

from tests.integration.kubectl.conftest import Kubectl, deployment, pod, rows


def test_taints_are_added_changed_and_removed(ctl: Kubectl, node: str) -> None:
    ctl("taint", "node", node, "example.com/dedicated=team:NoSchedule", "example.com/other:PreferNoSchedule")
    assert "already has" in ctl.fails("taint", "node", node, "example.com/dedicated=x:NoSchedule")
    ctl("taint", "node", node, "example.com/dedicated=x:NoSchedule", "--overwrite")
    ctl("taint", "node", node, "example.com/other-")

    taints = [t for t in ctl.get("node", node)["spec"]["taints"] if t["key"].startswith("example.com/")]
    assert taints == [{"key": "example.com/dedicated", "value": "x", "effect": "NoSchedule"}]
    assert re.search(r"^Taints: +example.com/dedicated=x:NoSchedule", ctl("describe", "node", node), re.M)


def test_cordon_and_uncordon(ctl: Kubectl, node: str) -> None:
    def status() -> str:
        return rows(ctl("get", "node", node))[0]["STATUS"]

    ctl("cordon", node)
    assert status() == "Ready,SchedulingDisabled"
    assert ctl.get("node", node)["spec"]["unschedulable"] is True
    assert node in ctl("get", "nodes", "--field-selector", "spec.unschedulable=true")
    ctl("uncordon", node)
    assert status() == "Ready"


def test_drain_evicts_owned_pods_and_refuses_others(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web", on=node))
    ctl("rollout", "status", "deployment/web", "--timeout=60s")
    before = set(ctl.names("pods", "-l", "app=web"))
    ctl("create", "-f", "-", stdin=pod("bare", on=node))
    assert "--force" in ctl.fails("drain", node, "--pod-selector", "app in (web,bare)", "--timeout=60s")

    # Without a scheduler their replacements name the same node: only what was there is looked at.
    ctl("scale", "deployment/web", "--replicas=0")
    ctl("wait", "--for=delete", *before, "--timeout=60s")
    ctl("drain", node, "--force", "--timeout=60s")
    assert ctl.get("node", node)["spec"]["unschedulable"] is True
    assert ctl.names("pods", "--field-selector", f"spec.nodeName={node}") == []


def test_drain_respects_a_disruption_budget(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web", on=node, replicas=2))
    ctl("rollout", "status", "deployment/web", "--timeout=60s")
    ctl("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=2")
    ctl("wait", "--for=jsonpath={.status.currentHealthy}=2", "pdb/web", "--timeout=60s")
    names = set(ctl.names("pods"))
    done = ctl.run("drain", node, "--timeout=3s", "--pod-selector=app=web")

    assert done.returncode != 0
    assert "violate the pod's disruption budget" in done.stderr + done.stdout
    assert set(ctl.names("pods")) == names
    assert rows(ctl("get", "pdb", "web"))[0]["ALLOWED DISRUPTIONS"] == "0"


def test_dry_run_drain_changes_nothing(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=pod("a", on=node))
    assert "(server dry run)" in ctl("drain", node, "--force", "--dry-run=server")
    assert ctl.names("pods") == ["pod/a"]
    assert "unschedulable" not in ctl.get("node", node)["spec"]


def test_node_labels_show_roles_and_match_selectors(ctl: Kubectl, node: str) -> None:
    ctl("label", "node", node, "node-role.kubernetes.io/special=", f"test={node}")
    assert rows(ctl("get", "nodes", "-l", f"test={node}"))[0]["ROLES"] == "special"


def test_deleted_node_is_not_listed(ctl: Kubectl) -> None:
    name = f"short-{time.time_ns():x}"
    ctl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    ctl("delete", "node", name)
    assert "not found" in ctl.fails("get", "node", name)
