"""Runs asynchronous commands to their end, and turns errors that a user can cause into a sentence and an exit code."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Final, NoReturn

from multisched.config.options import INTERRUPTED, ExitCode, RefusedError
from multisched.model.visible_text import escaped, escaped_lines

_SAID_ELSEWHERE: Final = ("kubernetes_asyncio.", "multisched.client.auth", "multisched.plugins.quota.quota_source")
"""Loggers of missing credentials, which also raise an error, and of quotas without effect, which reports name."""


def drive(start: Callable[[], Awaitable[int]], report: Callable[[str], object] | None = None) -> NoReturn:
    """Runs one asynchronous command, on uvloop if it is installed, and exits with its code.

    `report`: called with the sentences about errors that a user can cause; None: they are printed.
    """
    import anyio

    async def command() -> int:
        with _errors_reported(report):
            return await start()

    try:
        with nullcontext() if report is not None else _said_once():
            code = anyio.run(command, backend_options={"use_uvloop": _has_uvloop()})
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(int(code))


@contextmanager
def _said_once() -> Iterator[None]:
    """Prints warnings for commands that set up no logging, except those that are also printed at the end."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Sentence())
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not record.name.startswith(_SAID_ELSEWHERE))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class _Sentence(logging.Formatter):
    """Formats a log record as a line like the commands' error lines, with its fields."""

    def format(self, record: logging.LogRecord) -> str:
        from multisched.observe.logging import fields_of

        fields = ", ".join(f"{name} {value}" for name, value in fields_of(record).items())
        return escaped(f"multisched: {record.getMessage()}{f': {fields}' if fields else ''}")


def _has_uvloop() -> bool:
    return find_spec("uvloop") is not None


@contextmanager
def _errors_reported(report: Callable[[str], object] | None) -> Iterator[None]:
    """Turns errors that a user can cause into a sentence and an exit code; any other error is a bug and keeps its traceback."""
    from multisched.client.errors import CredentialsError
    from multisched.framework.registry import PluginSetupError
    from multisched.model.wire import TransportError
    from multisched.observe.certificates import CertificateError
    from multisched.observe.server import ServerError

    failures: list[tuple[BaseException, ExitCode]] = []  # raising inside except* would wrap the exit in a group
    try:
        yield
    except* BrokenPipeError:  # the reader of the pipe has ended: click handles the bare error
        failures.append((BrokenPipeError(errno.EPIPE, "broken pipe"), ExitCode.PROBLEM))
    except* OSError as group:
        if not all(map(is_without_room, _leaves(group))):
            raise
        failures.append((next(_leaves(group)), ExitCode.PROBLEM))
    except* RefusedError as group:
        failures.append((group, _first(group).code))
    except* (PluginSetupError, ServerError, CertificateError) as group:
        failures.append((group, ExitCode.USAGE))
    except* (CredentialsError, TransportError) as group:
        failures.append((group, ExitCode.NO_CLUSTER))
    if failures:
        error, code = failures[0]
        if isinstance(error, OSError):
            raise error
        sentences = dict.fromkeys(_sentences(error))
        if report is None:
            text = "\n".join(sentences)
            print(escaped_lines(f"multisched: {text}"), file=sys.stderr, flush=True)  # noqa: T201 -- typer may not be loaded
        else:
            for sentence in sentences:
                report(sentence)
        sys.exit(int(code))


def is_without_room(error: BaseException) -> bool:
    """Returns whether the disk is full or a limit of written bytes is reached."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _first(group: BaseExceptionGroup[RefusedError]) -> RefusedError:
    error = next(_leaves(group))
    if not isinstance(error, RefusedError):
        raise TypeError(type(error))
    return error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _sentences(error: BaseException) -> Iterator[str]:
    for leaf in _leaves(error):
        yield str(leaf)
