"""The one HTTP server: /livez and /readyz for probes, /metrics for scrapers, /api/v1 for people and tools, / for the page.

/livez and /readyz are open and return only ok or failed; the page's files are open, too. Everything else, including
`/readyz?verbose`, is authorized by the DelegatedAuthenticator if there is one. Reviews of quotas, if they are served, are
answered for every caller: an API server sends no token. Without an authenticator the server listens on loopback only. It
then accepts only loopback host names and no page of another origin, so that no web page can read it, and changes nothing
without the token of this process. An error in a handler fails only its own request. For a domain that another replica
leads, all paths return the same document, which names the leader (`framework.leading.Problem`).
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import msgspec
import orjson
from aiohttp import web

from multisched.framework.leading import PROBLEM_TYPE, NotLeadingError, Problem
from multisched.framework.repair import RepairRefusedError, RepairRequest
from multisched.framework.views import NoViewError, ViewQuery, unknown_parameter
from multisched.model.loopback_name import is_loopback_name
from multisched.model.visible_text import escaped, escaped_lines
from multisched.model.wire import UNREADABLE
from multisched.observe.access import AccessDecision, DelegatedAuthenticator
from multisched.observe.admission_view import (
    REVIEW_BYTES_MAX,
    REVIEWS_MAX,
    VALIDATE_QUOTAS_PATH,
    AdmissionSource,
    NotReviewedError,
)
from multisched.observe.certificates import RELOAD_INTERVAL_S, CertificateError, ServerCertificate
from multisched.observe.configuration_view import CONFIGURATION_PATH, ConfigurationSource, encode_configuration
from multisched.observe.connections import ConnectionLimits, Connections
from multisched.observe.explain_view import (
    FITTING_MAX,
    NODES_NAMED,
    NODES_NAMED_MAX,
    REPLICAS_MAX,
    ExplainQuery,
    ExplainSource,
    NotExplainedError,
    PodView,
    WhatIfList,
    WhatIfView,
    encode_view,
)
from multisched.observe.health import Health, HealthReport
from multisched.observe.loopback import TokenFileError, is_other_page, own_token
from multisched.observe.metrics import Metrics
from multisched.observe.page_routes import PAGE_PARAMETERS, PageRoutes, PageSources, is_page_file
from multisched.observe.plugin_view import ViewSource
from multisched.observe.queue_view import PODS_SHOWN, PODS_SHOWN_MAX, NoDomainError, QueueSource, encode_queue
from multisched.observe.repair_view import (
    PLAN_MOVES_MAX,
    PLAN_PARAMETERS,
    RepairSource,
    RunRequest,
    encode_plan,
    encode_status,
    thresholds,
)
from multisched.observe.shared_documents import SharedDocuments

logger = logging.getLogger(__name__)

REVIEWED_PREFIX: Final = "/multisched"
"""Prepended to /api paths in access reviews. Kubernetes lets every authenticated user read `/api/*` (ClusterRole
system:discovery), but pending pods are not for every user.
"""
EXPLAIN_PATH: Final = "/api/v1/explain"
WHAT_IF_PATH: Final = f"{EXPLAIN_PATH}/what-if"
"""The only POST that writes nothing."""
REPAIR_PATH: Final = "/api/v1/repair"
VIEW_PATH: Final = "/api/v1/{view}/{name}"
"""Views of plugins."""
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "/api/v1/queue": ("domain", "limit"),
    CONFIGURATION_PATH: (),
    f"{EXPLAIN_PATH}/pod/{{namespace}}/{{name}}": ("node", "fix", "now", "names"),
    WHAT_IF_PATH: ("replicas", "preempt"),
    f"{REPAIR_PATH}/plan": PLAN_PARAMETERS,
    f"{REPAIR_PATH}/status": ("domain",),
    f"{REPAIR_PATH}/run": PLAN_PARAMETERS,
    **PAGE_PARAMETERS,
}
"""Path -> allowed query parameters. Those of a view are checked by its plugin; probes, scrapers and API servers may send any."""
REQUEST_BYTES_MAX: Final = 256 * 1024
"""Limit of a request body: a manifest for --what-if."""
SHUTDOWN_TIMEOUT_S: Final = 2.0
LINGER_S: Final = 2.0
"""Time for the rest of a request that was refused before it was complete."""
SCRAPES_MAX: Final = 2
"""Renderings at the same time; further ones get a 429."""
REFUSED_PATH_CHARS: Final = 128
"""Limit of a caller's path in a response."""
NOT_ACCEPTED: Final = (
    "the API server does not accept this bearer token: it has expired, or is of another cluster; create a new one"
    " (kubectl create token)"
)
CHANGES_REFUSED: Final = (
    "this request changes something: only the user who runs this process may make it, with the token in its file"
    " (multisched finds it); or set server.authentication and give a token of the cluster"
)
TOKEN_HEADER: Final = "X-Multisched-Token"  # noqa: S105 -- a name
"""Has the token of a page that is read through the API server's proxy, which removes the header Authorization."""
HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ServerError(Exception):
    """The server cannot listen; the message names the address and the reason."""


class ServerSettings(msgspec.Struct, frozen=True):
    """Where and how to listen."""

    bind_address: str = "127.0.0.1"
    port: int = 10260
    certificate: ServerCertificate | None = None
    authenticator: DelegatedAuthenticator | None = None
    limits: ConnectionLimits = ConnectionLimits()
    token_folder: Path | None = None
    """Folder for the token of requests that change something, if there is no authenticator; without a folder nothing
    can be changed.
    """

    def __post_init__(self) -> None:
        if not ip_address(self.bind_address).is_loopback and (self.certificate is None or self.authenticator is None):
            raise ServerError(f"{self.bind_address} is served with TLS and authentication only")


class Sources(msgspec.Struct, frozen=True):
    """The sources of the documents."""

    health: Health
    metrics: Metrics
    queue: QueueSource
    explain: ExplainSource
    repair: RepairSource
    views: ViewSource
    configuration: ConfigurationSource | None = None
    """None: not served."""
    admission: AdmissionSource | None = None
    """None: quotas are not reviewed here."""
    page: PageSources | None = None
    """None: there is no page."""


@asynccontextmanager
async def serve(settings: ServerSettings, sources: Sources) -> AsyncIterator[str]:
    """Serves while the context is open; yields the base URL. Raises ServerError."""
    connections = Connections(settings.limits)
    routes = _Routes(settings, sources, connections)
    runner = web.AppRunner(
        routes.application(),
        access_log=None,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        keepalive_timeout=settings.limits.idle_s,
        lingering_time=LINGER_S,
    )
    await runner.setup()
    tls = None if settings.certificate is None else settings.certificate.context
    listening = connections.listening(runner, settings.bind_address, settings.port, tls)
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(listening)
        except OSError as error:
            where = f"{settings.bind_address}:{settings.port}"
            fix = "; set another one with --port, or in server.port" if error.errno == errno.EADDRINUSE else ""
            raise ServerError(f"cannot listen on {where}: {error.strerror}{fix}") from error
        if settings.authenticator is None and settings.token_folder is not None:
            try:
                routes.own_token = stack.enter_context(own_token(settings.token_folder, address[1]))
            except TokenFileError as error:
                logger.warning("nothing can be changed over HTTP: no token file", extra={"reason": str(error)})
        yield _url(settings, address)


def _url(settings: ServerSettings, address: tuple[str, int]) -> str:
    scheme = "http" if settings.certificate is None else "https"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{scheme}://{host}:{address[1]}"


class _Routes:
    def __init__(self, settings: ServerSettings, sources: Sources, connections: Connections) -> None:
        self._settings = settings
        self._sources = sources
        self._connections = connections
        self.own_token = ""
        self._scrapes = 0
        self._reviews = 0
        self._looked_at_s = 0.0
        self._shared = SharedDocuments()
        self._page = None if sources.page is None else PageRoutes(sources.page, self._user_of, _number, self._shared)

    def application(self) -> web.Application:
        application = web.Application(client_max_size=REQUEST_BYTES_MAX, middlewares=[self._guard])
        application.router.add_get("/livez", self._livez)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/api/v1/queue", self._queue)
        if self._sources.configuration is not None:
            application.router.add_get(CONFIGURATION_PATH, self._configuration)
        application.router.add_get(f"{EXPLAIN_PATH}/pod/{{namespace}}/{{name}}", self._explain)
        application.router.add_post(WHAT_IF_PATH, self._what_if)
        application.router.add_get(f"{REPAIR_PATH}/plan", self._repair_plan)
        application.router.add_get(f"{REPAIR_PATH}/status", self._repair_status)
        application.router.add_post(f"{REPAIR_PATH}/run", self._repair_run)
        if self._page is not None:
            self._page.add_to(application)
        application.router.add_get(VIEW_PATH, self._view)
        if self._sources.admission is not None:
            application.router.add_post(VALIDATE_QUOTAS_PATH, self._validate_quotas)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Authorizes first, so that an unknown caller cannot find out which paths exist; then responds, whatever happens."""
        self._renew_certificate()
        try:
            return await self._refusal(request) or await self._answer(request, handler)
        except web.HTTPException as error:
            return _text(error.status, error.reason)
        except NotLeadingError as error:
            return _names_leader(error)
        except Exception:
            logger.exception("request failed", extra={"path": request.path[:256]})
            return _text(500, "internal error")
        finally:
            self._connections.answered(request)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._is_review(request):
            request = request.clone(client_max_size=REVIEW_BYTES_MAX)
        await request.read()  # within the deadline of the connection; handlers find the body read
        self._connections.received(request)
        _refuse_unknown(request)
        return await handler(request)

    def _renew_certificate(self) -> None:
        """Reloads the certificate during requests, because probes arrive all the time; an unusable one leaves the old one in use."""
        certificate, now_s = self._settings.certificate, asyncio.get_running_loop().time()
        if certificate is None or now_s - self._looked_at_s < RELOAD_INTERVAL_S:
            return
        self._looked_at_s = now_s
        try:
            if certificate.reload_if_changed():
                logger.info("server certificate renewed", extra={"expires": certificate.expires_at.isoformat()})
        except CertificateError as error:
            logger.warning("server certificate not renewed", extra={"reason": str(error)})

    def _is_review(self, request: web.Request) -> bool:
        return self._sources.admission is not None and request.path == VALIDATE_QUOTAS_PATH

    async def _refusal(self, request: web.Request) -> web.Response | None:
        if request.path in ("/livez", "/readyz") and "verbose" not in request.query:
            return None
        authenticator, token = self._settings.authenticator, _bearer_token(request)
        if authenticator is None:
            return self._refusal_on_loopback(request, token)
        if self._is_review(request) or (self._page is not None and is_page_file(request)):
            return None
        verb, path = request.method.lower(), reviewed_path(request.path)
        verdict = await authenticator.judge(token, verb, path)
        return None if verdict is AccessDecision.ALLOWED else _refused(verdict, verb, path, has_token=bool(token))

    def _user_of(self, request: web.Request) -> str:
        authenticator = self._settings.authenticator
        return "" if authenticator is None else authenticator.user_of(_bearer_token(request))

    def _refusal_on_loopback(self, request: web.Request, token: str) -> web.Response | None:
        if not is_loopback_name(request.host):
            return _text(403, "this server accepts loopback host names only")
        if is_other_page(request.headers, f"{request.scheme}://{request.host}"):
            return _text(403, "this server refuses pages of another origin")
        if request.method in ("GET", "HEAD") or request.path == WHAT_IF_PATH or self._is_review(request):
            return None
        if self.own_token and hmac.compare_digest(token.encode(errors="surrogateescape"), self.own_token.encode()):
            return None
        return _text(401, CHANGES_REFUSED)

    async def _livez(self, request: web.Request) -> web.Response:
        return _health(request, self._sources.health.liveness())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _health(request, self._sources.health.readiness())

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._scrapes >= SCRAPES_MAX:
            return _text(429, "too many scrapes at once")
        self._scrapes += 1
        try:
            body, content_type = await self._sources.metrics.render_in_thread(request.headers.get("Accept", ""))
        finally:
            self._scrapes -= 1
        return web.Response(body=body, headers={**HEADERS, "Content-Type": content_type})

    async def _queue(self, request: web.Request) -> web.Response:
        """Returns the queue: `?domain=NAME` for one domain, `?limit=N` for more or fewer pods."""
        limit = _number(request, "limit", PODS_SHOWN, PODS_SHOWN_MAX)
        try:
            view = self._sources.queue.queue(domain=request.query.get("domain") or None, limit=limit)
        except NoDomainError as error:
            return _text(404, str(error))
        return web.Response(body=encode_queue(view), content_type="application/json", headers=HEADERS)

    async def _configuration(self, request: web.Request) -> web.Response:
        source = self._sources.configuration
        assert source is not None, "without it there is no such path"
        body = encode_configuration(source.configuration())
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def _explain(self, request: web.Request) -> web.Response:
        """Explains a pod: `?node=NAME` for one node, `?fix=true` for fixes, `?now=true` for an attempt on a copy, `?names=N` nodes
        named for each verdict.
        """
        query = ExplainQuery(
            request.match_info["namespace"],
            request.match_info["name"],
            node=request.query.get("node", ""),
            with_fixes=request.query.get("fix", "") in ("1", "true"),
            with_now=request.query.get("now", "") in ("1", "true"),
            names=_number(request, "names", NODES_NAMED, NODES_NAMED_MAX),
        )
        explain = self._sources.explain
        return await _explained(self._shared.body(request.path_qs, lambda: _encoded(explain.pod(query))))

    async def _what_if(self, request: web.Request) -> web.Response:
        """Places the pods of a manifest, or of a List of them, as JSON; `?replicas=N` of each, `?preempt=false` (one manifest):
        without preemptions."""
        if request.content_type != "application/json":  # otherwise any web page could make a browser send one
            return _text(415, "send application/json")
        preempts = request.query.get("preempt", "true") not in ("0", "false")
        replicas = max(1, _number(request, "replicas", 1, REPLICAS_MAX if preempts else FITTING_MAX))
        try:
            document = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            return _text(400, f"the manifest is not JSON: {error}")
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        if isinstance(items, list) and not preempts:
            return _text(400, "preempt=false: give one manifest")
        if isinstance(items, list):
            return await _explained(_encoded(self._sources.explain.what_if_list(items, replicas)))
        return await _explained(_encoded(self._sources.explain.what_if(document, replicas, preempts=preempts)))

    async def _validate_quotas(self, request: web.Request) -> web.Response:
        """Answers an AdmissionReview of kube-apiserver."""
        source = self._sources.admission
        assert source is not None, "without it there is no such path"
        if self._reviews >= REVIEWS_MAX:
            return _text(429, "too many reviews at once")
        self._reviews += 1
        try:
            body = await source.review(await request.read())
        except NotReviewedError as error:
            return _text(400, str(error))
        finally:
            self._reviews -= 1
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def _view(self, request: web.Request) -> web.Response:
        """Returns a plugin's view; the plugin checks the query."""
        view, query = request.match_info["view"], ViewQuery(request.match_info["name"], dict(request.query))
        try:
            body = await self._shared.body(request.path_qs, lambda: self._sources.views.document(view, query))
        except NoViewError as error:
            return _text(error.status, str(error))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def _repair_plan(self, request: web.Request) -> web.Response:
        """Returns a plan: `?domain=NAME`, `threshold=log=90` repeated or `threshold=90`, `moves`, `movesPerNode`,
        `movesPerService`.
        """
        try:
            body = encode_plan(await self._sources.repair.plan(_repair_asked(request)))
        except RepairRefusedError as error:
            return _text(error.status, str(error))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def _repair_status(self, request: web.Request) -> web.Response:
        """Returns the state of repair; `?domain=NAME`."""
        try:
            body = encode_status(self._sources.repair.status(request.query.get("domain", "")))
        except RepairRefusedError as error:
            return _text(error.status, str(error))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def _repair_run(self, request: web.Request) -> web.Response:
        """Starts a plan: the parameters of the plan, and its digest in the body: `{"digest": "…"}`."""
        if request.content_type != "application/json":  # otherwise any web page could make a browser send one
            return _text(415, "send application/json")
        try:
            wanted = msgspec.json.decode(await request.read(), type=RunRequest)
        except UNREADABLE as error:
            return _text(400, f'the body is not {{"digest": "..."}}: {error}')
        try:
            body = encode_status(await self._sources.repair.run(_repair_asked(request), wanted.digest))
        except RepairRefusedError as error:
            return _text(error.status, str(error))
        return web.Response(status=202, body=body, content_type="application/json", headers=HEADERS)


def _bearer_token(request: web.Request) -> str:
    """Returns the token, empty without one."""
    if "Authorization" not in request.headers:
        return request.headers.get(TOKEN_HEADER, "").strip()
    scheme, _, token = request.headers["Authorization"].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _refuse_unknown(request: web.Request) -> None:
    """Refuses unknown parameters: a misspelt one would silently change the query. Raises HTTPBadRequest."""
    resource = request.match_info.route.resource
    known = None if resource is None else PARAMETERS.get(resource.canonical)
    unknown = "" if known is None else unknown_parameter(request.query, known)
    if unknown:
        raise web.HTTPBadRequest(reason=escaped(unknown))


def _repair_asked(request: web.Request) -> RepairRequest:
    """Parses the query of a plan. Raises RepairRefusedError (400)."""
    try:
        percent = thresholds(request.query.getall("threshold", []))
    except ValueError as error:
        raise RepairRefusedError(str(error), 400) from error
    return RepairRequest(
        domain=request.query.get("domain", ""),
        threshold_percent=percent,
        moves=_optional(request, "moves"),
        moves_per_node=_optional(request, "movesPerNode"),
        moves_per_service=_optional(request, "movesPerService"),
    )


def _optional(request: web.Request, name: str) -> int | None:
    return _number(request, name, 0, PLAN_MOVES_MAX) if name in request.query else None


async def _encoded(view: Awaitable[PodView | WhatIfView | WhatIfList]) -> bytes:
    return encode_view(await view)


async def _explained(answer: Awaitable[bytes]) -> web.Response:
    try:
        body = await answer
    except NotExplainedError as error:
        return _text(error.status, str(error))
    return web.Response(body=body, content_type="application/json", headers=HEADERS)


def _number(request: web.Request, name: str, otherwise: int, most: int) -> int:
    """Parses a number of the query, 0..most. Raises HTTPBadRequest."""
    text = request.query.get(name, str(otherwise))
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else -1
    if not 0 <= number <= most:
        raise web.HTTPBadRequest(reason=f"{name} must be a number of 0..{most}")
    return number


def reviewed_path(path: str) -> str:
    """Returns the path for the access review. Names below a view are removed: roles would need a wildcard otherwise."""
    parts = path.split("/")
    if path.startswith("/api/v1/") and len(parts) > 4:
        path = "/".join(parts[:4])
    return f"{REVIEWED_PREFIX}{path}" if path.startswith("/api") else path


def _refused(verdict: AccessDecision, verb: str, path: str, *, has_token: bool) -> web.Response:
    """Returns the response for any verdict but ALLOWED."""
    match verdict:
        case AccessDecision.UNAUTHENTICATED:
            response = _text(401, NOT_ACCEPTED if has_token else "give a bearer token")
            response.headers["WWW-Authenticate"] = "Bearer"
        case AccessDecision.TOO_MANY:
            response = _text(429, "too many tokens are being checked; retry in a moment")
            response.headers["Retry-After"] = "1"
        case AccessDecision.FORBIDDEN:
            response = _text(403, _not_allowed(verb, path))
        case _:
            response = _text(503, "the API server did not decide whether the request is allowed")
    return response


def _not_allowed(verb: str, path: str) -> str:
    is_change = verb == "post" and path.endswith(REPAIR_PATH)
    role = "multisched-repairer" if is_change else "multisched-reader"
    shown = escaped(path[:REFUSED_PATH_CHARS])
    return f"the account of this token may not {verb} {shown}; bind it a role that may, such as the ClusterRole {role}"


def _health(request: web.Request, report: HealthReport) -> web.Response:
    status = 200 if report.is_good else 503
    if "verbose" in request.query:
        return web.Response(text=report.render(), status=status, headers=HEADERS)
    return web.Response(text="ok" if report.is_good else "failed", status=status, headers=HEADERS)


def _names_leader(error: NotLeadingError) -> web.Response:
    """Returns the response of every path for a domain that another replica leads."""
    body = msgspec.json.encode(Problem.of(error))
    headers = HEADERS if error.status == 421 else {**HEADERS, "Retry-After": "1"}
    return web.Response(status=error.status, body=body, content_type=PROBLEM_TYPE, headers=headers)


def _text(status: int, message: str) -> web.Response:
    return web.Response(status=status, text=f"{escaped_lines(message)}\n", headers=HEADERS)
