"""Structured logs that never hold up the event loop: JSON lines or lines for people, through a bounded queue.

Everything goes through the standard library's `logging`: `logger.info("pod bound", extra={"pod": …, "node": …})`.
Warnings, and exceptions that nobody catches, are lines like all others. The
line is made where it is logged and written by a thread. When the output is blocked, lines beyond LINES_MAX are dropped
and counted. The count is logged once there is room again. Called by the composition root, once.
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
"""At some 300 bytes a line, 3 MB."""
LINE_BYTES_MAX: Final = 16 * 1024
FLUSH_TIMEOUT_S: Final = 2.0
LINGER_S: Final = 0.05
"""How long lines gather before they are written: a thread that wakes for each takes the interpreter from the loop."""

_QUIET: Final = {"aiohttp": logging.WARNING, "asyncio": logging.WARNING, "kubernetes_asyncio": logging.WARNING}


_NOT_LOGGED: Final = tuple(
    name for name in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks") if hasattr(logging, name)
)
"""What `logging` looks up for each record and no line of ours says."""


_OF_EVERY_RECORD: Final = {*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName"}
"""Attributes of a record that nobody gave it with `extra`."""


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What was logged with `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}


class LogStream(Protocol):
    """Where lines go; a binary file is one. Called on the writer's thread."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class LineWriter:
    """Takes lines without waiting; a daemon thread writes them. Safe to call from any thread."""

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
        """Queues one line without its newline; drops and counts it when the queue is full."""
        if len(self._lines) >= self._lines_max or self._is_broken:
            self.dropped += 1
            return
        self._lines.append(line[:LINE_BYTES_MAX])
        if not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Writes what is queued, for at most `timeout_s`."""
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
                # The reader has gone (EPIPE) or the stream is closed: nobody is left to tell.
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
    """Formats on the caller's thread, writes on the writer's."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer
        self._dropped_reported = 0

    def createLock(self) -> None:
        """No lock: appending to the queue needs none, and the loop must never wait for another thread."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """As logging does it, which from Python 3.13 on enters the lock without asking whether there is one."""
        kept = self.filter(record)
        if kept:
            self.emit(kept if isinstance(kept, logging.LogRecord) else record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a line that cannot be made is counted as dropped."""
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
    """Drops log lines below ERROR that a copy of the program writes: the program has said the same when it started."""
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
    """What Python would print by itself is logged instead."""
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
    logger.critical("an exception that nobody caught", exc_info=(kind, error, trace))


def _log_unraisable(found: sys.UnraisableHookArgs) -> None:
    error = found.exc_value
    where = {"at": repr(found.object), "what": found.err_msg or "an exception where none can be raised"}
    logger.error("an exception was ignored", extra=where, exc_info=error)


def _log_of_thread(found: threading.ExceptHookArgs) -> None:
    name = found.thread.name if found.thread is not None else ""
    logger.critical("an exception that nobody caught", extra={"of_thread": name}, exc_info=found.exc_value)


class _JsonLines(logging.Formatter):
    """One JSON object a line: what was logged with `extra`, then level, logger, time, exception and message."""

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
        # What JSON has no form for becomes its text.
        try:
            return escaped_json(orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode())
        except TypeError:  # half a character, or a number beyond 64 bits
            return json.dumps(line, default=str)


def _text(clock: Clock, *, is_terminal: bool) -> logging.Formatter:
    import structlog  # here: it brings rich along, a tenth of the start of a program that logs JSON

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
    )  # the default would print local variables, tokens among them
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    )
