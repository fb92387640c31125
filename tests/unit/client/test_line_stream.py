"""Bodies and lines of an open watch: cut anywhere, as long as they may be, and broken off."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client import line_stream
from multisched.client.line_stream import HttpLineStream, read_capped
from multisched.model.wire import AnswerLostError, ConnectFailedError

Piece = bytes | Exception


class Answer:
    """As much of aiohttp's answer as is read here: its pieces, in order; an exception is how it breaks."""

    def __init__(self, *pieces: Piece, length: int | None = None) -> None:
        self.status = 200
        self.headers = {"Retry-After": "7", "X-A": "b"}
        self.content_length = length
        self.content = self
        self._pieces = list(pieces)

    async def readany(self) -> bytes:
        piece = self._pieces.pop(0) if self._pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def read(self) -> bytes:
        found = b""
        while piece := await self.readany():
            found += piece
        return found


def stream_of(*pieces: Piece, length: int | None = None) -> HttpLineStream:
    return HttpLineStream(cast(Any, Answer(*pieces, length=length)))


def lines_of(*pieces: Piece) -> list[bytes]:
    async def read() -> list[bytes]:
        return [line async for line in stream_of(*pieces)]

    return asyncio.run(read())


@given(st.lists(st.binary(min_size=1, max_size=5).filter(lambda line: b"\n" not in line), max_size=6), st.data())
def test_lines_do_not_depend_on_chunks(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(whole) - 1, 1)))))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert lines_of(*[piece for piece in pieces if piece]) == lines


def test_empty_lines_are_skipped() -> None:
    assert lines_of(b"\n\na\n", b"\n", b"b", b"\n\n") == [b"a", b"b"]


def test_line_of_exactly_the_limit_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_stream, "LINE_BYTES_MAX", 4)
    assert lines_of(b"abcd", b"\nab", b"cd", b"\n", b"abc", b"d\n") == [b"abcd"] * 3
    with pytest.raises(AnswerLostError, match=r"^a line of the stream exceeds 4 bytes$"):
        lines_of(b"abcd\nab", b"cd", b"e")


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((b"a\nb",), "the stream ended inside a line"),
        ((b"a\n", aiohttp.ClientPayloadError("cut")), "the stream broke: ClientPayloadError cut"),
        ((TimeoutError(),), "the stream broke: TimeoutError"),
        ((OSError("reset"),), "the stream broke: OSError reset"),
        ((ConnectFailedError("refused"),), "the stream broke: refused"),
        ((OSError("x" * 999),), "the stream broke: OSError " + "x" * 248),
        ((ConnectFailedError("x" * 999),), "the stream broke: " + "x" * 256),
    ],
)
def test_broken_stream_reports_how(pieces: tuple[Piece, ...], words: str) -> None:
    with pytest.raises(AnswerLostError) as lost:
        lines_of(*pieces)
    assert str(lost.value) == words


@pytest.mark.parametrize("length", [None, 6], ids=["chunks", "length"])
def test_body_of_exactly_the_limit_is_accepted(length: int | None) -> None:
    async def read(bytes_max: int) -> bytes:
        return await read_capped(cast(Any, Answer(b"abc", b"def", length=length)), bytes_max)

    assert asyncio.run(read(6)) == b"abcdef"
    words = "the answer exceeds 5 bytes" if length is None else "an answer of 6 bytes exceeds 5 bytes"
    with pytest.raises(aiohttp.ClientPayloadError, match=f"^{words}$"):
        asyncio.run(read(5))


def test_error_body_is_read_completely_or_lost() -> None:
    assert asyncio.run(stream_of(b"no", b"!").read_body()) == b"no!"
    for broken, words in ((OSError("reset"), "OSError reset"), (TimeoutError(), "TimeoutError")):
        with pytest.raises(AnswerLostError, match=f"^the answer broke off: {words}$"):
            asyncio.run(stream_of(b"no", broken).read_body())
    with pytest.raises(AnswerLostError, match=r"^the answer broke off: ClientPayloadError an answer of 1048577 bytes"):
        asyncio.run(stream_of(length=1024 * 1024 + 1).read_body())


def test_headers_are_read_by_lower_case_names() -> None:
    stream = stream_of()
    assert (stream.status, dict(stream.headers)) == (200, {"retry-after": "7", "x-a": "b"})
