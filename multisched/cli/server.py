"""How a command queries a running multisched: which server, with which credentials, and the leader instead of a
standby.

A token is sent only to the address that the user gave, or to the leader that a standby names by its Lease; over plain
HTTP only to this machine. A leader's certificate must be valid for its own host or for the one that the user gave:
replicas may share one.
"""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from multisched.cli.http_call import NoAnswerError, Reply, Target, UntrustedError, call
from multisched.cli.options import QueryError
from multisched.config.options import ExitCode
from multisched.framework.leading import PROBLEM_TYPE, Leader, NotLedHere, Problem
from multisched.model.loopback_name import is_loopback_name
from multisched.model.server_url import scheme_of
from multisched.model.wire import UNREADABLE
from multisched.observe.loopback import TokenFileError, read_token, token_folder
from multisched.tls.contexts import client_context, read_pem

if TYPE_CHECKING:
    from multisched.cli.deployment import Deployment, Tunnel

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
TOKEN_CHARS_MAX: Final = 8_000
"""Servers accept no longer header."""
DETAIL_BYTES_MAX: Final = 2048
"""Limit of the part of an error response that is shown."""
GOOD: Final = range(200, 300)
SERVICE: Final = "multisched"
ASK_AGAIN: Final = "retry, or give a server with --server"
NEAR_HOST: Final = "127.0.0.1"
"""Host name for the remote end of a tunnel: a server without TLS accepts only names of its own machine."""
ASK_THERE: Final = "give a reachable address with --server, or use its cluster with --context NAME"


class NoLeaderError(QueryError):
    """There is no leader, or it cannot be reached; this holds for all its domains."""


class Server(msgspec.Struct, frozen=True):
    """The server to query, and the credentials for it."""

    url: str
    kubeconfig: Path | None = None
    context: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    is_verifying: bool = True
    names: tuple[str, ...] = ()
    """The certificate must be valid for one of them; empty: for the URL's host."""
    otherwise: str = "start one, or give its address with --server"
    """Advice for the user if there is no response."""
    deployment: Deployment | None = None
    """Set for a server in a cluster: `url` is then the server's name at the remote end of a tunnel."""
    tunnel: Tunnel | None = None

    @property
    def title(self) -> str:
        """The server's name in messages."""
        return self.url if self.tunnel is None else f"pod {self.tunnel.pod}"

    def with_advice(self) -> Server:
        """Adds advice for users with a kubeconfig, who may mean a multisched in its cluster."""
        return msgspec.structs.replace(
            self, otherwise=f"{self.otherwise}, or reach one in a cluster with --context NAME"
        )

    def within(self, deployment: Deployment) -> Server:
        """Returns a replica of the deployment. Its certificate may be that of the Service. Raises QueryError."""
        leader = deployment.first_leader()
        names = self.names or (f"{SERVICE}.{deployment.namespace}.svc", urlsplit(leader.address).hostname or "")
        inside = msgspec.structs.replace(
            self, kubeconfig=deployment.kubeconfig, names=names, deployment=deployment, otherwise=ASK_AGAIN
        )
        return inside.at(leader)

    def at(self, leader: Leader) -> Server:
        """Returns the same settings for a leader whose address is known."""
        parts = urlsplit(leader.address)
        if self.deployment is None:
            names = self.names or (urlsplit(self.url).hostname or "",)
            return msgspec.structs.replace(self, url=leader.address, names=(parts.hostname or "", *names))
        tunnel = self.deployment.tunnel_to(leader)
        return msgspec.structs.replace(self, url=f"{parts.scheme}://{NEAR_HOST}:{tunnel.port}", tunnel=tunnel)

    @property
    def has_credentials(self) -> bool:
        return self.token_file is not None or self.kubeconfig is not None


class _Request(msgspec.Struct, frozen=True):
    path: str
    body: bytes | None = None
    is_change: bool = False
    timeout_s: float = TIMEOUT_S


def ask(
    server: Server, path: str, *, body: bytes | None = None, is_change: bool = False, timeout_s: float = TIMEOUT_S
) -> bytes:
    """Returns the body of a GET, or of a POST if there is a body to send. Raises QueryError.

    If the server is a standby, the leader that it names is queried. `is_change`: the request changes something, for
    which a server on loopback requires the token of its process.
    """
    request = _Request(path, body, is_change, timeout_s)
    try:
        reply = _reply(server, request)
    except UntrustedError as error:
        raise QueryError(f"{server.title} is not trusted: {error}", ExitCode.NO_CLUSTER) from error
    except NoAnswerError as error:
        message = f"no multisched responds at {server.title}: {error}; {server.otherwise}"
        raise QueryError(message, ExitCode.NO_CLUSTER) from error
    led = _led_elsewhere(reply)
    return _body(server, reply) if led is None else _ask_leader(server, led, request)


def ask_leader(
    server: Server, led: NotLedHere, path: str, decode: Callable[[bytes], T], *, domains: Sequence[str] = ()
) -> T:
    """Returns the response of the leader of a domain that `server` does not lead. Raises QueryError, which names it.

    `domains`: all that it leads and that are queried. Raises NoLeaderError if the query fails for all of them.
    """
    return _decoded(server.title, _ask_leader(server, led, _Request(path), domains), decode)


def _ask_leader(server: Server, led: NotLedHere, request: _Request, domains: Sequence[str] = ()) -> bytes:
    """Follows one redirection only: a leader that names another one has just lost the domain."""
    said = led.of_all(domains or [led.domain])
    if led.leader is None or led.is_taken_over or not led.leader.address:
        raise NoLeaderError(f"{server.title}: {said}", ExitCode.PROBLEM)
    host = urlsplit(led.leader.address).netloc
    if server.deployment is None and is_loopback_name(host) and not is_loopback_name(urlsplit(server.url).netloc):
        raise NoLeaderError(f"{said}, which is an address of its own machine; {ASK_THERE}", ExitCode.NO_CLUSTER)
    there, asked_s = server.at(led.leader), time.monotonic()
    try:
        reply = _reply(there, request)
    except NoAnswerError as error:
        hint = f"; {ASK_THERE}" if server.deployment is None else ""
        text = f"{said}, which does not respond: {error}{_until_taken(led, time.monotonic() - asked_s)}{hint}"
        raise NoLeaderError(text, ExitCode.NO_CLUSTER) from error
    other = _led_elsewhere(reply)
    if other is not None:
        hint = "" if other.is_taken_over or other.leader is None else "; retry in a moment"
        raise QueryError(f"{led}, but that one reports: {other}{hint}", ExitCode.PROBLEM)
    return _body(there, reply)


def _until_taken(led: NotLedHere, waited_s: float) -> str:
    """Describes when another replica can lead. `waited_s`: time since the server's response."""
    if led.runs_out_in_s is None:
        return ""
    left_s = max(math.ceil(led.runs_out_in_s - waited_s), 0)
    return f"; unless it renews its lease, another replica can lead in {left_s} s"


def _led_elsewhere(reply: Reply) -> NotLedHere | None:
    """Returns the standby's document; None for any other response."""
    if reply.content_type != PROBLEM_TYPE:
        return None
    try:
        return msgspec.json.decode(reply.body, type=Problem)
    except UNREADABLE:
        return None


def _reply(server: Server, request: _Request) -> Reply:
    """Sends the request. Raises QueryError if it must not be sent, and NoAnswerError."""
    scheme = scheme_of(server.url)
    if not scheme:
        raise QueryError(f"{server.url}: write http://HOST:PORT or https://HOST:PORT", ExitCode.USAGE)
    if scheme == "http" and server.has_credentials and not is_loopback_name(urlsplit(server.url).netloc):
        raise QueryError(
            f"{server.url}: the token would be sent unencrypted; write https://HOST:PORT,"
            " or forward the port (kubectl port-forward) and write http://127.0.0.1:PORT",
            ExitCode.USAGE,
        )
    headers = {} if request.body is None else {"Content-Type": "application/json"}
    is_open = scheme == "http" and server.tunnel is not None  # this server does not authenticate callers
    authorization = "" if is_open else _authorization(server) or (_of_process(server.url) if request.is_change else "")
    if authorization:
        headers["Authorization"] = authorization
    target = Target(server.url.rstrip("/"), _tls(server), server.names, server.tunnel)
    return call(target, request.path, headers=headers, body=request.body, timeout_s=request.timeout_s)


def _body(server: Server, reply: Reply) -> bytes:
    if reply.status in GOOD:
        return reply.body
    detail = reply.body[:DETAIL_BYTES_MAX].decode(errors="replace").strip()
    raise QueryError(f"{server.title} returned {reply.status}: {detail}", code_of(reply.status), reply.status)


def answer(
    server: Server,
    path: str,
    decode: Callable[[bytes], T],
    *,
    body: bytes | None = None,
    is_change: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> T:
    """Returns the decoded result of `ask`. Raises QueryError, also if `decode` fails."""
    return _decoded(server.title, ask(server, path, body=body, is_change=is_change, timeout_s=timeout_s), decode)


def _decoded(url: str, body: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(body)
    except UNREADABLE as error:
        raise QueryError(f"{url} is not a multisched of this version: {error}", ExitCode.PROBLEM) from error


def code_of(status: int) -> ExitCode:
    """Returns the exit code for an HTTP status. An unknown name is an error of the query, as with a dump."""
    return ExitCode.USAGE if status in (400, 404, 422) else ExitCode.PROBLEM


def _tls(server: Server) -> ssl.SSLContext:
    try:
        authorities = b"" if server.ca_file is None else read_pem(server.ca_file)
    except ValueError as error:
        raise QueryError(str(error)) from error
    try:
        return client_context(authorities, is_verifying=server.is_verifying)
    except (ssl.SSLError, ValueError) as error:
        raise QueryError(f"{server.ca_file} has no certificate: {error}") from error


def _of_process(url: str) -> str:
    """Returns the header with the token of a process of this user on this machine; empty if there is none, so that the
    server reports what it requires.
    """
    parts = urlsplit(url)
    try:
        if not is_loopback_name(parts.netloc) or parts.port is None:
            return ""
        return f"Bearer {read_token(token_folder(os.environ), parts.port)}"
    except (TokenFileError, ValueError):
        return ""


def _token_in(file: Path) -> str:
    """Returns the token in the file. Raises QueryError if there is none."""
    try:
        token = file.read_text("ascii").strip()
    except OSError as error:
        raise QueryError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise QueryError(f"{file} contains no token: it is not ASCII text") from error
    if not token or not token.isprintable() or " " in token or len(token) > TOKEN_CHARS_MAX:
        raise QueryError(
            f"{file} contains no token: write only the token, in one line, as kubectl create token prints it"
        )
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
        raise QueryError(str(error), ExitCode.NO_CLUSTER) from error
    if not authorization:
        message = (
            f"{server.kubeconfig} has no token (client certificates are not accepted here): create one"
            " (kubectl create token ACCOUNT >token), and give it with --token-file token"
        )
        raise QueryError(message, ExitCode.USAGE)
    return authorization
