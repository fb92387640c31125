"""The release before this one, as a tree of files: what an upgrade begins with and a rollback ends with.

It is the latest tag before HEAD, else the commit before HEAD: its own manifests and its own program, which run with the
libraries of this one.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


class NoHistoryError(RuntimeError):
    """The repository does not have the commit before."""


def release_before() -> str:
    """A tag, or a commit."""
    try:
        before = _git("rev-parse", "--verify", "HEAD^").strip()
    except subprocess.CalledProcessError as error:
        told = error.stderr.decode(errors="replace").strip()
        raise NoHistoryError(f"no commit before HEAD: {told}; fetch the history (git fetch --unshallow)") from error
    tags = _git("tag", "--merged", before, "--sort=-version:refname", "v[0-9]*").split()
    return tags[0] if tags else before


def extract(revision: str, folder: Path, repository: Path = ROOT) -> Path:
    """Puts the files of `revision` into `folder`."""
    archive = subprocess.run(["git", "archive", revision], cwd=repository, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout.decode()
