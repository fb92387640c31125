"""A dry run's transport: reads go through, no write ever does, and what would be done is said."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client.dry_run import DryRunTransport
from multisched.model.wire import LineStream, Response

POD = "/api/v1/namespaces/shop/pods/web-0"


class Asked:
    """A Transport that keeps what it is asked."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.streams: list[str] = []

    async def request(self, method: str, path: str, **more: Any) -> Response:
        self.methods.append(method)
        return Response(200, b"read")

    @asynccontextmanager
    async def stream(self, path: str, **more: float) -> AsyncIterator[LineStream]:
        self.streams.append(path)
        yield None  # type: ignore[misc]


@given(st.sampled_from(["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", ""]), st.text(), st.binary())
async def test_dry_run_sends_no_write(method: str, path: str, body: bytes) -> None:
    asked = Asked()
    response = await DryRunTransport(asked).request(method, path, body=body)
    assert (asked.methods, response.status in (200, 201)) == ([], True)


async def test_dry_run_passes_reads_and_watches() -> None:
    asked = Asked()
    transport = DryRunTransport(asked)
    assert (await transport.request("GET", POD)).body == b"read"
    async with transport.stream("/api/v1/pods?watch=1"):
        pass
    assert (asked.methods, asked.streams) == (["GET"], ["/api/v1/pods?watch=1"])


@pytest.mark.parametrize(
    ("method", "path", "body", "message", "told"),
    [
        ("POST", f"{POD}/binding?timeout=5s", b'{"target":{"name":"n1"}}', "would bind", {"pod": "shop/web-0", "node": "n1"}),
        ("POST", f"{POD}/binding", b"{", "would bind", {"pod": "shop/web-0", "node": ""}),
        ("POST", f"{POD}/eviction", b"{}", "would evict", {"pod": "shop/web-0"}),
        ("DELETE", f"{POD}?timeout=5s", b"{}", "would delete", {"pod": "shop/web-0"}),
        ("PATCH", f"{POD}/status", b"{}", "would write", {"method": "PATCH", "path": f"{POD}/status"}),
        ("POST", "/api/v1/namespaces/shop/pods", b"{}", "would write", {"method": "POST"}),
    ],
)  # fmt: skip
async def test_dry_run_logs_skipped_writes(
    method: str, path: str, body: bytes, message: str, told: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await DryRunTransport(Asked()).request(method, path, body=body)
    (record,) = caplog.records
    assert record.message == message
    assert told.items() <= vars(record).items()
