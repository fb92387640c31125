"""A configuration file that is looked at again and again while a program runs by it.

A mounted ConfigMap is swapped as a whole by a link. So the file is found by its path each time, and what it says
counts, not when it was written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from multisched.config.document import ConfigError, Problem
from multisched.config.loading import parse, read_text
from multisched.config.schema import Configuration

MISSES_MAX: Final = 2
"""Looks in a row without a file after which that is said."""

State = tuple[int, int, int, int]


class WatchedFile:
    """Called from one thread at a time."""

    def __init__(self, path: Path, text: str) -> None:
        """`text`: what the program was started with."""
        self.path = path
        self._state: State | None = None
        self._text = text
        self._missed = 0
        """Looks in a row that found no file."""

    def changed(self) -> Configuration | None:
        """What the file says if that is another thing than last time. Raises ConfigError once for what cannot be used.

        A file that is gone for a moment, as editors do when they save, says nothing new. One that stays away cannot be used.
        """
        state = self._state_now()
        self._missed = self._missed + 1 if state is None else 0
        if self._missed == MISSES_MAX:
            self._state, self._text = None, ""  # what it says when it is back is news, whatever it is
            raise ConfigError([Problem(str(self.path), 1, 1, "", "the file is gone; put it back")])
        if state is None or state == self._state:
            return None
        text = read_text(self.path)
        self._state = state
        is_known, self._text = text == self._text, text
        return None if is_known else parse(text, str(self.path))

    def _state_now(self) -> State | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
