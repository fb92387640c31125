"""How a program starts its child processes, and how long it waits for their ends. What is said through the pipes: `child_pipes`.

A child has a session of its own: Ctrl-C is for the program, which ends its children.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import anyio
from anyio.abc import Process

END_MAX_S: Final = 5.0
"""Until a killed process is gone; it is left to the system then."""
CLOSED_MAX_S: Final = 1.0
"""From a process's closed pipes to its end: one that is killed while it ends loses its exit code."""


async def opened(module: str) -> Process:
    """A process that runs `main` of the module; the loop reads its pipes, as for small messages in each cycle."""
    return await anyio.open_process(
        _command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, start_new_session=True
    )


def started(module: str) -> subprocess.Popen[bytes]:
    """The same with pipes that block, for who reads large messages in a thread."""
    return subprocess.Popen(  # noqa: S603 - ourselves
        _command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _command(module: str) -> list[str]:
    """Python with the modules that this process finds."""
    boot = f"import json, sys\nsys.path[:] = json.loads(sys.argv[1])\nfrom {module} import main\nmain()\n"
    return [sys.executable, "-c", boot, json.dumps(sys.path)]
