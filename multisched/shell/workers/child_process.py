"""What all child processes of a program have in common: how they are started, how they take over their pipes, how they end.

A child answers on stdout what it is asked on stdin, in pickles; nothing else talks to it. It ends by itself when its stdin does,
whatever it computes at that moment.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import IO, BinaryIO, Final, TypeVar

END_MAX_S: Final = 5.0
"""Until a killed process is gone; it is left to the system then."""
CLOSED_MAX_S: Final = 1.0
"""From a process's closed pipes to its end: one that is killed while it ends loses its exit code."""

T = TypeVar("T")


def command_of(module: str) -> list[str]:
    """Runs `main` of the module, with the modules that this process finds."""
    boot = f"import json, sys\nsys.path[:] = json.loads(sys.argv[1])\nfrom {module} import main\nmain()\n"
    return [sys.executable, "-c", boot, json.dumps(sys.path)]


def send(pipe: IO[bytes], message: object) -> None:
    """Blocks where the other end does not read."""
    pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


# -- in the child ------------------------------------------------------------------------------------------------------


def taken_stdout() -> BinaryIO:
    """The pipe for answers. What is printed goes to stderr from now on, and meets none of them."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def listen(stdin: BinaryIO, read: Callable[[BinaryIO], T], take: Callable[[T], object]) -> None:
    """In a thread: `take` is given what `read` reads, until that raises EOFError. Then the process ends."""

    def run() -> None:
        try:
            while True:
                take(read(stdin))
        except EOFError:
            os._exit(0)  # whoever asked is gone; the main thread may hang

    threading.Thread(target=run, name="questions", daemon=True).start()
