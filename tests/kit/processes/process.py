"""One running program of a simulation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from multisched.shell.program import Program
from tests.kit.checkers.process.process_checker import ProcessChecker
from tests.kit.processes.configuration_files import FileFollower
from tests.kit.wire.faulty_transport import FaultyTransport


@dataclass(slots=True)
class Process:
    """One running program, with its connection and its checker."""

    identity: str
    program: Program
    transport: FaultyTransport
    checker: ProcessChecker
    task: asyncio.Task[None]
    follower: FileFollower | None = None
    """None if the configuration file does not change."""
