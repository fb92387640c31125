"""Processes of tests and benchmarks: nothing that they start outlives them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STARTER = """
import sys, anyio
from pathlib import Path
from tests.real.program import Program

async def main():
    program = await Program.start("sleeper", ["sleep", "600"], Path(sys.argv[1]))
    print(program.pid, flush=True)
    await anyio.sleep(600)

anyio.run(main, backend_options={"use_uvloop": sys.argv[2] == "uvloop"})
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_program_ends_with_the_process_that_started_it(tmp_path: Path, loop: str, end: signal.Signals) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path / "log"), loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        program = os.pidfd_open(int(starter.stdout.readline()))
        try:
            assert not _has_ended(program, within_s=0)
            starter.send_signal(end)
            assert _has_ended(program, within_s=10)
        finally:
            os.close(program)


def _has_ended(process: int, within_s: float) -> bool:
    """A pidfd becomes readable when its process ends."""
    return bool(select.select([process], [], [], within_s)[0])
