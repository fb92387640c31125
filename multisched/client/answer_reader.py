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
    """The received bytes are not an HTTP response, or exceed a size limit."""


class _Headers(Mapping[str, str]):
    """Headers by lower-case name; decoded on first access, because most responses are used without their headers."""

    __slots__ = ("_decoded", "_raw")

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw
        """Names and values that are not decoded yet."""
        self._decoded: dict[str, str] = {}

    def _all(self) -> dict[str, str]:
        for name, value in self._raw.items():
            self._decoded[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._raw.clear()
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
        self._fields: dict[bytes, bytes] = {}
        """Headers of the current message by name; of equal names the last one."""
        self._pieces: list[bytes] = []
        """The parts of the body so far."""
        self._headers = _Headers({})
        """The headers of the response that is being read, once its status line was read."""
        # Called by the parser a dozen times per response: a function in C costs a tenth of a method here.
        self.on_header = self._fields.__setitem__
        self.on_body = self._pieces.append
        # The parser refers to this object's methods, which makes a reference cycle; `discard` breaks it.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Drops the last responses, which may be large, and expects one."""
        self.responses: list[Response] = []
        """The complete responses, in the order of their requests."""
        self.is_complete = False
        """Whether there are as many responses as expected."""
        self.may_be_followed = False
        self.bytes_read = 0
        self.expected = 1
        """Number of responses that belong to the exchange."""
        self._status = self._response_bytes = 0
        self._pieces.clear()

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
        if self._status == 0 or self.is_complete:
            return None
        if "content-length" in self._headers or "transfer-encoding" in self._headers:
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
        self._fields.clear()
        if self.is_complete:
            self.may_be_followed = False

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._status == 0 and status >= 200:
            self._status = status
            self._headers = _Headers(self._fields.copy())
            self.may_be_followed = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        if self._status != 0 and not self.is_complete:
            pieces = self._pieces
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self.responses.append(Response(self._status, body, self._headers))
            self.is_complete = len(self.responses) == self.expected
            if not self.is_complete:
                self._status = self._response_bytes = 0
