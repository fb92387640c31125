"""Commands that are loaded on demand: ours except `run`, and those of domains.

A domain provides a `typer.Typer` under a name, which is imported when it is used. Built-in domains name theirs in
`domains.COMMANDS`; other domains use entry points of the group `multisched.commands`. A domain builds its commands with
`cli.query_commands`, `cli.options`, `cli.views` and `observe.tables`; nothing here depends on a domain.
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
"""Group of entry points: the name of the command, and where its `typer.Typer` is."""


on_demand = typer.Typer()
"""Our own commands except `run`, which does not load them: loading their options takes 35 ms."""


_CHOICE: Final = re.compile(r"Value error, '(.*)' is not one of ((?:'[^']*'(?:, )?)+)\.")
"""Typer's message, from pydantic, for a value that is not a choice of its option."""


def refused_choice(message: str) -> str:
    """Returns typer's message about an invalid choice with the choice that was probably meant; other messages unchanged."""
    found = _CHOICE.fullmatch(message)
    if found is None:
        return message
    near = did_you_mean(found[1], re.findall(r"'([^']*)'", found[2]), "")
    return f"'{found[1]}' is not one of {found[2]}{f' ({near})' if near else ''}."


class CommandsOfAll(TyperGroup):
    """Our own commands, and those of domains. Our own are looked up first, without loading any domain."""

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
        """Loads the command of this name; all commands if there is none, because the name may be misspelt."""
        shipped = {one.name: one for one in _shipped()}
        wanted = [shipped[name]] if name in shipped else [*shipped.values(), *entry_points(group=GROUP)]
        for one in wanted:
            if one.name not in self.commands and (app := _loaded(one)) is not None:
                group = get_group(app)
                group.name = one.name
                self.add_command(group)


def _loaded(entry: EntryPoint) -> typer.Typer | None:
    """Returns None and prints the reason if the entry point provides no command: our own commands still work."""
    try:
        found = entry.load()
    except Exception as error:  # noqa: BLE001 - code of others ends here
        why = f"{type(error).__name__}: {error}"
    else:
        if isinstance(found, typer.Typer):
            return found
        why = "it is not a typer.Typer"
    show(f"multisched: command {entry.name} ({entry.value}) is left out: {why}", to_errors=True)
    return None


def _shipped() -> Iterator[EntryPoint]:
    for name, where in importlib.import_module("domains").COMMANDS.items():
        yield EntryPoint(name, where, GROUP)
