"""Forced end of a process whose event loop hangs, because the loop's own signal handlers then never run.

The interpreter's signal handler, which can interrupt the code that hangs, writes each signal to a pipe that a thread reads. The
thread logs the stack of the main thread and ends the process at a second signal, or when the graceful stop takes too long.
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
"""Longer than a graceful stop takes, and shorter than the kubelet's default grace period of 30 s."""
_SIGNAL, _OVER = b"s", b"o"


class ForcedEnd:
    """Forced end of a process that does not stop gracefully. Must be created in the main thread."""

    def __init__(self, end: Callable[[], object], *, within_s: float = END_WITHIN_S) -> None:
        """`end`: ends the process; called in a thread. `within_s`: time from the first signal."""
        self._end = end
        self._within_s = within_s
        self._main = threading.get_ident()
        self._reads, self._writes = os.pipe()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches for signals while its body runs."""
        thread = threading.Thread(target=self._watch, name="forced end", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.write(self._writes, _OVER)
            thread.join()

    def listen_to(self, *signals: signal.Signals) -> None:
        """Installs a handler for these signals that also calls the previous one."""
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
            stack = [
                frame for frame in stack_of(self._main) if not frame.startswith(__file__)
            ]  # without this module's signal handler
            fields = {"why": why, "stack": stack}
            logger.critical("forced end: the event loop hangs; its leases will expire", extra=fields)
            self._end()
            return
