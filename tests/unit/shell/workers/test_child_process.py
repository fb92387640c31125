"""What a child process prints becomes lines of the log."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import anyio.to_thread
import pytest

from multisched.shell.workers.child_process import opened, started

CHATTY = """
import sys, warnings

def main():
    warnings.warn("old news")
    print("an answer")
    print("what a library says", file=sys.stderr)
"""


@pytest.fixture
def chatty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "chatty_child.py").write_text(CHATTY)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return "chatty_child"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.line for record in caplog.records if record.message == "output of a child process"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_blocking", [True, False])
async def test_child_stderr_is_logged_and_stdout_is_not(
    chatty: str, is_blocking: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    if is_blocking:
        answer = await anyio.to_thread.run_sync(lambda: started(chatty).communicate()[0])
    else:
        process = await opened(chatty)
        assert process.stdout is not None
        answer = b"".join([part async for part in process.stdout])
        await process.wait()
        await process.aclose()
    assert answer == b"an answer\n"
    for thread in threading.enumerate():
        if thread.name == "child-errors":
            await anyio.to_thread.run_sync(thread.join)
    assert "what a library says" in lines(caplog)
    assert any("old news" in line for line in lines(caplog))
