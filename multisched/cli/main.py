"""The entry point `multisched`: prepares the process, and starts `run` without the library of the command line.

Importing typer and pydantic, and building the options, takes a quarter of the CPU time of a start. So this module reads a
correct command line of `run` itself. Everything else, `run --help` and errors included, is left to `commands`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, get_args

from multisched.config.options import INTERRUPTED, LogFormat, LogLevel
from multisched.shell.garbage import GC_YOUNG_STARTING_MAX, set_gc_thresholds

PORT_MAX: Final = 65535


def main() -> None:
    """The entry point `multisched`."""
    # numpy is imported by the commands only. Its BLAS, which nothing here uses, would start a thread per core that
    # spins between calls.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported modules are not garbage, and collecting during imports takes a tenth of the startup time.
    set_gc_thresholds(GC_YOUNG_STARTING_MAX)
    arguments = arguments_of_run(sys.argv[1:])
    if arguments is not None:
        _run(arguments)
    from multisched.cli.commands import app

    app()


def _run(arguments: Mapping[str, Any]) -> NoReturn:
    from multisched.tls.contexts import authorities_on_demand

    try:
        with authorities_on_demand():
            from multisched.cli.run import run

        run(**arguments)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def arguments_of_run(command_line: Sequence[str]) -> dict[str, Any] | None:
    """Returns the arguments of `run.run`; None for other commands, and for a command line that typer has to read."""
    if not command_line or command_line[0] != "run":
        return None
    found: dict[str, Any] = {}
    words = iter(command_line[1:])
    for word in words:
        option, is_joined, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if name in found or not option.startswith("--"):
            return None
        if word == "--dry-run":
            found[name] = True
        elif option in VALUES:
            try:
                found[name] = VALUES[option](value if is_joined else next(words, ""))
            except (ValueError, OSError):
                return None
        else:
            return None
    return found


def _text(value: str) -> str:
    if not value or value.startswith("-"):
        raise ValueError
    return value


def _file(value: str) -> Path:
    path = Path(_text(value))
    if path.exists() and not (path.is_file() and os.access(path, os.R_OK)):
        raise ValueError
    return path


def _port(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and int(value) <= PORT_MAX):
        raise ValueError
    return int(value)


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    return lambda value: choices[choices.index(value)]


VALUES: Final[Mapping[str, Callable[[str], Any]]] = {
    "--kubeconfig": _file,
    "--context": _text,
    "--config": _file,
    "--identity": _text,
    "--log-level": _one_of(get_args(LogLevel)),
    "--log-format": _one_of(get_args(LogFormat)),
    "--port": _port,
}
"""Options of `run` with a value -> what reads it. Raises ValueError for a value that typer has to judge."""
