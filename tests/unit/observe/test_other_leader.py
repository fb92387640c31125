"""One answer for every path about a domain that another replica leads: who leads it, for people and for programs."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from multisched.framework.leading import Leader, NotLedHere
from multisched.observe.health import Health
from multisched.observe.loopback import read_token
from multisched.observe.metrics import Metrics
from multisched.observe.server import ServerSettings, Sources, serve
from tests.unit.observe.observe_kit import LedByAnother

LEADER = Leader("pod-a-1f", "https://10.0.0.5:10260", "2026-01-01T00:00:00.000000Z")
PATHS = (
    ("GET", "/api/v1/queue?domain=job"),
    ("GET", "/api/v1/explain/pod/default/late"),
    ("POST", "/api/v1/explain/what-if"),
    ("GET", "/api/v1/repair/plan"),
    ("GET", "/api/v1/repair/status"),
    ("POST", "/api/v1/repair/run"),
    ("GET", "/api/v1/forecast/nodes"),
)


@pytest.mark.parametrize(
    ("led", "status", "detail"),
    [
        (
            NotLedHere("job", LEADER),
            421,
            "domain job is led by pod-a-1f since 2026-01-01T00:00:00.000000Z at https://10.0.0.5:10260",
        ),
        (
            NotLedHere("job", Leader("stranger"), runs_out_in_s=12.5),
            421,
            "domain job is led by stranger, whose Lease has no address",
        ),
        (NotLedHere("job"), 503, "no replica leads domain job at the moment; ask again in a few seconds"),
        (
            NotLedHere("job", is_taken_over=True),
            503,
            "domain job is being taken over by this replica; ask again in a moment",
        ),
    ],
)
async def test_every_path_names_the_leader_in_the_same_way(
    led: NotLedHere, status: int, detail: str, tmp_path: Path
) -> None:
    other = LedByAnother(led)
    sources = Sources(Health(), Metrics(), other, other, other, other)
    settings = ServerSettings(port=0, token_folder=tmp_path / "tokens")
    async with serve(settings, sources) as url, aiohttp.ClientSession() as session:
        token = read_token(tmp_path / "tokens", int(url.rpartition(":")[2]))
        headers = {"Authorization": f"Bearer {token}"}
        for method, path in PATHS:
            body = {"json": {"digest": "abc"}} if method == "POST" else {}
            async with session.request(method, url + path, headers=headers, **body) as answer:  # type: ignore[arg-type]
                assert (answer.status, answer.content_type) == (status, "application/problem+json"), path
                assert answer.headers.get("Retry-After") == (None if status == 421 else "1")
                assert await answer.json() == {
                    "title": "this replica does not lead the domain",
                    "status": status,
                    "detail": detail,
                    "domain": "job",
                    "leader": led.leader
                    and {"identity": led.leader.identity, "address": led.leader.address, "since": led.leader.since},
                    "isTakenOver": led.is_taken_over,
                    "runsOutInS": led.runs_out_in_s,
                }
