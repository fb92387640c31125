"""The commands of `multisched forecast`. Parses arguments; `answers` gets and formats the documents.

All commands share the options that choose the data source: a running multisched, a dump of a cluster with a
configuration, or a profiles file, which contains services only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from domains.forecast.commands.asked import Asked
from multisched.cli.asking import SourceOptions, asking, with_options
from multisched.cli.options import Format, Output, fail

forecast_app = typer.Typer(
    name="forecast", help="Show predicted use of services and load of nodes over the week.", no_args_is_help=True
)


class ReportOutput(Enum):
    """The form of the report."""

    HTML = "html"
    JSON = "json"


ProfilesFile = Annotated[
    Path | None,
    typer.Option(
        "--profiles",
        help="Read this file, the profilesFile of PeakForecast, instead of asking a server; it contains no nodes.",
        envvar="MULTISCHED_PROFILES",
    ),
]
Domain = Annotated[str | None, typer.Option(help="The domain, if several have a forecast.")]
Limit = Annotated[int, typer.Option(min=0, max=100_000, help="Rows of the table; json and yaml have all.")]


@with_options(SourceOptions)
def _whom(
    options: SourceOptions, invocation: typer.Context, profiles: ProfilesFile = None, domain: Domain = None
) -> Asked:
    """Determines the data source from the shared options."""
    said = {name for name in ("profiles", "server", "snapshot") if _is_said(invocation, name)}
    if {"profiles", "server"} <= said:
        fail("--profiles cannot be combined with --server: only the file is read")
    if said and "profiles" not in said:
        profiles = None  # options of the command line override MULTISCHED_PROFILES
    now = datetime.now(UTC)
    if profiles is None:
        return Asked(options.source(), now, domain or "")
    if options.snapshot is not None or options.config is not None:
        fail("--profiles cannot be combined with --snapshot and --config: only the file is read")
    return Asked(profiles, now)


def _is_said(invocation: typer.Context, name: str) -> bool:
    source = invocation.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@forecast_app.command("services")
@asking(_whom)
def services(asked: Asked, output: Format = Output.TABLE) -> str:
    """List services with their peaks and the errors of their profiles."""
    from domains.forecast.commands import answers

    return answers.services(asked, output.value)


@forecast_app.command("service")
@asking(_whom)
def service(
    asked: Asked,
    name: Annotated[str, typer.Argument(help="As `forecast services` lists it.")],
    output: Format = Output.TABLE,
) -> str:
    """Plot the week of one service."""
    from domains.forecast.commands import answers

    return answers.service(asked, name, output.value)


@forecast_app.command("nodes")
@asking(_whom)
def nodes(asked: Asked, limit: Limit = 100, output: Format = Output.TABLE) -> str:
    """List nodes by their predicted peak, the fullest first; -o wide shows every dimension."""
    from domains.forecast.commands import answers

    return answers.nodes(asked, limit, output.value)


@forecast_app.command("node")
@asking(_whom)
def node(
    asked: Asked,
    name: Annotated[str, typer.Argument(help="The node.")],
    limit: Limit = 30,
    output: Format = Output.TABLE,
) -> str:
    """Plot the week of one node; list its pods by their share of its peak, and the peak without each."""
    from domains.forecast.commands import answers

    return answers.node(asked, name, limit, output.value)


@forecast_app.command("at")
@asking(_whom)
def at(
    asked: Asked,
    moment: Annotated[str, typer.Argument(help='"Tue 20:00", or "20:00" for the busiest of all days.')],
    limit: Limit = 100,
    output: Format = Output.TABLE,
) -> str:
    """Show the predicted use of services and load of nodes at one time of the week."""
    from domains.forecast.commands import answers

    return answers.at(asked, moment, limit, output.value)


@forecast_app.command("backtest")
@asking(_whom)
def backtest(asked: Asked, limit: Limit = 50, output: Format = Output.TABLE) -> str:
    """Show how well each kind of profile would have predicted the last days, and which was chosen and why; worst first."""
    from domains.forecast.commands import answers

    return answers.backtest(asked, limit, output.value)


@forecast_app.command("report")
@asking(_whom)
def report(
    asked: Asked,
    usage: Annotated[
        list[Path] | None,
        typer.Option(help="Draw this history (CSV: timestamp, service or pod, dimension, value) with the profiles."),
    ] = None,
    output: Annotated[ReportOutput, typer.Option("--output", "-o", help="Output format.")] = ReportOutput.HTML,
) -> str:
    """Write one page with history, band and peak of every service, a heat map of the nodes, and what-if."""
    from domains.forecast.commands import answers

    return answers.report(asked, usage or [], output.value)
