"""Rules for a server on loopback without authentication: its own host names, pages that may call it, and its token.

Every user of the machine may read there. A request that changes something needs a token. The process creates it at
startup in a file that only its user can read; the command line of the same user finds it. Imported by both; standard
library only.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

TOKEN_BYTES: Final = 32
TOKEN_CHARS_MAX: Final = 256


class TokenFileError(Exception):
    """There is no token; the message names the file and the reason."""


def is_other_page(headers: Mapping[str, str], own_origin: str) -> bool:
    """Returns whether a browser makes the request for a page of another origin. Other programs send no origin."""
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site", "none")
    return origin not in (None, own_origin) or site not in ("none", "same-origin")


def token_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder for the tokens of this user's processes. It contains nothing else; other users may have
    created its parent.
    """
    home = Path(environment.get("HOME") or "/nonexistent")
    above = Path(environment.get("XDG_RUNTIME_DIR") or environment.get("XDG_CACHE_HOME") or home / ".cache")
    return above / "multisched" / "tokens"


@contextmanager
def own_token(folder: Path, port: int) -> Iterator[str]:
    """Creates a token, in a file that exists while the context is open. Raises TokenFileError."""
    path, token = _path(folder, port), secrets.token_urlsafe(TOKEN_BYTES)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_others(folder, folder.lstat())
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as file:
            file.write(token)
    except OSError as error:
        raise TokenFileError(f"{path}: {error.strerror}") from error
    try:
        yield token
    finally:
        path.unlink(missing_ok=True)


def read_token(folder: Path, port: int) -> str:
    """Returns the token of the process that listens on `port`. Raises TokenFileError."""
    path = _path(folder, port)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor) as file:
            _refuse_others(path, os.fstat(descriptor))
            return file.read(TOKEN_CHARS_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _path(folder: Path, port: int) -> Path:
    return folder / f"token-{port}"


def _refuse_others(path: Path, found: os.stat_result) -> None:
    """Raises TokenFileError if other users own the file, or may read or replace it."""
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or stat.S_ISLNK(found.st_mode):
        raise TokenFileError(f"{path}: other users may read or replace it; remove it, or chmod go= it")
