"""The embedded cluster of the demo, in a separate process. It ends whenever this process ends, because its standard input then closes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio

END_S: Final = 5.0
"""Grace period after SIGTERM; then the process is killed."""


@contextlib.asynccontextmanager
async def cluster_process(kubeconfig: Path, nodes: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs `multisched cluster` in its own session, so that Ctrl-C reaches only this process; terminates it on exit."""
    command = [sys.executable, "-m", "multisched", "cluster", "--kubeconfig", str(kubeconfig), "--nodes", str(nodes)]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--until-input-ends",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(END_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
