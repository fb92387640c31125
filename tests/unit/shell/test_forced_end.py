"""A process that hangs ends at the second signal, or once the orderly end takes too long, and says in which function."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from multisched.shell.forced_end import ForcedEnd

END_S = 240.0


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(("signals", "within_s", "why"), [(2, END_S, "at a second signal"), (1, 0.0, "0 s after")])
def test_hung_shutdown_is_named_and_ended(
    signals: int, within_s: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended, handled = threading.Event(), list[int]()
    signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(number))
    forced = ForcedEnd(ended.set, within_s=within_s)
    with forced.watching():
        forced.listen_to(signal.SIGUSR1)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert ended.wait(END_S)
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert why in vars(record)["why"]
    assert any("test_forced_end.py" in frame for frame in vars(record)["stack"])
    assert handled == [signal.SIGUSR1] * signals, "whoever was told before is told still"


@pytest.mark.parametrize("signals", [0, 1])
def test_orderly_end_is_not_interrupted(signals: int, caplog: pytest.LogCaptureFixture) -> None:
    def end() -> None:
        raise AssertionError("ended by force")

    forced = ForcedEnd(end)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with forced.watching():
        forced.listen_to(signal.SIGUSR1)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGUSR1)
    assert not caplog.records
