"""The embedded cluster of the demo, in a process of its own. It ends with ours, however that ends: its standard input closes then."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio

END_S: Final = 5.0
"""After SIGTERM; then it is killed."""


@contextlib.asynccontextmanager
async def cluster_process(kubeconfig: Path, nodes: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`multisched cluster` in a session of its own: Ctrl-C is for us, and we end it when we are done with it."""
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
