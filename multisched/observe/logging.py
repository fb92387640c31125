"""Structured logs that never block the event loop: JSON lines or lines for people, through a bounded queue.

Everything uses the standard library's `logging`: `logger.info("pod bound", extra={"pod": …, "node": …})`. Warnings and
uncaught exceptions are logged like other lines. A line is formatted where it is logged and written by a thread. If the
output is blocked, lines beyond LINES_MAX are dropped and counted. The count is logged once there is space again. Called
once by the composition root.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Literal, Protocol, TextIO

import orjson

from multisched.framework.ports import Clock
from multisched.model.visible_text import escaped, escaped_json, escaped_lines

logger = logging.getLogger(__name__)

LogFormat = Literal["json", "text"]
LINES_MAX: Final = 10_000
"""About 3 MB at 300 bytes a line."""
LINE_BYTES_MAX: Final = 16 * 1024
FLUSH_TIMEOUT_S: Final = 2.0
LINGER_S: Final = 0.05
"""Time for which lines are collected before they are written: a thread that wakes for each line takes the interpreter
from the loop.
"""

_QUIET: Final = {"aiohttp": logging.WARNING, "asyncio": logging.WARNING, "kubernetes_asyncio": logging.WARNING}


_NOT_LOGGED: Final = tuple(
    name for name in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks") if hasattr(logging, name)
)
"""Fields that `logging` computes for each record and that are never logged here."""


_OF_EVERY_RECORD: Final = {*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"}
"""Attributes of a record that were not given with `extra`."""


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Returns the fields that were logged with `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}


class LogStream(Protocol):
    """Output for lines, such as a binary file. Called on the writer's thread."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class LineWriter:
    """Accepts lines without blocking; a daemon thread writes them. Safe to call from any thread."""

    def __init__(self, stream: LogStream, lines_max: int = LINES_MAX) -> None:
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._lines_max = lines_max
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._is_broken = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queues one line without its newline; drops and counts it if the queue is full."""
        if len(self._lines) >= self._lines_max or self._is_broken:
            self.dropped += 1
            return
        self._lines.append(line[:LINE_BYTES_MAX])
        if not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Writes the queued lines, for at most `timeout_s`."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while True:
            self._wake.wait()
            self._closing.wait(LINGER_S)
            self._wake.clear()
            try:
                self._drain()
            except (OSError, ValueError):
                # The reader has closed the pipe (EPIPE) or the stream is closed, so nothing more can be reported.
                self._is_broken = True
                self.dropped += len(self._lines)
                self._lines.clear()
            if self._closing.is_set() and not self._lines:
                return

    def _drain(self) -> None:
        while self._lines:
            count = min(len(self._lines), 256)
            self._stream.write(b"".join(self._lines.popleft() + b"\n" for _ in range(count)))
            self._stream.flush()


class _NonBlockingHandler(logging.Handler):
    """Formats on the caller's thread; the writer's thread writes."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer
        self._dropped_reported = 0

    def createLock(self) -> None:
        """Creates no lock: appending to the queue needs none, and the loop must never wait for another thread."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Handles a record as logging does, but without the lock, which logging acquires unconditionally from Python 3.13 on."""
        kept = self.filter(record)
        if kept:
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a line that cannot be formatted is counted as dropped."""
        try:
            self._writer.write(self.format(record).encode("utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001 -- logging must not end what it reports on
            self._writer.dropped += 1
            return
        dropped = self._writer.dropped
        if dropped > self._dropped_reported:
            lost, self._dropped_reported = dropped - self._dropped_reported, dropped
            notice = logging.LogRecord(__name__, logging.WARNING, "", 0, "log lines dropped", None, None)
            notice.lines = lost
            self._writer.write(self.format(notice).encode())


_IS_TRIAL: Final[ContextVar[bool]] = ContextVar("is_trial", default=False)


@contextmanager
def only_errors_of_trial() -> Iterator[None]:
    """Drops log lines below ERROR from a copy of the program: the program itself logged them at startup."""
    token = _IS_TRIAL.set(True)
    try:
        yield
    finally:
        _IS_TRIAL.reset(token)


def _is_for_log(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or not _IS_TRIAL.get()


@contextmanager
def logging_to(
    stream: LogStream, *, level: str, form: LogFormat, clock: Clock, is_terminal: bool = False
) -> Iterator[LineWriter]:
    """Sends all logging of the process to `stream` until the context ends; yields the writer for its drop counter."""
    writer = LineWriter(stream)
    handler = _NonBlockingHandler(writer)
    handler.setFormatter(_text(clock, is_terminal=is_terminal) if form == "text" else _JsonLines(clock))
    handler.addFilter(_is_for_log)
    root = logging.getLogger()
    before, before_level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(quiet)
    switches = {name: getattr(logging, name) for name in _NOT_LOGGED}
    for name in _NOT_LOGGED:
        setattr(logging, name, False)
    try:
        with _nothing_printed():
            yield writer
    finally:
        for name, value in switches.items():
            setattr(logging, name, value)
        root.handlers[:] = before
        root.setLevel(before_level)
        writer.close()


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Logs warnings and uncaught exceptions, which Python would print."""
    before = warnings.showwarning, sys.excepthook, sys.unraisablehook, threading.excepthook
    warnings.showwarning, sys.excepthook = _log_warning, _log_uncaught
    sys.unraisablehook, threading.excepthook = _log_unraisable, _log_of_thread
    try:
        yield
    finally:
        warnings.showwarning, sys.excepthook, sys.unraisablehook, threading.excepthook = before


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    logging.getLogger("py.warnings").warning(
        "%s", message, extra={"category": category.__name__, "at": f"{filename}:{lineno}"}
    )


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logger.critical("an uncaught exception", exc_info=(kind, error, trace))


def _log_unraisable(found: sys.UnraisableHookArgs) -> None:
    error = found.exc_value
    where = {"at": repr(found.object), "what": found.err_msg or "an exception that could not be raised"}
    logger.error("an exception was ignored", extra=where, exc_info=error)


def _log_of_thread(found: threading.ExceptHookArgs) -> None:
    name = found.thread.name if found.thread is not None else ""
    logger.critical("an uncaught exception", extra={"of_thread": name}, exc_info=found.exc_value)


class _JsonLines(logging.Formatter):
    """One JSON object per line: the fields of `extra`, then level, logger, time, exception and message."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        line = fields_of(record)
        line["level"] = record.levelname.lower()
        line["logger"] = record.name
        line["time"] = self._clock.now().isoformat(timespec="milliseconds")
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        line["message"] = record.getMessage()
        # Values that JSON cannot represent are logged as text.
        try:
            return escaped_json(orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode())
        except TypeError:  # a lone surrogate, or a number beyond 64 bits
            return json.dumps(line, default=str)


def _text(clock: Clock, *, is_terminal: bool) -> logging.Formatter:
    import structlog  # imported here: it imports rich, which is a tenth of the startup time if logs are JSON

    def add_time(_: Any, __: str, event: Any) -> Any:
        event["time"] = clock.now().isoformat(timespec="milliseconds")
        return event

    def show(_: Any, __: str, event: Any) -> Any:
        return {name: escaped(value) if isinstance(value, str) else value for name, value in event.items()}

    def show_traceback(stream: Any, error: Any) -> None:
        text = io.StringIO()
        structlog.dev.plain_traceback(text, error)
        stream.write(escaped_lines(text.getvalue()))

    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        add_time,
        show,
    ]
    renderer = structlog.dev.ConsoleRenderer(
        colors=is_terminal, timestamp_key="time", exception_formatter=show_traceback
    )  # the default would print local variables, including tokens
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    )
