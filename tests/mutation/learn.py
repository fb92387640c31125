"""Which test executes which line: learned once for a state of the program, and anew for test files that have changed since.

Owns the folder `.mutation` (not under version control).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from tests.mutation.mutants import ROOT
from tests.mutation.reach import FOLDER_VARIABLE, Reach

FOLDER: Final = ROOT / ".mutation"
TESTS: Final = ("tests/unit", "tests/conformance")
PROFILE: Final = "test"
"""Of hypothesis: fewer examples make the tests weaker, never stronger."""
_STAMP: Final = "files.json"


def learned(jobs: int) -> Reach:
    """Up to date. Takes as long as the tests do."""
    digests = _digests()
    known = _known()
    changed = sorted(file for file, digest in digests.items() if known.get(file) != digest)
    if any(not _is_test_file(file) for file in [*changed, *(known.keys() - digests.keys())]):
        shutil.rmtree(FOLDER, ignore_errors=True)
        changed = list(TESTS)
    if changed:
        print(f"learning what {', '.join(changed)} execute", file=sys.stderr)
        _learn(changed, jobs)
        (FOLDER / _STAMP).write_bytes(msgspec.json.encode(digests))
    return Reach.read(_folders(), digests)


def _learn(what: list[str], jobs: int) -> None:
    folder = FOLDER / f"part-{len(_folders()):04}"
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.mutation.reach", f"--hypothesis-profile={PROFILE}"]
    command = [sys.executable, "-m", "pytest", *options, "-n", str(jobs), *what]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, FOLDER_VARIABLE: str(folder)}, stdout=sys.stderr, check=False
    )
    if ended.returncode not in (0, 1):  # a test that fails tells nothing about mutants and is left out
        shutil.rmtree(folder, ignore_errors=True)
        raise SystemExit(f"pytest ended with {ended.returncode}")


def _folders() -> list[Path]:
    """Of what was learned, the oldest first."""
    return sorted(FOLDER.glob("part-*"))


def _known() -> dict[str, str]:
    """File -> digest, as they were when last learned from."""
    stamp = FOLDER / _STAMP
    return msgspec.json.decode(stamp.read_bytes(), type=dict[str, str]) if stamp.is_file() else {}


def _is_test_file(file: str) -> bool:
    return file.startswith(TESTS) and Path(file).name.startswith("test_")


def _digests() -> dict[str, str]:
    """Of whatever tests may hang on: the program, the tests and what they share."""
    folders = ["multisched", "domains", "config", "deploy", *TESTS, "tests/conftest.py", "pyproject.toml"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    files = sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())
    return {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in files}
