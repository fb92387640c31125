"""Probes on a port of their own: they answer whatever happens to the main port and to the loop."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest

from multisched.observe.connections import ConnectionLimits
from multisched.observe.health import HEARTBEAT_AGE_MAX_S, Health, Heartbeat
from multisched.observe.probes import serve_probes
from multisched.observe.server import ServerError, ServerSettings
from tests.unit.observe.observe_kit import HandClock, served

HANG_S = 240.0


def probe(url: str, path: str) -> tuple[int, str]:
    """As a kubelet asks, without an event loop."""
    try:
        with urllib.request.urlopen(url + path, timeout=HANG_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_probes_report_the_last_heartbeat() -> None:
    health, clock = Health(), HandClock()
    heartbeat = Heartbeat(clock, health)
    missing = ["pods"]
    health.add_readiness("pods", lambda: "not synced" if missing else "")
    with serve_probes("127.0.0.1", 0, heartbeat) as url:
        assert probe(url, "/livez") == (200, "ok")
        assert probe(url, "/readyz") == (503, "failed")
        missing.clear()
        heartbeat.beat()
        assert probe(url, "/readyz?verbose") == (200, "ok")
        clock.at_s = HEARTBEAT_AGE_MAX_S + 1
        assert probe(url, "/livez") == (503, "failed")
        assert probe(url, "/readyz") == (503, "failed")


async def test_probe_port_serves_only_probes() -> None:
    with serve_probes("127.0.0.1", 0, Heartbeat(HandClock(), Health())) as url:
        for path in ("/metrics", "/api/v1/queue", "/"):
            assert probe(url, path)[0] == 404


async def test_probes_are_answered_while_the_loop_is_blocked() -> None:
    with serve_probes("127.0.0.1", 0, Heartbeat(HandClock(), Health())) as url:
        assert probe(url, "/livez") == (200, "ok")  # nothing here gives the loop a turn


async def test_used_port_is_an_error_with_its_address() -> None:
    heartbeat = Heartbeat(HandClock(), Health())
    with serve_probes("127.0.0.1", 0, heartbeat) as url:
        port = urlsplit(url).port
        assert port is not None
        with (
            pytest.raises(ServerError, match=f"cannot listen for probes on 127.0.0.1:{port}: .*; set another one"),
            serve_probes("127.0.0.1", port, heartbeat),
        ):
            pass


async def test_probes_are_answered_while_both_ports_are_full_of_connections() -> None:
    patient = ConnectionLimits(connections=8, accepts_per_s=100_000.0, request_s=600.0, answer_s=600.0)
    async with AsyncExitStack() as stack:
        main = await stack.enter_async_context(served(ServerSettings(port=0, limits=patient)))
        probes = stack.enter_context(serve_probes("127.0.0.1", 0, Heartbeat(HandClock(), Health())))
        for url in [main, probes] * 50:
            await stack.enter_async_context(silent(url))
        assert await asyncio.to_thread(probe, probes, "/livez") == (200, "ok")


@asynccontextmanager
async def silent(url: str) -> AsyncIterator[None]:
    parts = urlsplit(url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield
    finally:
        writer.transport.abort()
