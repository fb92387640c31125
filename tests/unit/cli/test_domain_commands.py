"""Commands that domains bring: found by name, imported by nobody who does not ask for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from multisched.cli.commands import app
from multisched.cli.domain_commands import GROUP
from tests.unit.cli.test_cli import call, loaded_after

TEAMS = """\
import typer

from multisched.cli.query_commands import SourceOptions, query_command

app = typer.Typer(help="Who has which nodes.", no_args_is_help=True)


@app.command("list")
@query_command(SourceOptions)
def listed(whom: SourceOptions, team: str = "all") -> str:
    return f"{team} at {whom.running().url}"
"""


def installed(folder: Path, **commands: str) -> None:
    """A package in this folder, as pip leaves it, with these entry points."""
    metadata = folder / "teams-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: teams\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "\n".join([f"[{GROUP}]", *(f"{name} = {where}" for name, where in commands.items())])
    )
    (folder / "teams_commands.py").write_text(TEAMS)
    (folder / "teams_broken.py").write_text("raise RuntimeError('half installed')\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("teams_commands", "teams_broken"):
        sys.modules.pop(name, None)


def invoked(*arguments: str) -> str:
    return f"from typer.testing import CliRunner\nimport multisched.cli.commands as m\nCliRunner().invoke(m.app, {arguments!r})"


def test_built_in_command_imports_no_domain() -> None:
    assert not {name for name in loaded_after(invoked("version")) if name.partition(".")[0] == "domains"}


def made_for(*arguments: str) -> set[str]:
    """The commands that exist once this one has run."""
    commands: Any = typer.main.get_command(app)
    with pytest.raises(SystemExit):
        commands.main(arguments)
    return set(commands.commands)


def test_run_creates_no_other_command() -> None:
    assert made_for("run", "--help") == {"run", "version"}
    assert made_for("plugins", "--help") >= {"run", "plugins", "explain", "demo"}


@pytest.mark.parametrize("arguments", [("--help",), ("forecast", "--help")])
def test_help_imports_commands_without_their_implementation(arguments: tuple[str, ...]) -> None:
    loaded = loaded_after(invoked(*arguments))
    assert "domains.forecast.commands.app" in loaded
    assert not loaded & {"numpy", "aiohttp", "anyio", "urllib.request", "domains.forecast.profile"}


def test_installed_package_adds_a_command(folder: Path) -> None:
    installed(folder, teams="teams_commands:app")
    code, out, _ = call("--help")
    assert (code, "Who has which nodes." in out, "forecast" in out) == (0, True, True)
    assert call("teams", "list", "--team", "red", "--server", "http://h:1") == (0, "red at http://h:1\n", "")
    assert "Did you mean 'teams'?" in call("taems")[2]


def test_unimportable_package_does_not_block_other_commands(folder: Path) -> None:
    installed(folder, teams="teams_commands:app", torn="teams_broken:app", odd="teams_commands:TEAM", plain="sys:path")
    code, out, err = call("--help")
    assert (code, "teams" in out, "torn" in out) == (0, True, False)
    assert "command torn (teams_broken:app) is left out: RuntimeError: half installed" in err
    assert "command odd (teams_commands:TEAM) is left out: AttributeError" in err
    assert "command plain (sys:path) is left out: it is not a typer.Typer" in err
    assert call("torn")[0] == 2


def test_built_in_command_names_cannot_be_overridden(folder: Path) -> None:
    installed(folder, version="teams_commands:app", forecast="teams_commands:app")
    assert call("version")[1].startswith("multisched ")
    assert "services" in call("forecast", "--help")[1]
