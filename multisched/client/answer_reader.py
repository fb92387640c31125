"""Assembles HTTP/1.1 responses from bytes that arrive in any portions. No I/O; httptools does the parsing.

Holds the responses of one exchange, each at most its size limit plus one head. Returns a response only if it is complete by
its own framing. Detects a surplus response behind the last. Called by `connection_pool` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import httptools

from multisched.model.wire import Response

HEAD_BYTES_MAX: Final = 256 * 1024
"""Limit of status line and headers, interim responses (1xx) included."""


class BrokenAnswerError(Exception):
    """What arrived is not an HTTP response, or exceeds a size limit."""


class _Headers(Mapping[str, str]):
    """Headers by lower-case name; decoded on first access, because most responses are used without their headers."""

    __slots__ = ("_decoded", "raw")

    def __init__(self) -> None:
        self.raw: list[tuple[bytes, bytes]] = []
        """Names and values that are not decoded yet."""
        self._decoded: dict[str, str] = {}

    def _all(self) -> dict[str, str]:
        for name, value in self.raw:
            self._decoded[name.decode("latin-1").lower()] = value.decode("latin-1")
        self.raw.clear()
        return self._decoded

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class AnswerReader:
    """Assembles the responses of one exchange from bytes in any portions. No I/O."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # The parser refers to this object's methods, which makes a reference cycle; `discard` breaks it.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Drops the last responses, which may be large, and expects one."""
        self.responses: list[Response] = []
        """The complete responses, in the order of their requests."""
        self.may_be_followed = False
        self.bytes_read = 0
        self.expected = 1
        """Number of responses that belong to the exchange."""
        self._begin_response()

    def _begin_response(self) -> None:
        self._response_bytes = 0
        self._status = 0
        self._headers = _Headers()
        self._pieces: list[bytes] = []

    @property
    def is_complete(self) -> bool:
        """Whether there are as many responses as expected."""
        return len(self.responses) == self.expected

    def feed(self, data: bytes) -> None:
        """Adds to `responses` what is complete. Raises BrokenAnswerError."""
        if self._parser is None:
            return
        self.bytes_read += len(data)
        self._response_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.may_be_followed = False
            if not self.is_complete:
                raise BrokenAnswerError(f"{type(error).__name__} {error}") from error
        if not self.is_complete:
            self._check_size()

    def close(self) -> Response | None:
        """Returns the response if its body ends with the connection, as HTTP allows; else None."""
        has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        if self._status == 0 or has_length or self.is_complete:
            return None
        return Response(self._status, b"".join(self._pieces), self._headers)

    def discard(self) -> None:
        """Drops the parser; later calls of `feed` do nothing."""
        self._parser = None

    def _check_size(self) -> None:
        if self._status == 0:
            if self._response_bytes > HEAD_BYTES_MAX:
                raise BrokenAnswerError(f"the head of the answer exceeds {HEAD_BYTES_MAX} bytes")
            return
        declared = int(self._headers.get("content-length", "0"))
        # Chunk sizes and trailers count as well: they must be bounded, too.
        if declared > self._bytes_max or self._response_bytes > self._bytes_max + HEAD_BYTES_MAX:
            raise BrokenAnswerError(f"the answer exceeds {self._bytes_max} bytes")

    # ---- called by the parser

    def on_message_begin(self) -> None:
        """Called for the response, for an interim one before it, and for a surplus one after it."""
        if self.is_complete:
            self.may_be_followed = False
        else:
            self._headers = _Headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status == 0:
            self._headers.raw.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._status == 0 and status >= 200:
            self._status = status
            self.may_be_followed = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._status != 0 and not self.is_complete:
            pieces = self._pieces
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self.responses.append(Response(self._status, body, self._headers))
            if not self.is_complete:
                self._begin_response()
