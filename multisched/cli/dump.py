"""A dump of a cluster, as `kubectl get -o json` prints it: read by commands instead of querying a running multisched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from multisched.cli.options import QueryError
from multisched.config.options import DUMP_COMMAND
from multisched.model.wire import UNREADABLE

if TYPE_CHECKING:
    from multisched.config.schema import Configuration
    from multisched.whatif.sandbox import DumpedCluster

DUMP_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024


class Dump(msgspec.Struct, frozen=True):
    """A cluster as kubectl printed it, and the configuration to use with it."""

    path: Path
    """`-`: standard input."""
    configuration: Configuration
    now: datetime
    is_default: bool = False
    """True if no configuration was given, so the default one is used."""

    @property
    def hint(self) -> str:
        """Hint to append if the configuration lacks the needed data."""
        return "; give the configuration with --config: the default one has no history" if self.is_default else ""


def cluster_of(dump: Dump) -> DumpedCluster:
    """Returns the cluster in a file of `kubectl get -o json`. Raises QueryError."""
    from multisched.whatif.sandbox import DumpedCluster

    return DumpedCluster(items_of(dump.path), dump.now)


def items_of(path: Path) -> list[msgspec.Raw]:
    """Returns the objects in a file of `kubectl get -o json`. Raises QueryError."""
    body = read_file(path, DUMP_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=_List).items
    except UNREADABLE as error:
        message = f"{path} is not a list of objects ({error}); write one with {DUMP_COMMAND}"
        raise QueryError(message) from error


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


@contextmanager
def buildable() -> Iterator[None]:
    """Turns errors of plugins that cannot be built into an QueryError: the user must fix the configuration."""
    from multisched.framework.registry import PluginSetupError

    try:
        yield
    except PluginSetupError as error:
        raise QueryError(str(error)) from error


def read_file(path: Path, most: int) -> bytes:
    """Reads at most `most` bytes of a file, or of standard input (`-`). Raises QueryError."""
    try:
        if str(path) == "-":
            body = sys.stdin.buffer.read(most + 1)
        else:
            with path.open("rb") as file:
                body = file.read(most + 1)
    except OSError as error:
        raise QueryError(f"{path} cannot be read: {error.strerror}") from error
    if len(body) > most:
        raise QueryError(f"{path} has more than {most} bytes")
    return body
