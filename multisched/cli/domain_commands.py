"""Commands that are made when somebody asks for one: ours but `run`, and those that domains bring.

A domain brings a `typer.Typer` under a name, which is imported then.
Those of the domains that ship are named in `domains.COMMANDS`, those of others are entry points of the group `multisched.commands`.
A domain makes its commands with `cli.asking`, `cli.options`, `cli.views` and `observe.tables`; nothing here knows any of them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from multisched.cli.options import output_written, show
from multisched.model.near_names import did_you_mean

GROUP: Final = "multisched.commands"
"""Of entry points: the name of the command, and where its `typer.Typer` is."""


on_demand = typer.Typer()
"""Our own commands but `run`, which waits for none of them: reading what they all take is 35 ms."""


_CHOICE: Final = re.compile(r"Value error, '(.*)' is not one of ((?:'[^']*'(?:, )?)+)\.")
"""What pydantic and typer make of a value that is none of an option's choices."""


def refused_choice(message: str) -> str:
    """Returns typer's words about a value that is no choice of its option with the choice that was probably meant, others unchanged."""
    found = _CHOICE.fullmatch(message)
    if found is None:
        return message
    near = did_you_mean(found[1], re.findall(r"'([^']*)'", found[2]), "")
    return f"'{found[1]}' is not one of {found[2]}{f' ({near})' if near else ''}."


class CommandsOfAll(TyperGroup):
    """Our own commands, and those of domains. Our own go first, and ask for no domain."""

    _has_own = False

    def main(self, *args: Any, **more: Any) -> Any:
        with output_written():
            return super().main(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = refused_choice(error.message)
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            self._bring_own()
        if cmd_name not in self.commands:
            self._bring(cmd_name)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        self._bring_own()
        self._bring()
        return super().list_commands(ctx)

    def _bring_own(self) -> None:
        if not self._has_own:
            self.commands.update(get_group(on_demand).commands)
            self._has_own = True

    def _bring(self, name: str = "") -> None:
        """The command of this name; all there are, where it is none: what is asked for may be misspelt."""
        shipped = {one.name: one for one in _shipped()}
        wanted = [shipped[name]] if name in shipped else [*shipped.values(), *entry_points(group=GROUP)]
        for one in wanted:
            if one.name not in self.commands and (app := _loaded(one)) is not None:
                group = get_group(app)
                group.name = one.name
                self.add_command(group)


def _loaded(entry: EntryPoint) -> typer.Typer | None:
    """None, and a line of why, for what is no command: our own go on without it."""
    try:
        found = entry.load()
    except Exception as error:  # noqa: BLE001 - code of others ends here
        why = f"{type(error).__name__}: {error}"
    else:
        if isinstance(found, typer.Typer):
            return found
        why = "it is no typer.Typer"
    show(f"multisched: command {entry.name} ({entry.value}) is left out: {why}", to_errors=True)
    return None


def _shipped() -> Iterator[EntryPoint]:
    for name, where in importlib.import_module("domains").COMMANDS.items():
        yield EntryPoint(name, where, GROUP)
