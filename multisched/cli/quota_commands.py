"""The commands of `multisched quota`: their arguments and output. Their work is imported when one of them is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multisched.cli.cluster_options import ClusterOptions
from multisched.cli.driving import drive
from multisched.cli.options import (
    NOT_STRICT,
    ConfigFile,
    Format,
    Output,
    answered,
    configuration_of,
    fail,
    refuse,
    show,
    write_whole,
)
from multisched.cli.query_commands import with_options
from multisched.config.options import ExitCode

if TYPE_CHECKING:
    from multisched.cli.quota_convert import QuotaFiles

quota_app = typer.Typer(name="quota", help="Show, check and convert elastic quotas.", no_args_is_help=True)

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
def tree(options: ClusterOptions, config: ConfigFile = None, output: Format = Output.TABLE) -> None:
    """Show the quotas in force: what each level is guaranteed, uses, borrows and lends."""
    configuration = configuration_of(config)

    async def look() -> int:
        from multisched.cli import quota_tree
        from multisched.cli.dump import buildable
        from multisched.plugins.quota.quota_source import QUOTA_KINDS
        from multisched.whatif.live_cluster import PODS, listed
        from multisched.whatif.quota_use import demands_of, enforcing_domains, quota_use

        with buildable():
            demands, domains = demands_of(configuration), enforcing_domains(configuration)
        nobody = f"no domain of {config or 'the default configuration'} has the plugin ElasticQuota in its profile"
        snapshot = await options.snapshot_of((PODS, *map(listed, QUOTA_KINDS)))
        found = quota_use(snapshot, demands, not_enforced="" if domains else nobody)
        show(quota_tree.as_text(found, output.value))
        return ExitCode.PROBLEM if found.trouble or found.not_enforced else ExitCode.OK

    drive(look)


@quota_app.command("lint")
@with_options(ClusterOptions)
def lint(
    options: ClusterOptions,
    files: Files,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check only the files, without reading a cluster.")
    ] = False,
    config: ConfigFile = None,
    output: Format = Output.TABLE,
) -> None:
    """Check quotas before they are applied, and show which pods would be evicted under them. Nothing is written."""
    configuration = configuration_of(config)
    source = _read(files)

    async def look() -> int:
        from multisched.cli import quota_lint
        from multisched.whatif.live_cluster import all_kinds

        known = None if offline else await options.snapshot_of(all_kinds())
        report = quota_lint.lint_files(source, known, configuration)
        show(quota_lint.as_text(report, output.value))
        return ExitCode.PROBLEM if report.found.problems else ExitCode.OK

    drive(look)


@quota_app.command("convert")
def convert(
    files: Files,
    output: ConvertOutput = "yaml",
    total: Annotated[
        list[str] | None,
        typer.Option(help="Capacity of the root, for APIs without a root quota.", metavar="cpu=40,memory=40Gi"),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail, and write nothing, if any setting cannot be converted.")
    ] = False,
) -> None:
    """Convert quotas of ACK, Koordinator, scheduler-plugins, Kueue or Volcano to an ElasticQuotaTree."""
    from multisched.cli import quota_convert

    source = _read(files)
    with answered():
        found = quota_convert.convert(source, quota_convert.total_of(total or ()))
    for line in found.loss_lines():
        show(line, to_errors=True)
    if found.document is None:
        for line in found.problem_lines():
            show(line, to_errors=True)
        fail("nothing is written: fix the problems above first", ExitCode.PROBLEM)
    if strict and found.losses:
        fail(NOT_STRICT, ExitCode.PROBLEM)
    text = quota_convert.as_json(found) if output == "json" else quota_convert.as_yaml(found)
    if output in ("yaml", "json"):
        typer.echo(text, nl=False)
    else:
        write_whole(Path(output), text, sources=files)


def _read(files: Sequence[Path]) -> QuotaFiles:
    """Returns quotas of one API; exits if they cannot be read."""
    from multisched.cli import quota_convert
    from multisched.config.document import ConfigError

    with answered():
        try:
            return quota_convert.read(files)
        except ConfigError as error:
            refuse(error.problems)
