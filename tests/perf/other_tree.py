"""Another commit of this repository in a temporary folder, for benches that compare with it (`--against REV`)."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parents[2]


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


def _git(*arguments: str) -> None:
    subprocess.run(("git", *arguments), cwd=HERE, check=True)
