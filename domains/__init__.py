"""The domains that ship, one folder each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, str]] = {"forecast": "domains.forecast.commands.app:forecast_app"}
"""Command -> where its `typer.Typer` is, as in an entry point; imported when somebody asks for it (`multisched.cli.domain_commands`)."""
