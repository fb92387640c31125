"""The command `multisched jobs`. Parses arguments, gets the document from a running multisched or a dump, and prints it."""

from __future__ import annotations

from typing import Annotated

import typer

from multisched.cli.options import Format, Output
from multisched.cli.query_commands import SourceOptions, query_command

jobs_app = typer.Typer(
    name="jobs", help="Show waiting jobs, predicted starts, deadlines at risk, run times, and serverless units."
)


@jobs_app.callback(invoke_without_command=True)
@query_command(SourceOptions)
def jobs(
    options: SourceOptions,
    domain: Annotated[str | None, typer.Option(help="The domain, if several have DeadlineSort.")] = None,
    output: Format = Output.TABLE,
) -> str:
    """Show serverless units, waiting jobs, predicted starts, deadlines at risk, and the run times of each owner."""
    from domains.job.commands.answers import answer

    return answer(options.source(), {} if domain is None else {"domain": domain}, output.value)
