"""One HTTP request of a command, over its own connection.

Uses the standard library's HTTP client, so that commands start fast. Follows no redirects and uses no proxies: a token
is sent only to the address that the user gave.
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
"""Packets to an address outside our network may get no reply at all."""
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
PORTS: Final = {"http": 80, "https": 443}


class NoAnswerError(Exception):
    """There was no response; the message has the reason, and what to write instead if that is known."""


class UntrustedError(NoAnswerError):
    """The server's certificate is not trusted; the message has the option to use."""


class Reply(msgspec.Struct, frozen=True):
    """The response of a server."""

    status: int
    content_type: str
    body: bytes


class Tunnel(Protocol):
    """A way to a server other than its address."""

    @property
    def trouble(self) -> str:
        """Why it ended; empty if unknown."""
        ...

    def open(self) -> socket.socket:
        """Returns a connected socket. Raises NoAnswerError."""
        ...


class Target(msgspec.Struct, frozen=True):
    """The target of a request. `names`: the certificate must be valid for one of them; empty: for the URL's host."""

    url: str
    tls: ssl.SSLContext
    names: Sequence[str] = ()
    tunnel: Tunnel | None = None


def call(
    target: Target, path: str, *, headers: Mapping[str, str], body: bytes | None = None, timeout_s: float
) -> Reply:
    """Sends a GET, or a POST if there is a body. Raises NoAnswerError."""
    try:
        with closing(_connected(target, timeout_s)) as connection:
            connection.request("GET" if body is None else "POST", path, body, dict(headers))
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers.get_content_type(), answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:  # the latter: the server does not speak HTTP
        trouble = "" if target.tunnel is None else target.tunnel.trouble
        kind = UntrustedError if isinstance(error, ssl.SSLCertVerificationError) else NoAnswerError
        raise kind(trouble or f"{error}{_hint(target, error)}") from error


def _connected(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    """Returns a connection, with TLS if the URL is https; nothing is sent before the certificate was verified."""
    parts = urlsplit(target.url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return _open(target, timeout_s)
    *others, last = target.names or (host,)
    for name in others:
        try:
            return _secured(_open(target, timeout_s), target.tls, name)
        except ssl.SSLCertVerificationError:
            continue  # it may be valid for another name
    return _secured(_open(target, timeout_s), target.tls, last)


def _open(target: Target, timeout_s: float) -> http.client.HTTPConnection:
    """Opens a TCP connection or a tunnel. `timeout_s`: of each later operation."""
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
    """Returns what to write instead: if the authority is unknown, or if the port speaks https instead of http or vice versa."""
    parts = urlsplit(target.url)
    if isinstance(error, ssl.SSLCertVerificationError):
        return "; give its authority with --ca-file FILE, or trust any with --insecure-skip-tls-verify"
    if parts.scheme == "https":
        is_plain = isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
        return f"; it speaks no TLS: write http://{parts.netloc}" if is_plain else ""
    if target.tunnel is not None:
        return ""
    is_refused = isinstance(error, ConnectionRefusedError | socket.gaierror | TimeoutError)
    return f"; it speaks TLS: write https://{parts.netloc}" if not is_refused and _speaks_tls(target) else ""


def _speaks_tls(target: Target) -> bool:
    """Returns whether the port accepts a TLS handshake. No data is sent to it, so any certificate will do."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        with closing(_secured(_open(target, CONNECT_TIMEOUT_S), anybody, urlsplit(target.url).hostname or "")):
            return True
    except (OSError, http.client.HTTPException):
        return False
