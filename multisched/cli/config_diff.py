"""`multisched config diff`: compares a file with the configuration in force in a running multisched."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
import typer

from multisched.cli.options import show as show_text
from multisched.cli.server import Server, answer
from multisched.config.changes import Change, changes, flatten
from multisched.config.options import ExitCode
from multisched.config.schema import Configuration
from multisched.observe.configuration_view import CONFIGURATION_PATH, ConfigurationView, decode_configuration
from multisched.observe.tables import as_document, as_table

VALUE_CHARS_MAX: Final = 60
"""Limit of a value in the table; `-o wide` shows all of it."""
SAME_CHARS: Final = 15
"""Characters shown before the first difference of two values."""


def show(server: Server, wanted: Configuration | None, output: str) -> str:
    """Returns the differences. `wanted`: None for the file that the program follows. Exits with 1 if there are any."""
    view = answer(server, CONFIGURATION_PATH, decode_configuration)
    if wanted is not None:
        found = changes(view.settings, flatten(wanted))
    else:
        found = [Change(one.path, one.before, one.after, one.restart) for one in view.waiting]
    problems = view.problems if wanted is None else ()
    if output in ("json", "yaml"):
        text = as_document({"changes": msgspec.to_builtins(found), "problems": list(problems)}, output)
    else:
        text = "\n".join(lines(view, found, problems, is_own_file=wanted is None, is_wide=output == "wide"))
    if found or problems:
        show_text(text)
        raise typer.Exit(int(ExitCode.PROBLEM))
    return text


def lines(
    view: ConfigurationView, found: list[Change], problems: tuple[str, ...], *, is_own_file: bool, is_wide: bool
) -> Iterator[str]:
    """Yields the lines of the text output."""
    if view.problems:
        since = datetime.fromtimestamp(view.since_s, UTC).isoformat(timespec="seconds")
        whose = "" if is_own_file else ", which the program follows,"
        yield f"{view.file}{whose} was rejected; its previous content is in force, since {since}"
        yield from problems
    elif is_own_file:
        yield f"the program follows {view.file}" if view.file else "the program uses the defaults, without a file"
    is_former = is_own_file and bool(view.problems)
    if found:
        if is_former:
            yield "of its previous content, this waits for a restart:"
        rows = [(one.path, *(cell or "-" for cell in _values(one, is_wide=is_wide)), _when(one)) for one in found]
        yield as_table(
            ("setting", "in force", "previous value" if is_former else "file", "applies"), rows, is_wide=is_wide
        )
    elif not problems:
        yield "no difference"
    if view.restart_command and any(one.restart for one in found):
        yield f"restart it with: {view.restart_command}"


def _values(change: Change, *, is_wide: bool) -> tuple[str, str]:
    """Returns the value in force and the one in the file: of a long value the piece around the first difference."""
    both = change.before, change.after
    if is_wide or max(map(len, both)) <= VALUE_CHARS_MAX:
        return both
    pairs = enumerate(zip(*both, strict=False))
    differ_at = next((at for at, (before, after) in pairs if before != after), min(map(len, both)))
    start = max(0, differ_at - SAME_CHARS)
    return _piece(change.before, start), _piece(change.after, start)


def _piece(value: str, start: int) -> str:
    """Returns at most VALUE_CHARS_MAX characters of the value, with `…` where text is left out."""
    lead = "…" if 0 < start < len(value) else ""
    rest = value[start:] if lead else value
    room = VALUE_CHARS_MAX - len(lead)
    return lead + (rest if len(rest) <= room else f"{rest[: room - 1]}…")


def _when(change: Change) -> str:
    return f"after a restart: {change.restart}" if change.restart else "at once"
