"""The domains that ship, one folder each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, str]] = {
    "forecast": "domains.forecast.commands.app:forecast_app",
    "gpu": "domains.gpu.commands.app:gpu_app",
    "jobs": "domains.job.commands.app:jobs_app",
}
"""Command -> where its `typer.Typer` is, as in an entry point; imported when it is used (`multisched.cli.domain_commands`)."""

SIMULATIONS: Final[Mapping[str, str]] = {
    "forecast": "domains.forecast.simulation.contribution:SIMULATION",
    "gpu": "domains.gpu.simulation.contribution:SIMULATION",
    "job": "domains.job.simulation.contribution:SIMULATION",
}
"""Domain -> where its `Contribution` to `multisched simulate` is; imported when a scenario is read (`multisched.simulate.contribution`)."""
