"""Output that cannot be written: a full disk, folders that are not there. Each ends with a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.test_cli import ROOT, call

FULL = Path("/dev/full")
"""Every write to it fails as on a full disk."""
CODE = "from multisched.cli.main import main; main()"


def started(*arguments: str, output: Path) -> subprocess.CompletedProcess[str]:
    with output.open("w") as file:
        return subprocess.run(
            [sys.executable, "-c", CODE, *arguments],
            cwd=ROOT, stdout=file, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=120, check=False,
        )  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [("--help",), ("version",), ("config", "default"), ("quota", "tree", "--snapshot", "{empty}")]
)
def test_full_disk_is_reported_in_one_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"items": []}')
    done = started(*(one.format(empty=empty) for one in arguments), output=FULL)
    told = "multisched: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize("arguments", [("cluster",), ("demo", "--once")])
def test_kubeconfig_in_a_missing_folder_is_refused_before_the_start(arguments: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "no" / "kubeconfig"
    code, out, err = call(*arguments, "--kubeconfig", str(target))
    assert (code, out) == (2, "")
    assert err == f"multisched: {target} cannot be written: No such file or directory; create the folder first\n"


def test_kubeconfig_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "kubeconfig"
    told = f"multisched: {target} cannot be written: Not a directory; name another --kubeconfig\n"
    assert call("cluster", "--kubeconfig", str(target)) == (2, "", told)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"kind: Stage\nspec: 3\n", "stage 1: Expected `object`, got `int` - at `$.spec`"),
        (b"{[", "not YAML: line 2: "),
        (b"!!int x", "not YAML: a value does not match its type"),
        (b"", "0 stages; write 1 to 256 documents of kind Stage"),
        (b"\xff\xfe\xff", "is not UTF-8 text; name a file of Stage documents"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_bad_stage_file_is_reported_in_one_sentence(content: bytes | None, told: str, tmp_path: Path) -> None:
    kubeconfig, stages = tmp_path / "kubeconfig", tmp_path / "stages.yaml"
    kubeconfig.write_text("{}")
    if content is not None:
        stages.write_bytes(content)
    code, out, err = call("kubelets", "--kubeconfig", str(kubeconfig), "--stages", str(stages))
    assert (code, out) == (2, "")
    assert err.startswith(f"multisched: {stages}")
    assert told in err


def test_missing_credential_plugin_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}
    document = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": command}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(document))
    told = f"multisched: kubeconfig {path}: its exec plugin no-such-plugin is not installed, or not on PATH\n"
    assert call("verify", "--kubeconfig", str(path)) == (3, "", told)
    assert call("queue", "--kubeconfig", str(path)) == (3, "", told)
