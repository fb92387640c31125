"""Requests to extenders that answer, refuse, hang, flood, redirect or are down: every end is told with the extender's name."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import orjson
import pytest
from aiohttp import web

from multisched.client import extender_client
from multisched.client.extender_client import (
    LEFT_ALONE_S,
    SILENCES_MAX,
    ApiDocuments,
    HttpExtenderClient,
)
from multisched.cluster.access.certificates import Authority, server_context
from multisched.cluster.base.request import UserInfo
from multisched.framework.ports import ExtenderError, ExtenderSettings, ExtenderTrust, UnreachableError
from multisched.model.wire import ConnectFailedError, Response
from tests.leaping_loop import leap
from tests.unit.client.servers import Handler, raw_serving, serving

LIMIT = 4096
PATIENCE_S = 60.0
"""No machine takes that long to answer."""


async def answered(settings: ExtenderSettings, verb: str = "filter", body: bytes = b"{}") -> bytes:
    client = HttpExtenderClient(settings)
    try:
        return await client.post(verb, body, answer_bytes_max=LIMIT)
    finally:
        await client.close()


async def refused(settings: ExtenderSettings, verb: str = "filter") -> ExtenderError:
    with pytest.raises(ExtenderError) as caught:
        await answered(settings, verb)
    return caught.value


async def test_extender_verb_is_posted_as_json_and_the_body_returned() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        assert request.method == "POST"
        assert request.headers["Content-Type"] == "application/json"
        return web.Response(body=request.path.encode() + b" " + await request.read())

    async with serving(handler) as url:
        assert (
            await answered(ExtenderSettings(f"{url}/scheduler/"), "filter", b'{"Pod":1}')
            == b'/scheduler/filter {"Pod":1}'
        )


async def test_status_other_than_200_has_the_upstream_message() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(status=503, text="no")

    async with serving(handler) as url:
        error = await refused(ExtenderSettings(url, timeout_s=PATIENCE_S))
    assert str(error) == f"failed filter with extender at URL {url}/filter, code 503"


async def test_redirects_are_not_followed() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:1/elsewhere")

    async with serving(handler) as url:
        assert "code 307" in str(await refused(ExtenderSettings(url, timeout_s=PATIENCE_S)))


async def test_hung_extender_fails_at_its_timeout() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handler) as url:
        error = await refused(ExtenderSettings(url, timeout_s=0.2))
    assert str(error) == f'extender "{url}" (filter): no answer within 0.2 s'
    assert error.was_sent


async def test_slow_extender_fails_at_its_timeout() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with raw_serving(drip) as url:
        assert "no answer within 0.2 s" in str(await refused(ExtenderSettings(url, timeout_s=0.2)))


async def test_oversized_extender_response_is_read_only_to_the_cap() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            sent += 65536
            await writer.drain()

    async with raw_serving(flood) as url:
        error = await refused(ExtenderSettings(url, timeout_s=PATIENCE_S))
    assert str(error) == f'extender "{url}" (filter): the answer was not read to its end: the answer exceeds 4096 bytes'
    assert sent < 64 * 1024 * 1024


async def test_response_with_a_length_of_10_gb_is_not_read() -> None:
    async def announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        await writer.drain()
        await asyncio.Event().wait()

    async with raw_serving(announce) as url:
        assert "an answer of 10000000000 bytes exceeds 4096 bytes" in str(
            await refused(ExtenderSettings(url, timeout_s=PATIENCE_S))
        )


async def test_truncated_response_is_lost() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()

    async with raw_serving(cut) as url:
        error = await refused(ExtenderSettings(url, timeout_s=PATIENCE_S))
    assert str(error).startswith(f'extender "{url}" (filter): ')
    assert error.was_sent


async def test_unreachable_extender_has_received_nothing() -> None:
    async with serving(_never) as url:
        pass
    error = await refused(ExtenderSettings(url, timeout_s=PATIENCE_S))
    assert str(error).startswith(f'extender "{url}" (filter): cannot be reached: ClientConnectorError')
    assert not error.was_sent


async def _never(request: web.BaseRequest) -> web.Response:
    raise AssertionError("nobody asks")


async def test_silent_extender_is_skipped_and_then_probed_with_one_request() -> None:
    asked, is_well = 0, asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.Response:
        nonlocal asked
        asked += 1
        await is_well.wait()
        return web.Response(body=b"{}")

    async with serving(handler) as url:
        client = HttpExtenderClient(ExtenderSettings(url, timeout_s=PATIENCE_S))
        for number in range(1, SILENCES_MAX + 1):
            question = asyncio.create_task(client.post("filter", b"{}", answer_bytes_max=LIMIT))
            while asked < number:  # noqa: ASYNC110 -- the server's turn
                await asyncio.sleep(0)
            leap(PATIENCE_S)
            with pytest.raises(ExtenderError, match="no answer within"):
                await question
        client._left_alone_until_s += PATIENCE_S  # however slow the machine is
        for _ in range(20):
            with pytest.raises(ExtenderError, match="does not respond; it is called only every 5 s") as caught:
                await client.post("filter", b"{}", answer_bytes_max=LIMIT)
            assert not caught.value.was_sent
        assert asked == SILENCES_MAX

        is_well.set()
        client._left_alone_until_s = asyncio.get_running_loop().time()  # as LEFT_ALONE_S later
        results = await asyncio.gather(
            *(client.post("filter", b"{}", answer_bytes_max=LIMIT) for _ in range(3)), return_exceptions=True
        )
        assert results[0] == b"{}"
        assert all(isinstance(result, ExtenderError) for result in results[1:])
        assert await client.post("filter", b"{}", answer_bytes_max=LIMIT) == b"{}"
        assert LEFT_ALONE_S == 5.0
        await client.close()


async def test_refusal_does_not_count_as_silence() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(status=500)

    async with serving(handler) as url:
        client = HttpExtenderClient(ExtenderSettings(url, timeout_s=PATIENCE_S))
        for _ in range(SILENCES_MAX + 2):
            with pytest.raises(ExtenderError, match="code 500"):
                await client.post("filter", b"{}", answer_bytes_max=LIMIT)
        await client.close()


# ---- TLS


async def _fine(request: web.BaseRequest) -> web.Response:
    return web.Response(body=b"fine")


FINE: Handler = _fine


async def test_https_is_verified_unless_disabled(tmp_path: Path) -> None:
    authority = Authority(datetime.now(UTC))
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate)
    async with serving(FINE, server_context(authority, ["127.0.0.1"])) as url:
        assert "certificate verify failed" in str(await refused(ExtenderSettings(url, timeout_s=PATIENCE_S)))
        for trust in (
            ExtenderTrust(ca_file=str(ca)),
            ExtenderTrust(ca_data=authority.certificate),
            ExtenderTrust(is_insecure=True),
        ):
            assert await answered(ExtenderSettings(url, trust=trust)) == b"fine"


async def test_certificate_name_can_be_configured(tmp_path: Path) -> None:
    authority = Authority(datetime.now(UTC))
    async with serving(FINE, server_context(authority, ["extender.team.svc"])) as url:
        trust = ExtenderTrust(ca_data=authority.certificate)
        assert "certificate" in str(await refused(ExtenderSettings(url, trust=trust)))
        named = ExtenderTrust(ca_data=authority.certificate, server_name="extender.team.svc")
        assert await answered(ExtenderSettings(url, trust=named)) == b"fine"


async def test_client_certificate_is_presented_to_the_extender() -> None:
    authority = Authority(datetime.now(UTC))
    pair = authority.client(UserInfo("scheduler", ()))

    async def handler(request: web.BaseRequest) -> web.Response:
        transport = request.transport
        assert transport is not None
        return web.json_response(transport.get_extra_info("peercert").get("subject"))

    async with serving(handler, server_context(authority, ["127.0.0.1"])) as url:
        trust = ExtenderTrust(ca_data=authority.certificate, cert_data=pair.certificate, key_data=pair.key)
        assert b"scheduler" in await answered(ExtenderSettings(url, trust=trust))


def test_unreadable_certificates_are_reported_at_start(tmp_path: Path) -> None:
    for trust in (
        ExtenderTrust(ca_file=str(tmp_path / "none")),
        ExtenderTrust(ca_data=b"no pem"),
        ExtenderTrust(cert_data=b"no pem", key_data=b"no pem"),
    ):
        with pytest.raises(ExtenderError, match='extender "https://h:1": tlsConfig cannot be used') as caught:
            HttpExtenderClient(ExtenderSettings("https://h:1", trust=trust))
        assert trust.ca_file in str(caught.value)


# ---- documents


class OneAnswer:
    """A transport with one answer, or none."""

    def __init__(self, answer: Response | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **_: object) -> Response:
        self.asked.append(f"{method} {path}")
        if self.answer is None:
            raise ConnectFailedError("down")
        return self.answer

    def stream(self, path: str, **_: object) -> object:
        raise AssertionError("nothing is watched")


def documents(answer: Response | None) -> tuple[ApiDocuments, OneAnswer]:
    transport = OneAnswer(answer)
    return ApiDocuments(transport), transport  # type: ignore[arg-type]


async def test_pod_document_is_complete_without_managed_fields() -> None:
    pod = {"metadata": {"name": "a", "managedFields": [1], "labels": {"x": "y"}}, "spec": {"anything": 1}}
    found, transport = documents(Response(200, orjson.dumps(pod)))
    assert orjson.loads(await found.pod("team", "a") or b"") == {
        "metadata": {"name": "a", "labels": {"x": "y"}},
        "spec": {"anything": 1},
    }
    assert transport.asked == ["GET /api/v1/namespaces/team/pods/a"]


async def test_deleted_pod_document_is_none_and_a_failed_read_is_unreachable() -> None:
    assert await documents(Response(404, b""))[0].pod("team", "a") is None
    for answer, why in ((Response(500, b""), "HTTP 500"), (None, "down")):
        with pytest.raises(UnreachableError, match=f"^pod team/a could not be read for an extender: {why}$"):
            await documents(answer)[0].pod("team", "a")


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"metadata":[]}', b'{"kind":"Status"}', b'{"metadata":null}'])
async def test_invalid_object_is_passed_on_unchanged(body: bytes) -> None:
    assert await documents(Response(200, body))[0].pod("team", "a") == body


class Heard:
    """A handler that notes what comes."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        self.heard.append(f"+{key} {bytes(raw).decode()}")

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        self.heard.append(f"-{key}")

    def replaced(self, version: str) -> None:
        self.heard.append(version)


def test_node_documents_follow_the_watch_and_are_passed_on() -> None:
    found, heard = documents(None)[0], Heard()
    tap = found.watching(heard)
    managed = '{"metadata":{"name":"n1","managedFields":[]},"status":{}}'
    tap.upsert("n1", msgspec.Raw(managed.encode()))
    assert found.node("n1") == b'{"metadata":{"name":"n1"},"status":{}}'
    tap.upsert("n1", msgspec.Raw(b'{"metadata":{"name":"n1"},"status":{"a":1}}'))
    assert found.node("n1") == b'{"metadata":{"name":"n1"},"status":{"a":1}}'
    tap.delete("n1", None)
    tap.replaced("7")
    assert found.node("n1") == b'{"metadata":{"name":"n1"}}'
    assert heard.heard == [f"+n1 {managed}", '+n1 {"metadata":{"name":"n1"},"status":{"a":1}}', "-n1", "7"]


def test_node_documents_over_the_limit_are_sent_as_names(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = {name: b'{"metadata":{"name":"%s"},"status":{}}' % name.encode() for name in ("n1", "n2", "n3")}
    monkeypatch.setattr(extender_client, "NODES_BYTES_MAX", len(whole["n1"]) + len(whole["n2"]))
    found = documents(None)[0]

    def kept() -> list[str]:
        return [name for name, raw in whole.items() if found.node(name) == raw]

    for _ in range(3):  # each again and again, as the watch tells of them
        for name, raw in whole.items():
            found.keep(name, raw)
        assert kept() == ["n1", "n2"]
    assert found.node("n3") == b'{"metadata":{"name":"n3"}}'
    assert [record.message for record in caplog.records] == ["no room for more whole nodes for extenders"]
    found.drop("n1")
    found.drop("n1")
    found.drop("nobody")
    for name in ("n3", "n1"):
        found.keep(name, whole[name])
    assert kept() == ["n2", "n3"]
