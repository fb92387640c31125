"""The data source of a forecast command."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multisched.cli.query_commands import Source


@dataclass(frozen=True, slots=True)
class QuerySource:
    """The data source of a command: a running multisched, a dump, or a profiles file."""

    source: Source | Path
    """A path names a profiles file."""
    now: datetime
    domain: str = ""
