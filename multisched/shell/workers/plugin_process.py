"""The other end of an isolated plugin's process: builds the plugin, answers frames on stdin by frames on stdout.

A frame is eight bytes of length, big endian, and a pickle. Runs as `main` in a process that `plugin_processes` starts and
ends; nothing else talks to it. It ends by itself when its stdin does, also in the middle of a plugin's call that hangs.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from msgspec.structs import replace

from multisched.framework.frozen_nodes import RowRecord
from multisched.framework.isolation import IsolatedRequest, IsolatedResponse, consider
from multisched.framework.points import Plugin
from multisched.framework.registry import Factory, Registry

LENGTH_BYTES = 8


def frame(message: object) -> bytes:
    """A message as bytes."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def main() -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the plugin prints must not meet the frames
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, frames), daemon=True).start()
    plugin: Plugin | None = None
    known: dict[int, RowRecord] = {}
    while True:
        # Frames come from the process that started this one, over a pipe that nobody else holds.
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
    """The plugin, or why there is none."""
    try:
        factory = _factory(name)
        return (factory(args=args) if args else factory()), ""
    except BaseException as error:  # noqa: BLE001 - a plugin ends here, also one that calls sys.exit
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
        return consider(plugin, replace(request, records=[known[row] for row in rows]))
    except BaseException as error:  # noqa: BLE001 - a plugin ends here, also one that calls sys.exit
        return IsolatedResponse.failed("Filter", f"{type(error).__name__}: {error}")


def _send(answers: BinaryIO, message: object) -> None:
    answers.write(frame(message))
    answers.flush()


def _read(stdin: BinaryIO, frames: queue.SimpleQueue[bytes]) -> None:
    while len(length := stdin.read(LENGTH_BYTES)) == LENGTH_BYTES:
        frames.put(stdin.read(int.from_bytes(length, "big")))
    os._exit(0)  # whoever asked is gone; the main thread may hang in the plugin
