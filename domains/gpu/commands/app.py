"""The commands of `multisched gpu`. Parses arguments, gets documents from a running multisched or a dump, and prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from domains.gpu.commands import tables
from multisched.cli.options import Format, Output, fail
from multisched.cli.query_commands import SourceOptions, query_command

gpu_app = typer.Typer(
    name="gpu",
    help="Show the GPU cards of nodes, what pods hold of them, and how many more pods fit.",
    no_args_is_help=True,
)

Domain = Annotated[str | None, typer.Option(help="The domain; required if several domains use GPUs.")]
FitFile = Annotated[
    Path | None,
    typer.Option(
        "--fit", help="Show how many more pods of this manifest fit. Each is tried with all plugins; none is created."
    ),
]


@gpu_app.command("nodes")
@query_command(SourceOptions)
def nodes(options: SourceOptions, fit: FitFile = None, domain: Domain = None, output: Format = Output.TABLE) -> str:
    """List nodes with GPUs: mode, cards as bars, pods, unconfirmed holds, lock, fragments, and problems of their data."""
    return _answer(options, "nodes", _options(domain), fit, output.value, tables.nodes)


@gpu_app.command("node")
@query_command(SourceOptions)
def node(
    options: SourceOptions,
    name: Annotated[str, typer.Argument(help="The node.")],
    fit: FitFile = None,
    domain: Domain = None,
    output: Format = Output.TABLE,
) -> str:
    """Show each card of one node, and which pod holds how much of it."""
    return _answer(options, "node", {"name": name, **_options(domain)}, fit, output.value, tables.node)


@gpu_app.command("tide")
@query_command(SourceOptions)
def tide(options: SourceOptions, domain: Domain = None, output: Format = Output.TABLE) -> str:
    """Show how inference and training share the cards: current and predicted use, headroom, notices, and the costs of evictions."""
    from domains.gpu.commands.answers import tide_answer

    return tide_answer(options.source(), _options(domain), output.value)


def _options(domain: str | None) -> dict[str, str]:
    return {} if domain is None else {"domain": domain}


def _answer(
    options: SourceOptions, name: str, query: dict[str, str], fit: Path | None, output: str, render: Any
) -> str:
    from domains.gpu.commands.answers import answer

    if fit is not None and str(options.snapshot) == "-":
        fail("--fit reads the snapshot twice: write it to a file, and give that with --snapshot")
    return answer(options.source(), name, query, fit, output, render)
