"""The commands of `multisched quota`: their arguments, and what they print. Their work is imported when one of them is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multisched.cli.asking import with_options
from multisched.cli.cluster_options import ClusterOptions
from multisched.cli.driving import drive
from multisched.cli.options import Format, Output, answered, fail, refuse, show, write_whole
from multisched.config.options import ExitCode

quota_app = typer.Typer(name="quota", help="Look at elastic quotas, check them, convert them.", no_args_is_help=True)

Files = Annotated[
    list[Path], typer.Argument(help="Quota objects as YAML or JSON; - for standard input.", metavar="FILE...")
]
ConvertOutput = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        help="yaml or json to print, or the file to write.",
        metavar="yaml|json|FILE",
        autocompletion=lambda: ["yaml", "json"],
    ),
]


@quota_app.command("tree")
@with_options(ClusterOptions)
def tree(whom: ClusterOptions, output: Format = Output.TABLE) -> None:
    """Show the quotas in force: what each level is sure of, holds, borrows and lends."""

    async def look() -> int:
        from multisched.cli import quota_tree
        from multisched.plugins.quota.quota_source import QUOTA_KINDS
        from multisched.whatif.live_cluster import PODS, listed
        from multisched.whatif.quota_use import quota_use

        found = quota_use(await whom.snapshot_of((PODS, *map(listed, QUOTA_KINDS))))
        show(quota_tree.as_text(found, output.value))
        return ExitCode.PROBLEM if found.trouble else ExitCode.OK

    drive(look)


@quota_app.command("convert")
def convert(
    files: Files,
    output: ConvertOutput = "yaml",
    total: Annotated[
        list[str] | None,
        typer.Option(help="What the root has, where the API knows no root.", metavar="cpu=40,memory=40Gi"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if anything is not carried over.")] = False,
) -> None:
    """Turn quotas of ACK, Koordinator, scheduler-plugins, Kueue or Volcano into an ElasticQuotaTree."""
    from multisched.cli import quota_convert
    from multisched.config.document import ConfigError

    with answered():
        try:
            found = quota_convert.convert(quota_convert.read(files), quota_convert.total_of(total or ()))
        except ConfigError as error:
            refuse(error.problems)
    for line in found.loss_lines():
        show(line, to_errors=True)
    if found.document is None:
        for line in found.problem_lines():
            show(line, to_errors=True)
        fail("nothing is written: mend the above first", ExitCode.PROBLEM)
    text = quota_convert.as_json(found) if output == "json" else quota_convert.as_yaml(found)
    if output in ("yaml", "json"):
        typer.echo(text, nl=False)
    else:
        write_whole(Path(output), text, sources=files)
    if strict and found.losses:
        raise typer.Exit(int(ExitCode.PROBLEM))
