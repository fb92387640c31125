"""Communication between a program and its child processes: pickles through pipes.

A child reads requests from stdin and writes answers to stdout. It exits when its stdin is closed, even during a computation.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from typing import IO, BinaryIO, TypeVar

T = TypeVar("T")


def send(pipe: IO[bytes], message: object) -> None:
    """Writes a message. Blocks while the other end does not read."""
    pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()


# -- in the child ------------------------------------------------------------------------------------------------------


def taken_stdout() -> BinaryIO:
    """Returns the pipe for answers, and redirects stdout to stderr, so that printed text does not mix with them."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def listen(stdin: BinaryIO, read: Callable[[BinaryIO], T], take: Callable[[T], object]) -> None:
    """Starts a thread that passes each result of `read` to `take`. At EOFError it exits the process."""

    def run() -> None:
        try:
            while True:
                take(read(stdin))
        except EOFError:
            os._exit(0)  # the parent has exited; the main thread may hang

    threading.Thread(target=run, name="questions", daemon=True).start()
