"""The commands of `multisched forecast`. Reads arguments, then asks and prints by `cli_forecast` and `cli_forecast_tables`.

Every command takes the same options that say whom to ask: a running multisched, a dump of a cluster with the configuration to look
at it with, or a file of profiles, which knows services only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from multisched.cli.options import (
    DEFAULT_SERVER,
    CaFile,
    ConfigFile,
    Context,
    Format,
    Insecure,
    Output,
    ServerUrl,
    Snapshot,
    TokenFile,
    TokenKubeconfig,
    answered,
    fail,
    show,
    source_of,
)
from multisched.config.options import ExitCode

if TYPE_CHECKING:
    from multisched.cli.forecast import Asked

forecast_app = typer.Typer(
    name="forecast", help="What services use and nodes carry over the week, as learned.", no_args_is_help=True
)


class ReportOutput(Enum):
    """How the report is told."""

    HTML = "html"
    JSON = "json"


ProfilesFile = Annotated[
    Path | None,
    typer.Option(
        "--profiles",
        help="Ask no server but this file, the profilesFile of PeakForecast; it knows no nodes.",
        envvar="MULTISCHED_PROFILES",
    ),
]
Domain = Annotated[str | None, typer.Option(help="Whose forecast, where several domains have one.")]
Limit = Annotated[int, typer.Option(min=0, max=100_000, help="Rows of the table; json and yaml have all.")]


def _whom(
    profiles: ProfilesFile = None,
    snapshot: Snapshot = None,
    config: ConfigFile = None,
    server: ServerUrl = DEFAULT_SERVER,
    domain: Domain = None,
    kubeconfig: TokenKubeconfig = None,
    context: Context = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    insecure_skip_tls_verify: Insecure = False,
) -> Asked:
    """Whom to ask, by the options that all commands share."""
    from multisched.cli import forecast
    from multisched.cli import server as cli_server

    now = datetime.now(UTC)
    if profiles is not None:
        if snapshot is not None or config is not None:
            fail("--profiles goes without --snapshot and --config: the file is all that is asked", ExitCode.USAGE)
        return forecast.Asked(profiles, now)
    asked = cli_server.Server(server, kubeconfig, context, token_file, ca_file, not insecure_skip_tls_verify)
    return forecast.Asked(source_of(snapshot, config, asked), now, domain or "")


def _asking(command: Callable[..., str]) -> Callable[..., None]:
    """The command with the options of `_whom` besides its own; what it returns is printed."""
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = list(inspect.signature(_whom).parameters.values())

    @wraps(command)
    def run(invocation: typer.Context, **given: Any) -> None:
        _settle(invocation, given)
        with answered():
            asked = _whom(**{one.name: given.pop(one.name) for one in shared})
            show(command(asked, **given))

    hints = {name: hint for one in (_whom, command) for name, hint in _hints(one).items()}
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in (*own, *shared)
    ]
    parameters.append(inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _settle(invocation: typer.Context, given: dict[str, Any]) -> None:
    """Whom the command line names goes before MULTISCHED_PROFILES; it may not name both."""
    sources = {name: invocation.get_parameter_source(name) for name in ("profiles", "server", "snapshot")}
    said = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if {"profiles", "server"} <= said:
        fail("--profiles goes without --server: the file is all that is asked", ExitCode.USAGE)
    if said and "profiles" not in said:
        given["profiles"] = None


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    return get_type_hints(function, {**globals(), "Asked": object}, include_extras=True)


@forecast_app.command("services")
@_asking
def services(asked: Asked, output: Format = Output.TABLE) -> str:
    """List services with their peaks, and what is known of how good the profiles are."""
    from multisched.cli import forecast

    return forecast.services(asked, output.value)


@forecast_app.command("service")
@_asking
def service(
    asked: Asked,
    name: Annotated[str, typer.Argument(help="As `forecast services` lists it.")],
    output: Format = Output.TABLE,
) -> str:
    """Plot the week of one service."""
    from multisched.cli import forecast

    return forecast.service(asked, name, output.value)


@forecast_app.command("nodes")
@_asking
def nodes(asked: Asked, limit: Limit = 100, output: Format = Output.TABLE) -> str:
    """List nodes by their predicted peak, the fullest first; -o wide shows every dimension."""
    from multisched.cli import forecast

    return forecast.nodes(asked, limit, output.value)


@forecast_app.command("node")
@_asking
def node(
    asked: Asked,
    name: Annotated[str, typer.Argument(help="The node.")],
    limit: Limit = 30,
    output: Format = Output.TABLE,
) -> str:
    """Plot the week of one node; list its pods by their share of its peak, and what if each left."""
    from multisched.cli import forecast

    return forecast.node(asked, name, limit, output.value)


@forecast_app.command("at")
@_asking
def at(
    asked: Asked,
    moment: Annotated[str, typer.Argument(help='"Tue 20:00", or "20:00" for the busiest of all days.')],
    limit: Limit = 100,
    output: Format = Output.TABLE,
) -> str:
    """Show what each service uses, and each node carries, at one time of the week."""
    from multisched.cli import forecast

    return forecast.at(asked, moment, limit, output.value)


@forecast_app.command("backtest")
@_asking
def backtest(asked: Asked, limit: Limit = 50, output: Format = Output.TABLE) -> str:
    """Say how each kind of profile would have foretold the last days, and why which was chosen; worst first."""
    from multisched.cli import forecast

    return forecast.backtest(asked, limit, output.value)


@forecast_app.command("report")
@_asking
def report(
    asked: Asked,
    usage: Annotated[
        list[Path] | None,
        typer.Option(help="Draw this history (CSV: timestamp, service or pod, dimension, value) beside the profiles."),
    ] = None,
    output: Annotated[ReportOutput, typer.Option("--output", "-o", help="How to tell it.")] = ReportOutput.HTML,
) -> str:
    """Write one page with history, band and peak of every service, a heat map of the nodes, and what-if."""
    from multisched.cli import forecast

    return forecast.report(asked, usage or [], output.value)
