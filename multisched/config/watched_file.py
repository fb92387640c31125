"""A configuration file that is polled for changes.

A mounted ConfigMap is replaced by swapping a symbolic link. So each check opens the path again and compares the content,
not the modification time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from multisched.config.document import ConfigError, Problem
from multisched.config.loading import parse, read_text
from multisched.config.schema import Configuration

MISSES_MAX: Final = 2
"""Number of consecutive checks without a file after which an error is raised."""

State = tuple[int, int, int, int]


class WatchedFile:
    """A watched configuration file. Not thread-safe."""

    def __init__(self, path: Path, text: str) -> None:
        """`text`: the text with which the program was started."""
        self.path = path
        self._state: State | None = None
        self._text = text
        self._missed = 0
        """Number of consecutive checks that found no file."""

    def changed(self) -> Configuration | None:
        """Returns the configuration if the file's content changed since the last call; otherwise None.

        Raises ConfigError, once per content, if the file is invalid. A file that is missing for one check, as when an editor
        saves it, counts as unchanged; a file that stays missing is an error.
        """
        state = self._state_now()
        self._missed = self._missed + 1 if state is None else 0
        if self._missed == MISSES_MAX:
            self._state, self._text = None, ""  # any content counts as changed when the file is back
            raise ConfigError([Problem(str(self.path), 1, 1, "", "the file does not exist; restore it")])
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
