"""Starts child processes, and defines the timeouts of their end. The messages are in `child_pipes`.

A child runs in its own session, so that Ctrl-C reaches only the program, which then ends its children.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import Process

logger = logging.getLogger(__name__)

LINE_BYTES_MAX: Final = 4_096
END_MAX_S: Final = 5.0
"""Maximum wait for the end of a killed process."""
CLOSED_MAX_S: Final = 1.0
"""Maximum wait for the exit code of a process that has closed its pipes, before it is killed."""


async def opened(module: str) -> Process:
    """Starts a process that runs `main` of the module. Its pipes are read on the event loop: for small, frequent messages."""
    with _logged(module) as errors:
        return await anyio.open_process(
            _command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )


def started(module: str) -> subprocess.Popen[bytes]:
    """The same as `opened`, but with blocking pipes: for large messages, which a thread reads."""
    with _logged(module) as errors:
        return subprocess.Popen(  # noqa: S603 - runs this package
            _command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )


@contextmanager
def _logged(module: str) -> Iterator[int]:
    """Yields a pipe for a child's standard error, whose lines are logged."""
    reading, writing = os.pipe()
    threading.Thread(target=_log_lines, args=(reading, module), name="child-errors", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _log_lines(reading: int, module: str) -> None:
    """Logs lines until every process that holds the other end has exited."""
    with os.fdopen(reading, "rb") as lines:
        while line := lines.readline(LINE_BYTES_MAX):
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                logger.warning("output of a child process", extra={"module_of_child": module, "line": text})


def _command(module: str) -> list[str]:
    """Returns a Python command line with this process's module search path."""
    boot = f"import json, sys\nsys.path[:] = json.loads(sys.argv[1])\nfrom {module} import main\nmain()\n"
    return [sys.executable, "-c", boot, json.dumps(sys.path)]
