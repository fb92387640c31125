"""This tree and another commit of it in temporary folders, for benches that compare them (`--against REV`)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parents[2]
PACKAGES: Final = ("multisched", "domains")


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Yields a folder with the files of that commit; removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-against-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


@contextmanager
def copied() -> Iterator[Path]:
    """Yields a folder with the packages of this tree, so that both trees of a comparison lie in the same place; removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-here-") as folder:
        tree = Path(folder) / "tree"
        for package in PACKAGES:
            shutil.copytree(HERE / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
        yield tree


def _git(*arguments: str) -> None:
    subprocess.run(("git", *arguments), cwd=HERE, check=True)
