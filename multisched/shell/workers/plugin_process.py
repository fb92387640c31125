"""Main of an isolated plugin's child process: builds the plugin, then answers frames from stdin with frames on stdout.

A frame is a length of eight bytes, big endian, and a pickle of that length, so that the event loop knows how much to read.
`plugin_processes` starts and ends the process.
"""

from __future__ import annotations

import pickle
import queue
import sys
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from msgspec.structs import replace

from multisched.framework.frozen_nodes import RowRecord
from multisched.framework.isolation import IsolatedRequest, IsolatedResponse, run_isolated
from multisched.framework.points import Plugin
from multisched.framework.registry import Factory, Registry
from multisched.shell.workers.child_pipes import listen, taken_stdout

LENGTH_BYTES = 8


def frame(message: object) -> bytes:
    """Encodes a message as a frame."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def main() -> None:
    """Serves until stdin ends."""
    answers = taken_stdout()
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    listen(sys.stdin.buffer, _read, frames.put)
    plugin: Plugin | None = None
    known: dict[int, RowRecord] = {}
    while True:
        # Unpickling is safe: only the parent process holds the other end of the pipe.
        kind, content = pickle.loads(frames.get())  # noqa: S301
        match kind:
            case "build":
                plugin, failure = _built(*content)
                _send(answers, failure)
            case "records":
                known.update((record.row, record) for record in content)
            case "sync":
                _send(answers, "")
            case "ask":
                assert plugin is not None
                _send(answers, _answer(plugin, content, known))


def _built(name: str, args: Mapping[str, Any]) -> tuple[Plugin | None, str]:
    """Builds the plugin. Returns it, or None and the error."""
    try:
        factory = _factory(name)
        return (factory(args=args) if args else factory()), ""
    except BaseException as error:  # noqa: BLE001 - contains plugin errors, including sys.exit
        return None, f"{type(error).__name__}: {error}"


def _factory(name: str) -> Factory:
    if ":" in name:
        return Registry().factory(name)
    from multisched.config.plugins import plugin_registry

    return plugin_registry().factory(name)


def _answer(
    plugin: Plugin, asked: tuple[IsolatedRequest, Iterable[int]], known: Mapping[int, RowRecord]
) -> IsolatedResponse:
    request, rows = asked
    try:
        return run_isolated(plugin, replace(request, records=[known[row] for row in rows]))
    except BaseException as error:  # noqa: BLE001 - contains plugin errors, including sys.exit
        return IsolatedResponse.failed("Filter", f"{type(error).__name__}: {error}")


def _send(answers: BinaryIO, message: object) -> None:
    answers.write(frame(message))
    answers.flush()


def _read(stdin: BinaryIO) -> bytes:
    """Reads one frame and returns its pickle. Raises EOFError at the end of the input."""
    length = stdin.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        raise EOFError("the frames ended")
    return stdin.read(int.from_bytes(length, "big"))
