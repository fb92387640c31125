"""One HTTP request of a command, over a connection of its own.

Uses the standard library's HTTP, so that commands start fast. Follows no redirects and knows no proxies: a token goes where
the user said.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

CONNECT_TIMEOUT_S: Final = 5.0
"""An address in a network that is not ours may swallow everything."""
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
PORTS: Final = {"http": 80, "https": 443}


class NoAnswerError(Exception):
    """Nobody answered; the message says why, and what to write instead if that is known."""


class UntrustedError(NoAnswerError):
    """It answers with a certificate that is not good; the message says what to give."""


class Reply(msgspec.Struct, frozen=True):
    """What a server answered."""

    status: int
    content_type: str
    body: bytes


class Tunnel(Protocol):
    """Another way to a server than its address."""

    @property
    def trouble(self) -> str:
        """Why it ended; empty if it did not say."""
        ...

    def open(self) -> socket.socket:
        """Raises NoAnswerError."""
        ...


class Target(msgspec.Struct, frozen=True):
    """Where a request goes. `names`: the certificate must be good for one of them; none: for the URL's host."""

    url: str
    tls: ssl.SSLContext
    names: Sequence[str] = ()
    tunnel: Tunnel | None = None


def call(
    target: Target, path: str, *, headers: Mapping[str, str], body: bytes | None = None, timeout_s: float
) -> Reply:
    """A GET, or a POST if there is a body. Raises NoAnswerError."""
    try:
        with closing(_connected(target, timeout_s)) as connection:
            connection.request("GET" if body is None else "POST", path, body, dict(headers))
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers.get_content_type(), answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:  # the latter: whoever listens there speaks no HTTP
        trouble = "" if target.tunnel is None else target.tunnel.trouble
        kind = UntrustedError if isinstance(error, ssl.SSLCertVerificationError) else NoAnswerError
        raise kind(trouble or f"{error}{_hint(target, error)}") from error


def _connected(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    """With TLS where the URL wants it; nothing is sent before the certificate was found good."""
    parts = urlsplit(target.url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return _open(target, timeout_s)
    *others, last = target.names or (host,)
    for name in others:
        try:
            return _secured(_open(target, timeout_s), target.tls, name)
        except ssl.SSLCertVerificationError:
            continue  # it may be good for another one
    return _secured(_open(target, timeout_s), target.tls, last)


def _open(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    """`timeout_s`: of everything that follows."""
    parts = urlsplit(target.url)
    port = parts.port or PORTS[parts.scheme]
    connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=CONNECT_TIMEOUT_S)
    if target.tunnel is None:
        connection.connect()
    else:
        connection.sock = target.tunnel.open()
    connection.sock.settimeout(timeout_s)
    return connection


def _secured(connection: http.client.HTTPConnection, tls: ssl.SSLContext, name: str) -> http.client.HTTPConnection:
    try:
        connection.sock = tls.wrap_socket(connection.sock, server_hostname=name)
    except OSError:
        connection.close()
        raise
    return connection


def _hint(target: Target, error: Exception) -> str:
    """What to write instead: for an authority that is not known, and where the port speaks the other of http and https."""
    parts = urlsplit(target.url)
    if isinstance(error, ssl.SSLCertVerificationError):
        return "; name its authority with --ca-file FILE, or trust any with --insecure-skip-tls-verify"
    if parts.scheme == "https":
        is_plain = isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
        return f"; it speaks no TLS: write http://{parts.netloc}" if is_plain else ""
    if target.tunnel is not None:
        return ""
    is_refused = isinstance(error, ConnectionRefusedError | socket.gaierror | TimeoutError)
    return f"; it speaks TLS: write https://{parts.netloc}" if not is_refused and _speaks_tls(target) else ""


def _speaks_tls(target: Target) -> bool:
    """Nothing is sent to it, so any certificate will do."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        with closing(_secured(_open(target, CONNECT_TIMEOUT_S), anybody, urlsplit(target.url).hostname or "")):
            return True
    except (OSError, http.client.HTTPException):
        return False
