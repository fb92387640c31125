"""How a program and its child processes talk: pickles through pipes, and nothing else.

A child answers on stdout what it is asked on stdin. It ends by itself when its stdin does, whatever it computes at that moment.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from typing import IO, BinaryIO, TypeVar

T = TypeVar("T")


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
