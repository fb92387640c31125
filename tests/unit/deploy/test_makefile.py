"""What `make demo` runs and installs, and what it prints besides."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECIPES = (ROOT / "Makefile").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository in a path with a space, whose venv is made and needs no download."""
    root = tmp_path / "a folder"
    (root / "multisched" / "cli").mkdir(parents=True)
    (root / "multisched" / "cli" / "main.py").write_text(
        "import json, sys\ndef main(): print(json.dumps(sys.argv[1:]))\n"
    )
    (root / "deploy").mkdir()
    (root / "deploy" / "requirements.txt").touch()
    (root / "Makefile").write_text(RECIPES)
    return root


@pytest.mark.slow
def test_make_demo_prints_only_output_of_the_demo(folder: Path) -> None:
    """Also the first time, when it installs; and without what only tests need: their requirements are not there."""
    command = ["make", "--no-print-directory", "demo", "ARGS=--once -o json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    for _ in range(2):
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout == '["demo", "--once", "-o", "json"]\n'
    assert done.stderr == ""
