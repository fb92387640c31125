"""How a program starts its child processes, and how long it waits for their ends. What is said through the pipes: `child_pipes`.

A child has a session of its own: Ctrl-C is for the program, which ends its children.
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
"""Until a killed process is gone; it is left to the system then."""
CLOSED_MAX_S: Final = 1.0
"""From a process's closed pipes to its end: one that is killed while it ends loses its exit code."""


async def opened(module: str) -> Process:
    """A process that runs `main` of the module; the loop reads its pipes, as for small messages in each cycle."""
    with _logged(module) as errors:
        return await anyio.open_process(
            _command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )


def started(module: str) -> subprocess.Popen[bytes]:
    """The same with pipes that block, for who reads large messages in a thread."""
    with _logged(module) as errors:
        return subprocess.Popen(  # noqa: S603 - ourselves
            _command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )


@contextmanager
def _logged(module: str) -> Iterator[int]:
    """A pipe for a child's standard error. What it prints, and what its libraries warn of, becomes lines of our log."""
    reading, writing = os.pipe()
    threading.Thread(target=_log_lines, args=(reading, module), name="child-errors", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _log_lines(reading: int, module: str) -> None:
    """Until every process that holds the other end has ended."""
    with os.fdopen(reading, "rb") as lines:
        while line := lines.readline(LINE_BYTES_MAX):
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                logger.warning("a child process says", extra={"module_of_child": module, "line": text})


def _command(module: str) -> list[str]:
    """Python with the modules that this process finds."""
    boot = f"import json, sys\nsys.path[:] = json.loads(sys.argv[1])\nfrom {module} import main\nmain()\n"
    return [sys.executable, "-c", boot, json.dumps(sys.path)]
