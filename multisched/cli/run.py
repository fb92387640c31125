"""`multisched run`: applies flags to the configuration file, sets up logging, and runs the program to its end.

All output of the process goes to its log, including errors of the configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from multisched import app as root
from multisched.cli.driving import drive
from multisched.config import loading
from multisched.config.document import ConfigError
from multisched.config.options import ConfigText, ExitCode, RefusedError, RunOptions, RunOverrides
from multisched.config.schema import Configuration, LoggingConfig
from multisched.observe.logging import LineWriter

logger = logging.getLogger("multisched")


def run(
    file: Path | None,
    *,
    kubeconfig: Path | None,
    context: str | None,
    identity: str | None,
    namespace: str,
    said: RunOverrides,
) -> NoReturn:
    """Schedules until SIGTERM, with the configuration in `file` and the flags applied to it. Exits."""
    text = _text(file, said)
    configuration = _configuration(text, said)
    name = identity or root.default_identity()
    options = RunOptions(configuration, name, namespace, kubeconfig, context, text, said)
    with _logged(configuration.logging) as log:
        drive(lambda: root.run(options, log), report=logger.error)


def _text(file: Path | None, overrides: RunOverrides) -> ConfigText | None:
    """Returns the file's content, which is read once here and followed from then on."""
    try:
        return None if file is None else ConfigText(file, loading.read_text(file))
    except ConfigError as error:
        _refuse(error.problems, overrides)


def _configuration(text: ConfigText | None, overrides: RunOverrides) -> Configuration:
    try:
        return overrides.over(loading.default() if text is None else loading.parse(text.text, str(text.path)))
    except ConfigError as error:
        _refuse(error.problems, overrides)
    except RefusedError as error:
        _refuse([error], overrides)


def _refuse(problems: Iterable[object], overrides: RunOverrides) -> NoReturn:
    with _logged(LoggingConfig(format=overrides.log_format or "auto")):
        for problem in problems:
            logger.error("%s", problem)
    raise typer.Exit(ExitCode.USAGE) from None


@contextmanager
def _logged(written: LoggingConfig) -> Iterator[LineWriter]:
    """Logs an unexpected error with its traceback, and ends the process with ExitCode.PROBLEM."""
    with root.logging_of(written) as log:
        try:
            yield log
        except typer.Exit:
            raise
        except Exception:
            logger.critical("ended by an unexpected error", exc_info=True)
            raise typer.Exit(ExitCode.PROBLEM) from None
