"""The end of a process whose event loop hangs: signals reach the loop's handlers only when it comes around.

A thread hears of each signal through a pipe, which a handler of the interpreter writes to in between two lines of whatever
hangs. It logs what the loop is at and ends the process at the second signal, or when the orderly end takes too long.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from multisched.shell.leadership.lease_runner import stack_of

logger = logging.getLogger(__name__)

END_WITHIN_S: Final = 25.0
"""More than an orderly end takes at most, and less than a kubelet waits before it kills."""
_SIGNAL, _OVER = b"s", b"o"


class ForcedEnd:
    """Ends the process when it must. To be made in the main thread."""

    def __init__(self, end: Callable[[], object], *, within_s: float = END_WITHIN_S) -> None:
        """`end`: called in a thread, for it must not return to what hangs. `within_s`: from the first signal on."""
        self._end = end
        self._within_s = within_s
        self._main = threading.get_ident()
        self._reads, self._writes = os.pipe()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the process is to end by itself at a signal."""
        thread = threading.Thread(target=self._watch, name="forced end", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.write(self._writes, _OVER)
            thread.join()

    def listen_to(self, *signals: signal.Signals) -> None:
        """Hears of these before whoever handles them now, and instead of nobody."""
        for one in signals:
            signal.signal(one, self._handler(signal.getsignal(one)))

    def _handler(self, before: Any) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            os.write(self._writes, _SIGNAL)
            if callable(before):
                before(number, frame)

        return handle

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if os.read(self._reads, 1) == _OVER:
            return
        deadline_s = time.monotonic() + self._within_s
        while True:
            ready, _, _ = select.select([self._reads], [], [], max(deadline_s - time.monotonic(), 0.0))
            if ready and os.read(self._reads, 1) == _OVER:
                return
            why = "at a second signal" if ready else f"{self._within_s:g} s after the first signal"
            stack = [frame for frame in stack_of(self._main) if not frame.startswith(__file__)]  # but for our handler
            fields = {"why": why, "stack": stack}
            logger.critical("ended by force: the program hangs in this function; its leases run out", extra=fields)
            self._end()
            return
