"""How a command asks a running multisched over HTTP: which server, with which credentials.

Uses the standard library's HTTP, so that it starts fast. Follows no redirects: a token goes where the user said, and over
plain HTTP to this machine only.
"""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from multisched.cli.options import AskError
from multisched.config.options import ExitCode
from multisched.model.loopback_name import is_loopback_name
from multisched.model.wire import UNREADABLE
from multisched.observe.loopback import TokenFileError, read_token, token_folder
from multisched.tls.contexts import client_context, read_pem

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
TOKEN_CHARS_MAX: Final = 8_000
"""A server takes no longer header."""
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024


class Server(msgspec.Struct, frozen=True):
    """Whom to ask, and with which credentials."""

    url: str
    kubeconfig: Path | None = None
    context: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    is_verifying: bool = True

    @property
    def has_credentials(self) -> bool:
        return self.token_file is not None or self.kubeconfig is not None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """None: a redirect is an answer like any other."""


def ask(
    server: Server, path: str, *, body: bytes | None = None, is_change: bool = False, timeout_s: float = TIMEOUT_S
) -> bytes:
    """The body of a GET, or of a POST if there is a body to send. Raises AskError.

    `is_change`: it is a request to change something, for which a server on loopback wants the token of its process.
    """
    scheme = _scheme_of(server.url)
    if scheme == "http" and server.has_credentials and not is_loopback_name(urlsplit(server.url).netloc):
        raise AskError(
            f"{server.url}: whoever listens on the way would read the token; write https://HOST:PORT,"
            " or forward the port (kubectl port-forward) and write http://127.0.0.1:PORT",
            ExitCode.USAGE,
        )
    request = urllib.request.Request(f"{server.url.rstrip('/')}{path}", data=body)  # noqa: S310 -- checked
    if body is not None:
        request.add_header("Content-Type", "application/json")
    authorization = _authorization(server) or (_of_process(server.url) if is_change else "")
    if authorization:
        request.add_header("Authorization", authorization)
    opener = urllib.request.build_opener(
        _NoRedirects, urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_tls(server))
    )
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return bytes(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        detail = error.read(2048).decode(errors="replace").strip()
        raise AskError(f"{server.url} answered {error.code}: {detail}", code_of(error.code), error.code) from error
    except (OSError, http.client.HTTPException) as error:  # the latter: whoever listens there speaks no HTTP
        reason = getattr(error, "reason", error)
        message = f"no multisched answers at {server.url}: {reason}; start one, or name it with --server"
        raise AskError(message, ExitCode.NO_CLUSTER) from error


def answer(
    server: Server,
    path: str,
    decode: Callable[[bytes], T],
    *,
    body: bytes | None = None,
    is_change: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> T:
    """What `ask` brings, decoded. Raises AskError, also for an answer that `decode` cannot read."""
    reply = ask(server, path, body=body, is_change=is_change, timeout_s=timeout_s)
    try:
        return decode(reply)
    except UNREADABLE as error:
        raise AskError(f"{server.url} is no multisched of this version: {error}", ExitCode.PROBLEM) from error


def _scheme_of(url: str) -> str:
    """Raises AskError for what is no address of a server."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        is_good = False
    if not is_good or " " in url:
        raise AskError(f"{url}: write http://HOST:PORT or https://HOST:PORT", ExitCode.USAGE)
    return parts.scheme


def code_of(status: int) -> ExitCode:
    """Of an HTTP status: whether the question itself is wrong."""
    return ExitCode.USAGE if status in (400, 422) else ExitCode.PROBLEM


def _tls(server: Server) -> ssl.SSLContext:
    try:
        authorities = b"" if server.ca_file is None else read_pem(server.ca_file)
    except ValueError as error:
        raise AskError(str(error)) from error
    try:
        return client_context(authorities, is_verifying=server.is_verifying)
    except (ssl.SSLError, ValueError) as error:
        raise AskError(f"{server.ca_file} has no certificate: {error}") from error


def _of_process(url: str) -> str:
    """With the token of a process of this user on this machine; empty if there is none: the server says what it wants."""
    parts = urlsplit(url)
    try:
        if not is_loopback_name(parts.netloc) or parts.port is None:
            return ""
        return f"Bearer {read_token(token_folder(os.environ), parts.port)}"
    except (TokenFileError, ValueError):
        return ""


def _token_in(file: Path) -> str:
    """Raises AskError for a file that holds none."""
    try:
        token = file.read_text("ascii").strip()
    except OSError as error:
        raise AskError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AskError(f"{file} holds no token: it is not ASCII text") from error
    if not token or not token.isprintable() or " " in token or len(token) > TOKEN_CHARS_MAX:
        raise AskError(f"{file} holds no token: write it alone in one line, as kubectl create token prints it")
    return token


def _authorization(server: Server) -> str:
    if server.token_file is not None:
        return f"Bearer {_token_in(server.token_file)}"
    if server.kubeconfig is None:
        return ""
    import anyio

    from multisched.client.auth import Credentials, KubeconfigSource, import_vendor
    from multisched.client.errors import CredentialsError

    async def read(path: Path) -> str:
        credentials = await Credentials.load(KubeconfigSource(import_vendor(), path, server.context))
        return credentials.access.authorization

    try:
        authorization = anyio.run(read, server.kubeconfig)
    except CredentialsError as error:
        raise AskError(str(error), ExitCode.NO_CLUSTER) from error
    if not authorization:
        message = f"{server.kubeconfig} has no token (a certificate proves nothing here); use --token-file"
        raise AskError(message, ExitCode.USAGE)
    return authorization
