"""docs/quotas.md: its files are good, and what it shows is what the commands print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from multisched.cli.commands import app
from tests.unit.whatif.quota_clusters import namespace, pods

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = ROOT / "config" / "examples" / "quotas"
GUIDE: Final = (ROOT / "docs" / "quotas.md").read_text("utf-8")
BROKEN: Final = ("root.a\n        min: {cpu: 20", "root.a\n        min: {cpu: 30")


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 1), result.output
    return result.output.rstrip("\n")


def shown(command: str) -> str:
    """What the guide prints below a command."""
    (found,) = re.findall(
        rf"^```console(?: no-run)?\n\$ {re.escape(command)}\n(.*?)\n```$", GUIDE, re.MULTILINE | re.DOTALL
    )
    return str(found)


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text("utf-8"))
    return found


def replicas(number: int, running: int) -> Iterator[dict[str, Any]]:
    """Of one namespace, as its Deployment would make them."""
    template = document("nginx.yaml")["spec"]["template"]["spec"]
    for one in pods(f"namespace{number}", running, 5 - running):
        place = {"nodeName": "virtual"} if "nodeName" in one["spec"] else {}
        metadata = one["metadata"] | {"name": one["metadata"]["name"].replace("pod-", "nginx-")}
        yield one | {"metadata": metadata, "spec": template | place}


def dump(folder: Path, *running: int) -> str:
    teams = [namespace(f"namespace{number}") for number in range(1, 5)]
    every = [one for number, count in enumerate(running, 1) for one in replicas(number, count)]
    path = folder / "dump.json"
    path.write_text(json.dumps({"items": [document("node.yaml"), document("teams.yaml"), *teams, *every]}))
    return str(path)


def test_no_pod_is_evicted_if_each_team_stays_within_its_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command = ("quota", "lint", "config/examples/quotas/teams.yaml")
    assert "No pod would be evicted" in call(*command, "--snapshot", dump(tmp_path, 2, 2, 2, 2))


def test_problem_in_the_guide_equals_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (EXAMPLES / "teams.yaml").read_text("utf-8")
    assert BROKEN[0] in text
    Path("broken.yaml").write_text(text.replace(*BROKEN))
    assert call("quota", "lint", "broken.yaml", "--offline") == shown("multisched quota lint broken.yaml --offline")


def test_conversion_in_the_guide_equals_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    source, target = "config/examples/quotas/kueue.yaml", str(tmp_path / "tree.yaml")
    printed = shown(f"multisched quota convert {source} -o tree.yaml")
    assert call("quota", "convert", source, "-o", target) == printed
    assert call("quota", "lint", target, "--offline").endswith("0 problems, 0 warnings")


def test_leaf_in_the_guide_is_in_the_example_tree() -> None:
    (block,) = re.findall(r"^```yaml\n(- name: .*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (leaf,) = yaml.safe_load(block)
    assert leaf in document("teams.yaml")["spec"]["root"]["children"][0]["children"]
