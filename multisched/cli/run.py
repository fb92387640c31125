"""`multisched run`: applies flags to the configuration file, sets up logging, and runs the program to its end.

All output of the process goes to its log, including errors of the configuration.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from multisched import app as root
from multisched.cli.driving import drive
from multisched.config import loading
from multisched.config.document import ConfigError
from multisched.config.options import (
    ConfigText,
    ExitCode,
    LogFormat,
    LogLevel,
    RefusedError,
    RunOptions,
    RunOverrides,
)
from multisched.config.schema import Configuration, LoggingConfig
from multisched.observe.logging import LineWriter

logger = logging.getLogger("multisched")

SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_NAMESPACE: Final = "kube-system"


def run(
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    config: Path | None = None,
    identity: str | None = None,
    log_level: LogLevel | None = None,
    log_format: LogFormat | None = None,
    port: int | None = None,
    dry_run: bool = False,
) -> NoReturn:
    """Schedules until SIGTERM, with the configuration in the file `config` and the other options applied to it. Exits."""
    overrides = RunOverrides(log_level, log_format, port, dry_run)
    text = _text(config, overrides)
    configuration = _configuration(text, overrides)
    name = identity or root.default_identity()
    options = RunOptions(configuration, name, _own_namespace(), kubeconfig, context, text, overrides)
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
    sys.exit(ExitCode.USAGE)


@contextmanager
def _logged(written: LoggingConfig) -> Iterator[LineWriter]:
    """Logs an unexpected error with its traceback, and ends the process with ExitCode.PROBLEM."""
    with root.logging_of(written) as log:
        try:
            yield log
        except Exception:
            logger.critical("ended by an unexpected error", exc_info=True)
            sys.exit(ExitCode.PROBLEM)


def _own_namespace() -> str:
    """Returns POD_NAMESPACE, else the service account's namespace, else kube-system."""
    namespace = os.environ.get("POD_NAMESPACE", "")
    if not namespace:
        try:
            namespace = SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
        except OSError:
            namespace = ""
    return namespace or DEFAULT_NAMESPACE
