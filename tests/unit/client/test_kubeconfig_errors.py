"""A kubeconfig that cannot be used is told with what is wrong in it, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from multisched.client.errors import CredentialsError
from multisched.client.transport import connect

PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "home",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "home", "context": {"cluster": "c", "user": "u"}}],
        **changes,
    }


def user(**fields: Any) -> list[Any]:
    return [{"name": "u", "user": fields}]


def plugin(command: str | None, **more: Any) -> list[Any]:
    return user(exec={**PLUGIN, **({} if command is None else {"command": command}), **more})


async def refusal(path: Path, context: str | None = None) -> str:
    with pytest.raises(CredentialsError) as refused:
        async with connect(path, context):
            raise AssertionError("there is nothing to connect with")
    text = str(refused.value)
    assert text.startswith(f"kubeconfig {path}: ")
    return text.removeprefix(f"kubeconfig {path}: ")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"users": plugin("no-such-plugin")}, "its exec plugin no-such-plugin is not installed, or not on PATH"),
        (
            {"users": plugin("no-such-plugin", installHint="brew install it")},
            "its exec plugin no-such-plugin is not installed, or not on PATH; brew install it",
        ),
        ({"users": plugin("false")}, "its exec plugin false failed: process returned 1"),
        ({"users": plugin(None)}, "its exec plugin has no command"),
        ({"users": user(tokenFile="/nowhere/token")}, "/nowhere/token cannot be read: No such file or directory"),
        ({"users": []}, "context home names the user u, which is not there; it has none"),
        ({"clusters": []}, "context home names the cluster c, which is not there; it has none"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "cluster c has no server; write https://HOST:PORT"),
        ({"current-context": ""}, "has no current-context; name one with --context (home)"),
        ({"current-context": "hone"}, "has no context hone; did you mean home?"),
        ({"current-context": "away"}, "has no context away; it has home"),
    ],
)
async def test_kubeconfig_problem_is_named(changes: Mapping[str, Any], told: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document(**changes)))
    assert await refusal(path) == told


async def test_plugin_that_may_not_run_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "plugin.sh"
    script.write_text("#!/bin/sh\n")
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document(users=plugin(str(script)))))
    assert await refusal(path) == f"its exec plugin {script} may not be executed; chmod +x it"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not a kubeconfig; write one mapping with clusters, contexts and users"),
        (b"- 1\n", "is not a kubeconfig; write one mapping with clusters, contexts and users"),
        (b"{[", "is not YAML: line 2: did not find expected node content"),
        (b"\xff\xfe\xff", "is not UTF-8 text"),
    ],
)
async def test_invalid_kubeconfig_is_reported(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    assert await refusal(path) == told
