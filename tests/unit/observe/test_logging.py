"""Logs: one structured line per event, never waiting for whoever reads them."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import warnings
from typing import Any

from multisched.observe.logging import LINE_BYTES_MAX, LineWriter, logging_to
from tests.unit.observe.observe_kit import HandClock

logger = logging.getLogger("multisched.tests")


def logged(write: Any, *, form: Any = "json", level: str = "info") -> str:
    """What reaches the stream while `write` runs."""
    stream = io.BytesIO()
    with logging_to(stream, level=level, form=form, clock=HandClock(1.5)):
        write()
    return stream.getvalue().decode()


def test_json_line_has_its_keys_and_the_clock_time() -> None:
    text = logged(lambda: logger.info("pod bound", extra={"pod": "a/b", "domain": "job", "node": "n1"}))
    assert json.loads(text) == {
        "message": "pod bound",
        "level": "info",
        "logger": "multisched.tests",
        "time": "2026-01-01T00:00:01.500+00:00",
        "pod": "a/b",
        "domain": "job",
        "node": "n1",
    }


def test_foreign_names_cannot_forge_a_log_line() -> None:
    text = logged(lambda: logger.info("pod bound", extra={"pod": 'x"}\n{"message": "forged'}))
    assert len(text.splitlines()) == 1
    assert json.loads(text)["message"] == "pod bound"


def test_exception_keeps_its_traceback_without_variables() -> None:
    def fail() -> None:
        token = "very" + "-secret"
        try:
            int(f"{len(token)} apples")
        except ValueError:
            logger.exception("it failed")

    for form in ("json", "text"):
        text = logged(fail, form=form)
        assert "11 apples" in text
        assert "very-secret" not in text


def test_lines_below_the_level_are_dropped() -> None:
    assert logged(lambda: logger.info("no"), level="warning") == ""


class Held:
    """A lock that somebody else has for good."""

    def acquire(self) -> None:
        raise AssertionError("the loop would wait")

    release = __enter__ = acquire

    def __exit__(self, *error: object) -> None: ...


def test_logging_takes_no_lock_in_any_python_version() -> None:
    def write() -> None:
        (handler,) = logging.getLogger().handlers
        assert handler.lock is None  # which logging of Python 3.13 enters without asking
        handler.lock = Held()  # type: ignore[assignment]
        handler.handle(logging.makeLogRecord({"msg": "pod bound", "levelno": logging.INFO}))
        handler.lock = None

    assert json.loads(logged(write))["message"] == "pod bound"


def test_filtered_line_is_dropped() -> None:
    def write() -> None:
        (handler,) = logging.getLogger().handlers
        handler.addFilter(lambda record: record.msg != "no")
        logger.info("no")
        logger.info("yes")

    assert [json.loads(line)["message"] for line in logged(write).splitlines()] == ["yes"]


def test_unencodable_values_become_text() -> None:
    assert json.loads(logged(lambda: logger.info("odd", extra={"what": {1, 2}.__class__})))["what"] == "<class 'set'>"


def test_lone_surrogates_and_huge_numbers_lose_no_line() -> None:
    told = {"error": "path /srv/\udcff is gone", "count": 2**70}
    line = json.loads(logged(lambda: logger.info("plugin failed", extra=told)))
    assert {name: line[name] for name in told} == told


def test_oversized_line_is_truncated() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream)
    writer.write(b"x" * (LINE_BYTES_MAX + 100))
    writer.close()
    assert len(stream.getvalue()) == LINE_BYTES_MAX + 1


def test_blocked_output_does_not_block_the_caller_and_the_loss_is_logged() -> None:
    read_end, write_end = os.pipe()
    with (
        os.fdopen(write_end, "wb", buffering=0) as stream,
        os.fdopen(read_end, "rb") as reader,
        logging_to(stream, level="info", form="json", clock=HandClock()) as writer,
    ):
        for number in range(12_000):  # a pipe that is full would block for ever: nobody reads before all is logged
            logger.info("a line that nobody reads", extra={"number": number, "padding": "x" * 200})
        assert writer.dropped > 0
        text = b""
        while b'"number":500,' not in text:
            text += reader.read1(65_536)
        logger.info("there is room again")
        while b"log lines dropped" not in text:
            text += reader.read1(65_536)
        os.set_blocking(reader.fileno(), False)


def test_closed_output_is_no_failure() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "wb", buffering=0)
    with stream, logging_to(stream, level="info", form="json", clock=HandClock()) as writer:
        logger.info("into the void")
        writer.close()
        logger.info("still")
        assert writer.dropped >= 1


def test_logging_is_restored_afterwards() -> None:
    before = logging.getLogger().handlers[:]
    logged(lambda: logger.info("inside"))
    assert logging.getLogger().handlers == before


# -- what Python would print by itself -----------------------------------------------------------------------------------


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_library_warning_is_logged() -> None:
    def warn() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            # `catch_warnings` keeps what shows them, which is ours
            warnings.warn("old\nnews", DeprecationWarning, stacklevel=1)

    (line,) = lines_of(logged(warn))
    assert (line["level"], line["logger"], line["message"]) == ("warning", "py.warnings", "old\nnews")
    assert line["category"] == "DeprecationWarning"
    assert line["at"].startswith(__file__)
    (shown,) = logged(warn, form="text").splitlines()
    assert r"old\nnews" in shown


def test_uncaught_exception_is_logged() -> None:
    def end() -> None:
        try:
            int("apples")
        except ValueError as error:
            sys.excepthook(ValueError, error, error.__traceback__)

    (line,) = lines_of(logged(end))
    assert (line["level"], line["message"]) == ("critical", "an uncaught exception")
    assert "Traceback" in line["exception"]
    assert "apples" in line["exception"]


def test_thread_exception_is_logged() -> None:
    def end() -> None:
        thread = threading.Thread(target=int, args=("apples",), name="counting")
        thread.start()
        thread.join()

    (line,) = lines_of(logged(end))
    assert (line["level"], line["of_thread"]) == ("critical", "counting")
    assert "apples" in line["exception"]


def test_unraisable_exception_is_logged() -> None:
    class Bad:
        def __del__(self) -> None:
            raise ValueError("apples")

    def end() -> None:
        Bad()

    (line,) = lines_of(logged(end))
    assert line["level"] == "error"
    assert "apples" in line["exception"]


def test_warning_and_exception_hooks_are_restored() -> None:
    before = warnings.showwarning, sys.excepthook, sys.unraisablehook, threading.excepthook
    logged(lambda: None)
    assert (warnings.showwarning, sys.excepthook, sys.unraisablehook, threading.excepthook) == before
