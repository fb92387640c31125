"""/livez and /readyz on their own port and thread: they respond while the main port is full or the loop is busy.

Returns only `ok` or `failed`, to every caller, over plain HTTP: that is no secret. Never calls into the program:
returns what the program's own loop last recorded (`health.Heartbeat`).
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Final

from aiohttp import web
from anyio.from_thread import start_blocking_portal

from multisched.observe.connections import ConnectionLimits, Connections
from multisched.observe.health import Heartbeat
from multisched.observe.server import HEADERS, ServerError

PROBE_LIMITS: Final = ConnectionLimits(
    connections=16, accepts_per_s=200.0, request_s=5.0, answer_s=5.0, send_s=5.0, idle_s=15.0
)
SHUTDOWN_TIMEOUT_S: Final = 0.5


@contextmanager
def serve_probes(address: str, port: int, heartbeat: Heartbeat) -> Iterator[str]:
    """Serves probes while the context is open; yields the base URL. Returns once the thread listens. Raises ServerError."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        try:
            url = stack.enter_context(portal.wrap_async_context_manager(_listening(address, port, heartbeat)))
        except OSError as error:
            fix = "; set another one in server.probePort" if error.errno == errno.EADDRINUSE else ""
            raise ServerError(f"cannot listen for probes on {address}:{port}: {error.strerror}{fix}") from error
        yield url


@asynccontextmanager
async def _listening(address: str, port: int, heartbeat: Heartbeat) -> AsyncIterator[str]:
    connections = Connections(PROBE_LIMITS)

    def answering(is_good: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            connections.received(request)
            try:
                good = is_good()
                return web.Response(text="ok" if good else "failed", status=200 if good else 503, headers=HEADERS)
            finally:
                connections.answered(request)

        return answer

    application = web.Application(client_max_size=1)
    application.router.add_get("/livez", answering(heartbeat.is_alive))
    application.router.add_get("/readyz", answering(heartbeat.is_ready))
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S, lingering_time=0)
    await runner.setup()
    async with connections.listening(runner, address, port, None) as (host, actual):
        yield f"http://[{host}]:{actual}" if ":" in host else f"http://{host}:{actual}"
