"""The commands of `multisched gpu`. Parses arguments, gets documents from a running multisched or a dump, and prints them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domains.gpu.commands import tables
from multisched.cli.options import Format, Output, fail
from multisched.cli.query_commands import SourceOptions, query_command
from multisched.observe.tables import as_document

if TYPE_CHECKING:
    from multisched.framework.views import Document

gpu_app = typer.Typer(
    name="gpu",
    help="Show the GPU cards of nodes, what pods hold of them, and how many more pods fit.",
    no_args_is_help=True,
)

VIEW = "gpu"

Domain = Annotated[str | None, typer.Option(help="The domain, if several use GPUs.")]
FitFile = Annotated[
    Path | None,
    typer.Option(
        "--fit", help="Say how many more pods of this manifest fit: each is tried with all plugins, none is created."
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


def _options(domain: str | None) -> dict[str, str]:
    return {} if domain is None else {"domain": domain}


def _answer(
    options: SourceOptions, name: str, query: dict[str, str], fit: Path | None, output: str, render: Any
) -> str:
    from multisched.cli.views import document_of
    from multisched.framework.views import ViewQuery

    if fit is not None and str(options.snapshot) == "-":
        fail("--fit reads the snapshot twice: write it to a file, and give that with --snapshot")
    source = options.source()
    found = document_of(source, VIEW, ViewQuery(name, query), fields=("smallestUsualMilli",))
    if fit is not None:
        _add_fit(found, source, fit)
    if output in ("json", "yaml"):
        return as_document(found, output)
    text: str = render(found, is_wide=output == "wide")
    return text


def _add_fit(found: Document, source: Any, manifest: Path) -> None:
    """Adds how many pods of the manifest fit, to each node and in all."""
    from multisched.cli.explain import fitting_pods

    fitting = fitting_pods(source, manifest)
    shown = found["nodes"] if "nodes" in found else [found["node"]]
    for one in shown:
        one["fit"] = fitting.by_node.get(one["node"], 0)
    found["fit"] = {
        "pod": fitting.pod,
        "total": fitting.total,
        "isLimit": fitting.is_limit,
        "otherNodes": {
            name: count for name, count in fitting.by_node.items() if name not in {one["node"] for one in shown}
        },
        "nextMessage": fitting.message,
        "notes": list(fitting.notes),
    }
