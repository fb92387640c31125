"""Copies of the repository in which mutmut, and mutated programs, run: the working tree itself is never changed.

Owns the folder `.mutation` (not under version control). `tree` is what mutmut works on and keeps what it has learned
(which test calls which function); it is begun anew when a file of the program or of its tests has changed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".mutation"
_STAMP: Final = ".stamp"


def tracked() -> list[Path]:
    """Files under version control, and new ones that are not ignored, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    return [path for name in listed.split(b"\0") if name and (ROOT / (path := Path(name.decode()))).is_file()]


def fresh_copy(name: str) -> tuple[Path, bool]:
    """The folder of that name with the files as they are now; True if it had to be begun anew."""
    files = tracked()
    stamp = _fingerprint(files)
    folder = FOLDER / name
    if (folder / _STAMP).is_file() and (folder / _STAMP).read_text() == stamp:
        return folder, False
    shutil.rmtree(folder, ignore_errors=True)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, folder / file)
    (folder / _STAMP).write_text(stamp)
    return folder, True


def _fingerprint(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file).encode() + b"\0" + (ROOT / file).read_bytes())
    return digest.hexdigest()
