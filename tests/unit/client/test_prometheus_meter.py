"""Range queries to a server that answers, floods, lies, is slow or is down: what comes back lies on the grid, or says why not."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import web

from multisched.client.prometheus import WARNINGS_KEPT, PrometheusMeter, _batches
from multisched.cluster.access.certificates import Authority, server_context
from multisched.cluster.base.request import UserInfo
from multisched.framework.measures import (
    QUERY_CHARS_SHOWN,
    Dropped,
    Grid,
    MeterError,
    MeterSettings,
    Piece,
    RangeReport,
    shown_query,
)
from multisched.framework.ports import ExtenderTrust
from tests.unit.client.servers import raw_serving, read_head, serving

START_S = 1_700_000_100.0
GRID = Grid(START_S, 300.0, 10)
GIGABYTE = 1_000_000_000
Form = Mapping[str, Any]
Answer = Callable[[Form], Awaitable[web.StreamResponse]]


def matrix(*series: Mapping[str, Any], **more: object) -> web.Response:
    document = {"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more}
    return web.Response(body=orjson.dumps(document), content_type="application/json")


def series(values: list[list[object]], **labels: str) -> dict[str, Any]:
    return {"metric": labels, "values": values}


def refusal(status: int, kind: str, text: str, **headers: str) -> web.Response:
    body = orjson.dumps({"status": "error", "errorType": kind, "error": text})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def moments(form: Form) -> list[float]:
    start, end, step = (float(form[name]) for name in ("start", "end", "step"))
    return [start + number * step for number in range(round((end - start) / step) + 1)]


async def asked(
    answer: Answer, settings: Mapping[str, Any] | None = None, query: str = "up", grid: Grid = GRID
) -> tuple[RangeReport, dict[tuple[str, int], float], list[Form]]:
    """(report, (pod, step) -> value, the forms that were posted)."""
    forms: list[Form] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert (request.method, request.path) == ("POST", "/prom/api/v1/query_range")
        forms.append(await request.post())
        return await answer(forms[-1])

    found: dict[tuple[str, int], float] = {}

    def take(piece: Piece) -> None:
        begin = 0
        for labels, end in zip(piece.labels, piece.ends.tolist(), strict=True):
            for step, value in zip(piece.steps[begin:end].tolist(), piece.values[begin:end].tolist(), strict=True):
                assert (labels["pod"], step) not in found
                found[labels["pod"], step] = value
            begin = end

    async with serving(handler) as url:
        meter = PrometheusMeter(MeterSettings(f"{url}/prom/", **(settings or {})), random.Random(1))
        return await meter.ranges(query, grid, take), found, forms


async def failure(answer: Answer, settings: Mapping[str, Any] | None = None, query: str = "up") -> str:
    with pytest.raises(MeterError) as caught:
        await asked(answer, settings, query)
    return str(caught.value)


async def test_range_samples_are_placed_on_the_grid_with_gaps() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        times = moments(form)
        return matrix(
            series([[times[1], "0.25"], [times[9], "1e-05"]], pod="a"),
            series([[times[0], "3"]], pod="b"),
        )

    report, found, forms = await asked(answer, query="sum(x)")
    assert found == {("a", 1): 0.25, ("a", 9): 1e-05, ("b", 0): 3.0}
    assert [dict(form) for form in forms] == [
        {"query": "sum(x)", "start": "1700000100.000", "end": "1700002800.000", "step": "300"}
    ]
    assert (report.requests, report.series, report.samples, report.warnings) == (1, 2, 3, {})


@pytest.mark.parametrize(("points_max", "requests"), [(11_000, 3), (1, 22_001), (30_000, 1)])
async def test_number_of_steps_per_request_is_limited(points_max: int, requests: int) -> None:
    steps = 22_001 if points_max > 1 else 7

    async def answer(form: Form) -> web.StreamResponse:
        times = moments(form)
        assert len(times) <= points_max
        return matrix(series([[time, str(time)] for time in times], pod="a"))

    grid = Grid(START_S, 60.0, steps)
    report, found, _ = await asked(answer, {"points_max": points_max}, grid=grid)
    assert report.requests == (requests if points_max > 1 else steps)
    assert found == {("a", step): START_S + step * 60.0 for step in range(steps)}


async def test_invalid_samples_are_gaps_and_counted() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        values = ["NaN", "+Inf", "-Inf", "-1", "-0", "0", "100"]
        return matrix(series([list(pair) for pair in zip(moments(form), values, strict=False)], pod="a"))

    report, found, _ = await asked(answer)
    assert found == {("a", 4): 0.0, ("a", 5): 0.0, ("a", 6): 100.0}
    assert report.dropped == Dropped(nan=3, negative=1)


async def test_off_grid_or_duplicate_samples_are_dropped_and_counted() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        at = moments(form)
        pairs = [[at[0] - 300, "1"], [at[0], "2"], [at[1] + 1, "3"], [at[2], "4"], [at[2], "5"], [at[1], "6"]]
        return matrix(series([*pairs, [at[9] + 300, "7"]], pod="a"))

    report, found, _ = await asked(answer)
    assert found == {("a", 0): 2.0, ("a", 2): 4.0}
    assert report.dropped == Dropped(off_grid=5)


async def test_dropped_samples_and_warnings_are_counted_over_all_pieces() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        at = moments(form)
        values = [[at[0] - 300, "1"], [at[0], "NaN"], [at[1], "-1"], [at[2], "1"], [at[3], "2"]]
        return matrix(series(values, pod=f"from {form['start']}"), warnings=["slow"], isPartial=True)

    report, found, _ = await asked(answer, {"points_max": 5})
    assert (report.requests, report.series, report.samples) == (2, 2, 4)
    assert report.dropped == Dropped(nan=2, negative=2, off_grid=2)
    assert report.warnings == {"slow": 2, "the answer is partial": 2}
    assert sorted(step for _, step in found) == [2, 3, 7, 8]


async def test_first_ten_warnings_are_kept_and_the_rest_counted() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        return matrix(warnings=[f"warning {number}" for number in range(11)])

    report, _, _ = await asked(answer, {"points_max": 5})
    assert report.warnings == {f"warning {number}": 2 for number in range(10)}


async def test_sample_may_deviate_by_a_thousandth_of_a_step() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        at = moments(form)
        return matrix(series([[at[0] + 1, "1"], [at[1] + 1.5, "2"], [at[2] - 1, "3"], [at[3] - 1.5, "4"]], pod="a"))

    report, found, _ = await asked(answer, grid=Grid(START_S, 1000.0, 4))
    assert found == {("a", 0): 1.0, ("a", 2): 3.0}
    assert report.dropped == Dropped(off_grid=2)


@pytest.mark.parametrize(
    ("status", "kind", "text", "words"),
    [
        (400, "bad_data", "no  such\nfunction", "HTTP 400: bad_data: no such function"),
        (401, "", "who are you", "HTTP 401: who are you; check tokenFile and headers"),
        (403, "forbidden", "not you", "HTTP 403: forbidden: not you; check tokenFile and headers"),
        (404, "", "no page", "HTTP 404: no page; url must be the prefix before /api/v1"),
        (418, "", "x" * 600, "HTTP 418: " + "x" * 512),
        (429, "", "busy", "HTTP 429: busy (1 tries)"),
        (408, "", "slow", "HTTP 408: slow (1 tries)"),
        (500, "internal", "oh", "HTTP 500: internal: oh (1 tries)"),
        (504, "", "late", "HTTP 504: late (1 tries)"),
        (503, "timeout", "expanding", "HTTP 503: timeout: expanding, for a single step; aggregate in the query"),
        (413, "", "too large", "HTTP 413: too large, for a single step; aggregate in the query"),
        (422, "", "more than 11000", "HTTP 422: more than 11000, for a single step; aggregate in the query"),
        (400, "", "exceeded", "HTTP 400: exceeded, for a single step; aggregate in the query"),
        (400, "", "parse error near limit", "HTTP 400: parse error near limit"),
        (409, "", "Too Many", "HTTP 409: Too Many"),
    ],
)
async def test_each_refusal_names_server_and_query(status: int, kind: str, text: str, words: str) -> None:
    asks: list[Form] = []

    async def answer(form: Form) -> web.StreamResponse:
        asks.append(form)
        return refusal(status, kind, text)

    told = await failure(answer, {"tries": 1, "points_max": 1})
    assert re.sub(r"http://\S+/prom/", "URL", told) == f"prometheus URL: {words} (query: up)"
    assert len(asks) == 1


async def test_invalid_query_has_the_server_message_and_is_not_retried() -> None:
    words = 'invalid parameter "query": 1:5: parse error: unexpected identifier "limit"'
    asks: list[Form] = []

    async def answer(form: Form) -> web.StreamResponse:
        asks.append(form)
        return refusal(400, "bad_data", words)

    text = await failure(answer, query="sum(limit limit)")
    assert words in text
    assert "bad_data" in text
    assert "(query: sum(limit limit))" in text
    assert len(asks) == 1


@pytest.mark.parametrize("quoted", ["{query}", "error when executing query={query!r}", 'cannot parse "{escaped}"'])
async def test_long_query_is_shortened_to_one_line(quoted: str) -> None:
    query = (
        'sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{container!="",container!="POD"}[300s]))' * 3
    )
    words = quoted.format(query=query, escaped=query.replace('"', '\\"'))

    async def answer(form: Form) -> web.StreamResponse:
        return refusal(422, "execution", words)

    text = await failure(answer, query=query)
    begins = query[: QUERY_CHARS_SHOWN - 1]
    assert text.endswith(f"(query: {begins}…)")
    assert query not in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("up", "up"),
        ("sum(\n  up\n)\n", "sum( up )"),
        ("x" * QUERY_CHARS_SHOWN, "x" * QUERY_CHARS_SHOWN),
        ("x" * (QUERY_CHARS_SHOWN + 1), "x" * (QUERY_CHARS_SHOWN - 1) + "…"),
    ],
)
def test_shown_query_is_one_line_of_limited_length(query: str, told: str) -> None:
    assert shown_query(query) == told


async def test_token_tenant_and_parameters_are_sent_and_the_token_is_reread(tmp_path: Path) -> None:
    token = tmp_path / "token"
    seen: list[tuple[str, str]] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.headers["Authorization"], request.headers["X-Scope-OrgID"]))
        assert [request.headers[name] for name in ("Accept", "Accept-Encoding")] == ["application/json", "identity"]
        assert request.headers.getall("User-Agent") == ["shop's"]
        assert (await request.post())["dedup"] == "true"
        return matrix()

    async with serving(handler) as url:
        settings = MeterSettings(
            url,
            token_file=str(token),
            headers={"X-Scope-OrgID": "shop", "User-Agent": "shop's"},
            parameters={"dedup": "true"},
        )
        meter = PrometheusMeter(settings, random.Random(1))
        for secret in ("first", "second"):
            token.write_text(f"{secret}\n")
            await meter.ranges("up", GRID, lambda _: None)
        token.unlink()
        with pytest.raises(MeterError, match=r"tokenFile .*token cannot be read") as caught:
            await meter.ranges("up", GRID, lambda _: None)
    assert seen == [("Bearer first", "shop"), ("Bearer second", "shop")]
    assert "second" not in str(caught.value)


@pytest.mark.parametrize("more", [{"warnings": ["store-1 is down"]}, {"isPartial": True}])
async def test_partial_response_is_used_and_reported(more: dict[str, object]) -> None:
    async def answer(form: Form) -> web.StreamResponse:
        return matrix(series([[START_S, "1"]], pod="a"), **more)

    report, found, _ = await asked(answer)
    assert found == {("a", 0): 1.0}
    assert report.warnings == {"store-1 is down" if "warnings" in more else "the answer is partial": 1}


@pytest.mark.parametrize(("batch_bytes", "batches"), [(1, [1, 1, 1]), (20, [2, 1]), (10**6, [3])])
def test_response_is_decoded_in_batches(monkeypatch: pytest.MonkeyPatch, batch_bytes: int, batches: list[int]) -> None:
    monkeypatch.setattr("multisched.client.prometheus.BATCH_BYTES", batch_bytes)
    series_of_ten = [msgspec.Raw(b"0123456789")] * 3
    assert [len(batch) for batch in _batches(series_of_ten)] == batches


async def test_first_warnings_are_reported_with_counts() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        told = [f"store-{number} is down" for number in range(WARNINGS_KEPT + 2)]
        return matrix(series([[START_S, "1"]], pod="a"), warnings=[*told, told[0], told[-1]])

    report, _, _ = await asked(answer)
    assert report.warnings == {f"store-{number} is down": 1 + (number == 0) for number in range(WARNINGS_KEPT)}


async def test_gigabyte_response_is_refused_at_the_cap() -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        chunk = b"x" * 65_536
        for _ in range(GIGABYTE // len(chunk)):
            writer.write(chunk)
            await writer.drain()
            sent += len(chunk)

    cap = 1_000_000
    async with raw_serving(handler) as url:
        meter = PrometheusMeter(MeterSettings(url, answer_bytes_max=cap), random.Random(1))
        with pytest.raises(
            MeterError, match=r"an answer of over 1000000 bytes .* for a single step; aggregate in the query"
        ):
            await meter.ranges("up", GRID, lambda _: None)
    assert sent < 30 * cap


async def test_announced_gigabyte_is_not_read() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n{" % GIGABYTE)
        await reader.read()

    async with raw_serving(handler) as url:
        meter = PrometheusMeter(MeterSettings(url, timeout_s=60), random.Random(1))
        with pytest.raises(MeterError, match="an answer of over"):
            await meter.ranges("up", GRID, lambda _: None)


async def test_too_large_range_is_split_into_shorter_pieces() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        times = moments(form)
        if len(times) > 200:
            return refusal(422, "execution", "query processing would load too many samples into memory")
        return matrix(series([[time, "2"] for time in times], pod="a"))

    report, found, _ = await asked(answer, grid=Grid(START_S, 300.0, 1000))
    assert len(found) == 1000
    assert report.requests == 1 + 8


async def test_piece_length_follows_the_response_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multisched.client.prometheus.GOOD_BYTES", 2_000)
    sizes: list[int] = []

    async def answer(form: Form) -> web.StreamResponse:
        response = matrix(series([[time, "2.5"] for time in moments(form)], pod="a"))
        assert isinstance(response.body, bytes)
        sizes.append(len(response.body))
        return response

    report, found, _ = await asked(answer, {"points_max": 200}, grid=Grid(START_S, 300.0, 1000))
    assert len(found) == 1000
    assert report.requests == len(sizes) > 5
    assert all(1_000 < size < 2_600 for size in sizes[1:-1])


async def test_busy_server_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multisched.client.prometheus.RETRY_BASE_S", 0.01)
    statuses = [503, 429, 200]

    async def answer(form: Form) -> web.StreamResponse:
        status = statuses.pop(0)
        return matrix(series([[START_S, "1"]], pod="a")) if status == 200 else refusal(status, "unavailable", "busy")

    report, found, _ = await asked(answer)
    assert found == {("a", 0): 1.0}
    assert report.requests == 3


async def test_unreachable_server_is_reported_after_the_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multisched.client.prometheus.RETRY_BASE_S", 0.01)

    async def answer(form: Form) -> web.StreamResponse:
        return web.Response(status=502, text="<html>bad  gateway</html>")

    assert "HTTP 502: <html>bad gateway</html> (3 tries)" in await failure(answer, {"tries": 3})


async def test_refused_connection_is_reported() -> None:
    meter = PrometheusMeter(MeterSettings("http://127.0.0.1:1", tries=1), random.Random(1))
    with pytest.raises(MeterError, match=r"prometheus http://127.0.0.1:1: cannot be reached"):
        await meter.ranges("up", GRID, lambda _: None)


async def test_slow_server_fails_at_the_timeout() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    assert "no answer within 0.1 s (1 tries)" in await failure(answer, {"timeout_s": 0.1, "tries": 1})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>login</html>", "the response is not a Prometheus range"),
        (b'{"status":"success","data":{"resultType":"vector","result":[]}}', "'vector'"),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,{}]]}]}}',
            "not a Prometheus",
        ),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"abc"]]}]}}',
            "not a Prometheus",
        ),
        (b'{"status":"success","data":{"resultType":"matrix","result":7}}', "not a Prometheus range"),
    ],
)
async def test_non_range_response_is_refused(body: bytes, words: str) -> None:
    async def answer(form: Form) -> web.StreamResponse:
        return web.Response(body=body)

    assert words in await failure(answer)


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (302, {"Location": "https://login.example"}, "redirects to https://login.example; write that url"),
        (401, {}, "HTTP 401: who are you; check tokenFile and headers"),
        (404, {}, "url must be the prefix before /api/v1"),
    ],
)
async def test_refusals_name_the_setting_to_look_at(status: int, headers: dict[str, str], words: str) -> None:
    async def answer(form: Form) -> web.StreamResponse:
        return web.Response(status=status, text="who are you", headers=headers)

    assert words in await failure(answer)


async def test_histograms_without_values_are_reported() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        return matrix({"metric": {"pod": "a"}, "histograms": [[START_S, {"count": "1"}]]})

    report, found, _ = await asked(answer)
    assert found == {}
    assert list(report.warnings) == ["native histograms are left out; take their sum or quantile in the query"]


async def test_number_of_concurrent_queries_is_limited() -> None:
    at_once = most = 0

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal at_once, most
        await request.read()
        at_once += 1
        most = max(most, at_once)
        for _ in range(5):
            await asyncio.sleep(0)
        at_once -= 1
        return matrix()

    async with serving(handler) as url:
        meter = PrometheusMeter(MeterSettings(url, concurrency=2), random.Random(1))
        await asyncio.gather(*(meter.ranges("up", GRID, lambda _: None) for _ in range(12)))
    assert most == 2
    assert meter._session is None, "connections last while somebody reads"


async def test_consumer_exception_ends_the_query() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return matrix(series([[START_S, "1"]], pod="a"))

    def take(piece: Piece) -> None:
        raise LookupError(piece.labels[0]["pod"])

    async with serving(handler) as url:
        meter = PrometheusMeter(MeterSettings(url), random.Random(1))
        with pytest.raises(LookupError, match="a"):
            await meter.ranges("up", GRID, take)


async def test_tls_is_verified_with_the_configured_ca(tmp_path: Path) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return matrix(series([[START_S, "1"]], pod="a"))

    authority = Authority(datetime.now(UTC))
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    (tmp_path / "other.pem").write_bytes(Authority(datetime.now(UTC)).certificate)
    async with serving(handler, server_context(authority, ["127.0.0.1"])) as url:
        for name, is_good in (("ca.pem", True), ("other.pem", False)):
            trust = ExtenderTrust(ca_file=str(tmp_path / name))
            meter = PrometheusMeter(MeterSettings(url, trust=trust, tries=1), random.Random(1))
            pieces: list[Piece] = []
            if is_good:
                await meter.ranges("up", GRID, pieces.append)
                assert len(pieces) == 1
            else:
                with pytest.raises(MeterError, match="certificate verify failed"):
                    await meter.ranges("up", GRID, pieces.append)
    trust = ExtenderTrust(ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(MeterError, match="tls cannot be used"):
        PrometheusMeter(MeterSettings("https://127.0.0.1:1", trust=trust), random.Random(1))


async def test_client_certificate_is_sent_and_verification_can_be_disabled(tmp_path: Path) -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("peercert"))
        return matrix(series([[START_S, "1"]], pod="a"))

    seen: list[object] = []
    authority = Authority(datetime.now(UTC))
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    pair = authority.client(UserInfo("meter"))
    (tmp_path / "cert.pem").write_bytes(pair.certificate)
    (tmp_path / "key.pem").write_bytes(pair.key)
    tls = server_context(authority, ["elsewhere.example"])
    tls.verify_mode = ssl.CERT_REQUIRED
    cert_file, key_file = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    async with serving(handler, tls) as url:
        insecure = MeterSettings(
            url, trust=ExtenderTrust(is_insecure=True, cert_file=cert_file, key_file=key_file), tries=1
        )
        meter = PrometheusMeter(insecure, random.Random(1))
        pieces: list[Piece] = []
        await meter.ranges("up", GRID, pieces.append)
        assert len(pieces) == 1
        assert seen[0], "it showed its certificate"
        strict = ExtenderTrust(ca_file=str(tmp_path / "ca.pem"), cert_file=cert_file, key_file=key_file)
        meter = PrometheusMeter(MeterSettings(url, trust=strict, tries=1), random.Random(1))
        with pytest.raises(MeterError, match="certificate"):
            await meter.ranges("up", GRID, pieces.append)


async def test_invalid_token_file_is_named(tmp_path: Path) -> None:
    async def answer(form: Form) -> web.StreamResponse:
        return matrix(series([[START_S, "1"]], pod="a"))

    token = tmp_path / "token"
    for text in ("", " \n", "one\ntwo"):
        token.write_text(text)
        assert f"tokenFile {token} must hold a token in one line" in await failure(answer, {"token_file": str(token)})
    token.write_bytes(b"\xff")
    assert f"tokenFile {token} cannot be read" in await failure(answer, {"token_file": str(token)})


async def test_truncated_prometheus_response_is_reported() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()

    async with raw_serving(break_off) as url:
        meter = PrometheusMeter(MeterSettings(url, tries=1), random.Random(1))
        with pytest.raises(MeterError, match="the answer was lost"):
            await meter.ranges("up", GRID, lambda _: None)


async def test_unrequested_compression_is_refused() -> None:
    async def answer(form: Form) -> web.StreamResponse:
        return web.Response(body=b"x", headers={"Content-Encoding": "br"})

    assert "the response is compressed (br) although the request asked for none" in await failure(answer, {})
