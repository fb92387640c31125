"""Who may do what, through kubectl: can-i, roles, tokens, impersonation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.integration.kubectl.conftest import Kubectl


@pytest.fixture
def reader(ctl: Kubectl, tmp_path: Path) -> Kubectl:
    """kubectl as a ServiceAccount that may only read pods in its namespace, with a token of its own."""
    ctl("create", "serviceaccount", "reader")
    ctl("create", "role", "read-pods", "--verb=get,list,watch", "--resource=pods")
    ctl("create", "rolebinding", "reader", "--role=read-pods", f"--serviceaccount={ctl.namespace}:reader")
    document = yaml.safe_load(ctl.kubeconfig.read_text())
    token = ctl("create", "token", "reader", "--duration=1h").strip()
    contexts = {entry["name"]: entry["context"] for entry in document["contexts"]}
    user = contexts[document["current-context"]]["user"]
    document["users"] = [{"name": user, "user": {"token": token}}]
    path = tmp_path / "reader"
    path.write_text(yaml.safe_dump(document))
    return replace(ctl, kubeconfig=path)


def test_an_administrator_may_do_everything(ctl: Kubectl) -> None:
    assert ctl("auth", "can-i", "*", "*") == "yes\n"
    assert ctl("auth", "can-i", "create", "pods/binding") == "yes\n"
    assert "system:masters" in ctl("auth", "whoami", "-o", "yaml")


def test_rights_of_a_service_account(ctl: Kubectl, reader: Kubectl) -> None:
    account = f"system:serviceaccount:{ctl.namespace}:reader"
    assert reader("auth", "can-i", "list", "pods") == "yes\n"
    assert reader.run("auth", "can-i", "delete", "pods").stdout == "no\n"
    assert ctl("auth", "can-i", "list", "pods", "--as", account) == "yes\n"
    assert ctl.run("auth", "can-i", "list", "nodes", "--as", account).stdout.splitlines()[-1] == "no"
    assert "pods" in reader("auth", "can-i", "--list")
    assert json.loads(reader("auth", "whoami", "-o", "json"))["status"]["userInfo"]["username"] == account


def test_forbidden_request_is_named(reader: Kubectl) -> None:
    assert reader.names("pods") == []
    refusal = reader.fails("create", "configmap", "c")
    assert "is forbidden" in refusal
    assert 'cannot create resource "configmaps"' in refusal
    assert 'cannot list resource "pods"' in reader.fails("get", "pods", "-A")


def test_a_wrong_token_is_unauthorized(ctl: Kubectl, reader: Kubectl, tmp_path: Path) -> None:
    document = yaml.safe_load(reader.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "wrong"
    path = tmp_path / "wrong"
    path.write_text(yaml.safe_dump(document))
    assert "Unauthorized" in replace(ctl, kubeconfig=path).fails("get", "pods")


def test_deleted_role_takes_effect(ctl: Kubectl, reader: Kubectl) -> None:
    reader("get", "pods")
    ctl("delete", "rolebinding", "reader")
    assert "Forbidden" in reader.fails("get", "pods")


def test_reconcile_makes_roles_from_a_file(ctl: Kubectl) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": ctl.namespace},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }
    ctl("auth", "reconcile", "-f", "-", stdin=role)
    ctl("auth", "reconcile", "-f", "-", stdin=role)
    assert ctl.get("role", "r")["rules"] == role["rules"]
