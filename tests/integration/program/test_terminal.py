"""The demo on a terminal: one table redrawn in place, a line to copy, and a clean end at Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

END_TIMEOUT_S = 240


def shown_on_a_terminal(temporary: Path, *until: bytes) -> tuple[str, int]:
    """Everything the demo wrote to its terminal, ended by Ctrl-C once all of `until` was written; and its exit code."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "multisched", "demo", "--nodes", "30", "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(temporary), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment, cwd=root, start_new_session=True
    ) as process:
        os.close(follower)
        written = b""
        is_ending = False
        try:
            while chunk := _read(leader):
                written += chunk
                if all(text in written for text in until) and not is_ending:
                    is_ending = True
                    process.send_signal(signal.SIGINT)
            code = process.wait(END_TIMEOUT_S)
        finally:
            process.kill()
            os.close(leader)
    return written.decode(), code


def _read(leader: int) -> bytes:
    """What is there; nothing once the other side is closed."""
    try:
        return os.read(leader, 65_536)
    except OSError:
        return b""


def test_demo_table_is_redrawn_and_the_kubeconfig_can_be_copied(tmp_path: Path) -> None:
    text, code = shown_on_a_terminal(tmp_path, b"pods of team-red were evicted", b"PeakForecast")

    assert code == 0
    # However narrow the terminal, the path stands on a line of its own.
    assert re.search(rf"^export KUBECONFIG={re.escape(str(tmp_path))}/\S+/kubeconfig\r$", text, re.M)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    for name in ("forecast", "gpu", "job", "queued", "bound", "binds/s", "latest decisions", "PeakForecast"):
        assert name in plain
    assert plain.count("Ctrl-C") > 1
    assert text.rstrip().endswith("\x1b[?25h")
    assert list(tmp_path.iterdir()) == []
