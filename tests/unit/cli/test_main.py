"""`run` starts without typer, and does what it does with typer."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from multisched.cli import run as cli_run
from multisched.cli.commands import app
from multisched.cli.main import VALUES, arguments_of_run
from tests.unit.cli.test_cli import ROOT
from tests.unit.tls.test_contexts import an_authority

GOOD = [
    "run",
    "run --dry-run",
    "run --port 0",
    "run --port=65535 --context of/mine --identity a",
    "run --config {file} --kubeconfig {none}/kubeconfig",
    "run --log-level debug --log-format json",
    "run --identity 'a b' --dry-run",
    "run --identity=a=b",
]


def given_by_typer(line: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments with which typer calls `run`, without its defaults."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli_run, "run", lambda **arguments: seen.update(arguments))
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    return {name: value for name, value in seen.items() if value is not None and value is not False}


@pytest.mark.parametrize("line", GOOD)
def test_run_gets_the_same_arguments_as_through_typer(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.touch()
    words = [word.format(file=file, none=tmp_path) for word in shlex.split(line)]
    read = arguments_of_run(words)
    assert read is not None
    assert read == given_by_typer(words, monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "version",
        "--version",
        "--context a run",
        "run --help",
        "run -h",
        "run here",
        "run --",
        "run --unknown 1",
        "run --log_level debug",
        "run --dry-run=true",
        "run --port",
        "run --port -1",
        "run --port 65536",
        "run --port ٣",
        "run --port 1 --port 2",
        "run --log-level warn",
        "run --log-format auto",
        "run --identity ''",
        "run --context --dry-run",
        "run --config {folder}",
    ],
)
def test_typer_handles_help_and_errors(line: str, tmp_path: Path) -> None:
    assert arguments_of_run([word.format(folder=tmp_path) for word in shlex.split(line)]) is None


def test_every_run_option_is_parsed() -> None:
    (command,) = (found for name, found in get_command(app).commands.items() if name == "run")  # type: ignore[attr-defined]
    options = {name for one in command.params for name in one.opts if name not in ("--help", "-h")}
    assert options == {*VALUES, "--dry-run"}


def test_run_reads_no_ca_bundle_at_start(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(an_authority().certificate)
    (tmp_path / "01234567.0").symlink_to(bundle)
    code = (
        "import ssl, sys\nfrom multisched.cli.main import main\n"
        "sys.argv = ['multisched', 'run', '--config', '/none']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code)\n"
        "from aiohttp import connector\nprint(connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'])\n"
        "print(ssl.create_default_context().cert_store_stats()['x509'])"
    )
    system = {"SSL_CERT_FILE": str(bundle), "SSL_CERT_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | system, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "0", "1"]
