"""The log of `multisched run`: lines for people on a terminal, JSON elsewhere, and flags that count more than the file."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.program.command import multisched
from tests.integration.program.test_refusals import configuration, refusing_port, unreachable

END_TIMEOUT_S = 240
WAITS = b"API server does not respond"


def on_a_terminal(*arguments: str) -> str:
    """What `run` writes to its terminal until it waits for an API server and is told to end."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "multisched", "run", *arguments]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, cwd=Path(__file__).parents[3], start_new_session=True
    ) as process:
        os.close(follower)
        written = b""
        try:
            while chunk := _read(leader):
                is_new = WAITS not in written
                written += chunk
                if is_new and WAITS in written:
                    process.send_signal(signal.SIGINT)
            assert process.wait(END_TIMEOUT_S) == 0, written
        finally:
            process.kill()
            os.close(leader)
    return written.decode()


def _read(leader: int) -> bytes:
    """What is there; nothing once the other side is closed."""
    try:
        return os.read(leader, 65_536)
    except OSError:
        return b""


@pytest.mark.parametrize(("flags", "is_json"), [((), False), (("--log-format", "json"), True)])
def test_terminal_gets_text_logs_by_default(flags: tuple[str, ...], is_json: bool, tmp_path: Path) -> None:
    kubeconfig = unreachable(tmp_path, refusing_port())
    lines = on_a_terminal("--kubeconfig", str(kubeconfig), "--port", "0", *flags).splitlines()
    assert len(lines) > 1
    assert {line.startswith("{") for line in lines} == {is_json}
    assert not is_json or {json.loads(line)["level"] for line in lines} <= {"info", "warning"}


async def test_other_outputs_get_json_logs_with_level_and_port_of_flags(tmp_path: Path) -> None:
    taken = refusing_port()  # the file's: nothing can listen there
    kubeconfig = unreachable(tmp_path, refusing_port())
    file = configuration(tmp_path, taken)
    arguments = ("--kubeconfig", str(kubeconfig), "--config", file, "--port", "0")
    async with multisched("run", *arguments) as command:
        serving = json.loads(await command.has_printed('"message":"serving"'))
        ended = await command.end()
    assert not serving["url"].endswith(f":{taken}")
    assert ended.code == 0
    assert all(json.loads(line)["message"] for line in ended.err.splitlines())

    async with multisched("run", *arguments, "--log-level", "warning", "--log-format", "text") as command:
        await command.has_printed("API server does not respond")
        ended = await command.end()
    assert "{" not in ended.err
    assert "serving" not in ended.err
