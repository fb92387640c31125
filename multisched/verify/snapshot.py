"""A cluster as kubectl prints it: one List, several concatenated ones, or a JSON array; read object by object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

from multisched.verify.fields import Json, shown
from multisched.verify.judge import KINDS
from multisched.verify.objects import Problems

KUBECTL = "kubectl get nodes,pods,namespaces,pv,pvc,sc,csinodes -A -o json"
_SPACE = " \t\r\n"
DEPTH_MAX = 8
"""Deepest nesting of lists."""


class SnapshotError(Exception):
    """The input is not a snapshot; the message names the problem and the fix."""


class _Shell(msgspec.Struct):
    kind: Any = None
    items: list[msgspec.Raw] | None = None


_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_shell = msgspec.json.Decoder(_Shell)
_array = msgspec.json.Decoder(list[msgspec.Raw])


class Snapshot:
    """Raw objects by kind, decoded one at a time, so that a large cluster is not in memory twice."""

    def __init__(self, body: bytes) -> None:
        """Raises SnapshotError. `problems` lists unreadable items."""
        self.problems = Problems()
        self._raws: dict[str, list[bytes | memoryview]] = {kind: [] for kind in KINDS}
        self._take(body)
        if self._raws["Pod"] and not self._raws["Node"]:
            raise SnapshotError(f"it has pods but no nodes; take the snapshot with `{KUBECTL}`")

    def count(self, kind: str) -> int:
        return len(self._raws[kind])

    def objects(self) -> Iterator[tuple[str, Json]]:
        """Yields (kind, document), each after the kinds it refers to. Can be called only once: it frees what it yields."""
        for kind in KINDS:
            raws, self._raws[kind] = self._raws[kind], []
            for raw in raws:
                yield kind, orjson.loads(raw)

    def _take(self, body: bytes) -> None:
        if not body.strip():
            raise SnapshotError(f"it is empty; take the snapshot with `{KUBECTL}`")
        try:
            self._add(body, "", 0)
        except _NO_JSON:
            for number, document in enumerate(_concatenated(body), start=1):
                try:
                    self._add(json.dumps(document).encode(), "", 0)
                except _NO_JSON as error:
                    raise SnapshotError(f"document {number} is not JSON ({error}); take it with `{KUBECTL}`") from error

    def _add(self, raw: bytes | memoryview, kind: str, depth: int) -> None:
        """Adds an object, a list of the API, or a JSON array of either."""
        if bytes(raw[:64]).lstrip()[:1] == b"[":
            if depth >= DEPTH_MAX:
                raise SnapshotError("its lists are nested too deeply")
            for item in _array.decode(raw):
                self._add(memoryview(item), "", depth + 1)
            return
        try:
            shell = _shell.decode(raw)
        except msgspec.ValidationError as error:
            if depth == 0:
                raise SnapshotError(f"it is not a list of objects ({error}); take it with `{KUBECTL}`") from error
            self.problems.add("an item of the list", f"is not an object: {shown(bytes(raw[:64]))}")
            return
        found = shell.kind if isinstance(shell.kind, str) else ""
        if found == "List" or (found.endswith("List") and shell.items is not None):
            for item in shell.items or ():
                self._add(memoryview(item), found.removesuffix("List"), depth + 1)
        elif (found or kind) in self._raws:
            self._keep(found or kind, raw)
        elif not found and not kind:
            if depth == 0:
                raise SnapshotError(f"kind: is missing; it is not a list of objects. Take it with `{KUBECTL}`")
            self.problems.add("an item of the list", "kind: is missing")
        elif depth == 0:
            raise SnapshotError(f"kind: {shown(found)} has no pods or nodes; take a list with `{KUBECTL}`")

    def _keep(self, kind: str, raw: bytes | memoryview) -> None:
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            self.problems.add(f"a {kind.lower()}", f"is not JSON: {error}")
            return
        if isinstance(document, dict):
            self._raws[kind].append(raw)


def _concatenated(body: bytes) -> Iterator[object]:
    """Yields concatenated documents, as several kubectl calls write them to one file."""
    try:
        text = body.decode()
    except UnicodeDecodeError as bad:
        raise SnapshotError(f"it is not UTF-8 (byte {bad.start}); take it with `{KUBECTL}`") from bad
    decoder, at, found = json.JSONDecoder(), 0, 0
    while at < len(text):
        if text[at] in _SPACE:
            at += 1
            continue
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as bad:
            where = f"document {found + 1}" if found else "it"
            raise SnapshotError(f"{where} is not JSON ({_why(bad)}); take it with `{KUBECTL}`") from bad
        found += 1
        yield document


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
