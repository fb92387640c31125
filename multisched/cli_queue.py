"""`multisched queue`: asks a running multisched over HTTP what waits where, and why.

Uses the standard library's HTTP, so that it starts fast. Follows no redirects: a token goes where the user said.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from multisched.cli_tables import as_document, as_table
from multisched.observe.queue_view import STATES, QueueView, WaitingPod, decode_queue
from multisched.options import ExitCode

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024


class QueueError(Exception):
    """Nothing can be shown; the message says why and what to do."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Ask:
    """Whom to ask for what, and with which credentials."""

    server: str
    domain: str | None = None
    limit: int = 500
    kubeconfig: Path | None = None
    context: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    is_verifying: bool = True


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """None: a redirect is an answer like any other."""


def show(ask: Ask, output: str) -> str:
    """The queue in the wanted form. Raises QueueError."""
    view = fetch(ask)
    if output in ("json", "yaml"):
        return as_document(msgspec.to_builtins(view), output)
    return render(view, is_wide=output == "wide")


def fetch(ask: Ask) -> QueueView:
    """Asks the server. Raises QueueError."""
    if urlsplit(ask.server).scheme not in ("http", "https"):
        raise QueueError(f"{ask.server}: write http://HOST:PORT or https://HOST:PORT", ExitCode.USAGE)
    query = {"limit": str(ask.limit)} | ({"domain": ask.domain} if ask.domain else {})
    request = urllib.request.Request(f"{ask.server.rstrip('/')}/api/v1/queue?{urlencode(query)}")  # noqa: S310 -- checked
    authorization = _authorization(ask)
    if authorization:
        request.add_header("Authorization", authorization)
    opener = urllib.request.build_opener(
        _NoRedirects, urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_tls(ask))
    )
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            body = answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        detail = error.read(256).decode(errors="replace").strip()
        raise QueueError(f"{ask.server} answered {error.code}: {detail}", ExitCode.PROBLEM) from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        message = f"no multisched answers at {ask.server}: {reason}; start one, or name it with --server"
        raise QueueError(message, ExitCode.NO_CLUSTER) from error
    try:
        return decode_queue(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise QueueError(f"{ask.server} is no multisched: {error}", ExitCode.PROBLEM) from error


def _tls(ask: Ask) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if ask.ca_file is None else str(ask.ca_file))
    if not ask.is_verifying:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _authorization(ask: Ask) -> str:
    if ask.token_file is not None:
        return f"Bearer {ask.token_file.read_text().strip()}"
    if ask.kubeconfig is None:
        return ""
    import anyio

    from multisched.client.auth import Credentials, KubeconfigSource, import_vendor
    from multisched.client.errors import CredentialsError

    async def read(path: Path) -> str:
        credentials = await Credentials.load(KubeconfigSource(import_vendor(), path, ask.context))
        return credentials.access.authorization

    try:
        authorization = anyio.run(read, ask.kubeconfig)
    except CredentialsError as error:
        raise QueueError(str(error), ExitCode.NO_CLUSTER) from error
    if not authorization:
        message = f"{ask.kubeconfig} has no token (a certificate proves nothing here); use --token-file"
        raise QueueError(message, ExitCode.USAGE)
    return authorization


def render(view: QueueView, *, is_wide: bool = False) -> str:
    """Counts per domain, then the pods."""
    counts = [
        (d.domain, ",".join(d.scheduler_names), "yes" if d.is_leading else "no", *(d.counts.get(s, 0) for s in STATES))
        for d in view.domains
    ]
    parts = [as_table(("domain", "scheduler names", "leading", *STATES), counts, is_wide=True)]
    if view.pods:
        head = ["domain", "state", "namespace", "name", "age", "attempts", "retry in", "refused by", "why"]
        if is_wide:
            head[4:4] = ["priority", "qos", "node"]
        parts.append(as_table(head, [_row(pod, is_wide=is_wide) for pod in view.pods], is_wide=is_wide))
    if view.left_out:
        parts.append(f"{view.left_out} more; --limit shows up to 5000")
    return "\n\n".join(parts)


def _row(pod: WaitingPod, *, is_wide: bool) -> list[object]:
    row: list[object] = [pod.domain, pod.state, pod.namespace, pod.name]
    if is_wide:
        row += [pod.priority, pod.qos, pod.node]
    retry = _age(pod.retry_in_s) if pod.retry_in_s > 0 else ""
    return [*row, _age(pod.waiting_s), pod.attempts, retry, ",".join(pod.plugins), pod.message]


def _age(seconds: float) -> str:
    """As kubectl: the two largest units while small, then one."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m{whole % 60:02}s" if whole < 600 else f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"
