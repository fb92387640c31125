"""Whom a command of the forecast asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multisched.cli.asking import Source


@dataclass(frozen=True, slots=True)
class Asked:
    """A running multisched, a dump, or a file of profiles."""

    source: Source | Path
    """A path: of a profiles file."""
    now: datetime
    domain: str = ""
