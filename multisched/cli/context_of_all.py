"""`multisched --context NAME COMMAND …`: the context may precede the command, as in kubectl."""

from __future__ import annotations

from typing import Any, Final

from multisched.cli.options import fail

OPTION: Final = "context"


def give_context(ctx: Any, context: str) -> None:
    """Sets the default context of the requested command. `ctx`: of the whole program; typer has no public type for it."""
    name = ctx.invoked_subcommand
    command = ctx.command.get_command(ctx, name)
    if command is None:
        return  # typer reports the unknown command
    defaults = _defaults(ctx, command, context)
    if not defaults:
        fail(f"--context: {name} uses no cluster; leave it out")
    ctx.default_map = {name: defaults}


def _defaults(ctx: Any, command: Any, context: str) -> dict[str, Any]:
    """Returns the defaults by option and by subcommand; empty if none of them takes a context."""
    found: dict[str, Any] = {OPTION: context} if any(one.name == OPTION for one in command.params) else {}
    for name in command.list_commands(ctx) if hasattr(command, "list_commands") else ():
        below = _defaults(ctx, command.get_command(ctx, name), context)
        if below:
            found[name] = below
    return found
