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
    domain: Annotated[
        str | None, typer.Option(help="The domain; required if several domains have DeadlineSort.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of waiting pods, and of owners. Default: 200.")
    ] = None,
    output: Format = Output.TABLE,
) -> str:
    """Show serverless units, waiting jobs, predicted starts, deadlines at risk, and the run times of each owner."""
    from domains.job.commands.answers import answer

    given = {"domain": domain, "limit": limit}
    return answer(options.source(), {name: str(one) for name, one in given.items() if one is not None}, output.value)
