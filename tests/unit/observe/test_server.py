"""The HTTP server: what is open, what is guarded, and what a broken request costs."""

from __future__ import annotations

import asyncio
import io
import os
import re
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from multisched.framework.views import unknown_parameter
from multisched.observe.access import DelegatedAuthenticator
from multisched.observe.admission_view import REVIEW_BYTES_MAX, REVIEWS_MAX, VALIDATE_QUOTAS_PATH
from multisched.observe.certificates import CertificateError, ServerCertificate, self_signed
from multisched.observe.connections import Connections
from multisched.observe.explain_view import PodView, WhatIfList, WhatIfView, decode_view
from multisched.observe.health import Health
from multisched.observe.loopback import TokenFileError, own_token, read_token, token_folder
from multisched.observe.queue_view import decode_queue
from multisched.observe.repair_view import PLAN_PARAMETERS, decode_plan, decode_status
from multisched.observe.server import (
    NOT_ACCEPTED,
    REQUEST_BYTES_MAX,
    ServerError,
    ServerSettings,
    _Routes,
    reviewed_path,
)
from tests.unit.observe.observe_kit import EPOCH, READER, STRANGER, HandClock, OneReview, a_reviewer, served, sources_of

GUARDED = (
    "/metrics",
    "/api/v1/queue",
    "/api/v1/explain/pod/default/late",
    "/api/v1/repair/plan",
    "/api/v1/repair/status",
    "/api/v1/forecast/nodes",
    "/api/v1/overview",
    "/api/v1/overview/stream",
    "/api/v1/nodes/n1",
    "/api",
    "/page/",
    "/page/secret.js",
    "/no/such/path",
)
VERBOSE = ("/livez?verbose", "/readyz?verbose")


async def get(url: str, path: str, *, token: str = "", host: str = "", verify: bool = True) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if host:
        headers["Host"] = host
    async with aiohttp.ClientSession() as session, session.get(url + path, headers=headers, ssl=verify) as answer:
        return answer.status, await answer.text()


async def post(
    url: str, path: str, body: bytes, *, kind: str = "application/json", headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    headers = {"Content-Type": kind, **(headers or {})}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, data=io.BytesIO(body), headers=headers) as answer,
    ):
        return answer.status, await answer.text()


def guarded_settings(authenticator: DelegatedAuthenticator) -> ServerSettings:
    return ServerSettings(port=0, authenticator=authenticator)


async def test_probes_need_no_token_and_return_only_ok_or_failed() -> None:
    health = Health()
    authenticator = DelegatedAuthenticator(await a_reviewer(), HandClock())
    async with served(guarded_settings(authenticator), health=health) as url:
        assert await get(url, "/livez") == (200, "ok")
        assert await get(url, "/readyz") == (503, "failed")
        health.add_readiness("caches", lambda: "")
        assert await get(url, "/readyz") == (200, "ok")


@pytest.mark.parametrize("path", GUARDED)
async def test_other_paths_need_a_token(path: str) -> None:
    authenticator = DelegatedAuthenticator(await a_reviewer(), HandClock())
    async with served(guarded_settings(authenticator)) as url:
        assert await get(url, path) == (401, "give a bearer token\n")
        assert await get(url, path, token="made-up") == (401, f"{NOT_ACCEPTED}\n")
        status, message = await get(url, path, token=STRANGER)
        assert status == 403
        assert f"may not get {reviewed_path(path)}; bind it" in message
        assert message.endswith("ClusterRole multisched-reader\n")


async def test_every_route_except_probes_and_files_of_the_page_needs_a_token() -> None:
    settings = guarded_settings(DelegatedAuthenticator(await a_reviewer(), HandClock()))
    application = _Routes(settings, sources_of(Health()), Connections(settings.limits)).application()
    routes = {(route.method, route.resource.canonical) for route in application.router.routes() if route.resource}
    assert len(routes) > 10
    async with served(settings) as url, aiohttp.ClientSession() as session:
        opened = set()
        for method, path in sorted(routes):
            async with session.request(method, url + re.sub(r"{\w+}", "x", path)) as answer:
                assert answer.status in (200, 401, 503)
                if answer.status != 401:
                    opened.add(path)
    assert opened == {"/livez", "/readyz", "/"}


async def test_repair_run_needs_its_permission(tmp_path: Path) -> None:
    authenticator = DelegatedAuthenticator(await a_reviewer(), HandClock())
    settings = ServerSettings(port=0, authenticator=authenticator, token_folder=tmp_path)
    run = ("/api/v1/repair/run", b'{"digest": "abc"}')
    async with served(settings) as url:
        assert (await post(url, *run))[0] == 401
        for token in (READER, STRANGER):
            status, message = await post(url, *run, headers={"Authorization": f"Bearer {token}"})
            assert (status, message.endswith("ClusterRole multisched-repairer\n")) == (403, True)
        assert os.listdir(tmp_path) == [], "where users are known there is no token of the process"


@pytest.mark.parametrize("path", VERBOSE)
async def test_verbose_health_needs_a_token_as_in_kubernetes(path: str) -> None:
    authenticator = DelegatedAuthenticator(await a_reviewer(), HandClock())
    async with served(guarded_settings(authenticator)) as url:
        assert (await get(url, path))[0] == 401
        assert (await get(url, path, token="made-up"))[0] == 401
        assert (await get(url, path, token=STRANGER))[0] != 403


async def test_reader_gets_exactly_what_rbac_grants() -> None:
    authenticator = DelegatedAuthenticator(await a_reviewer(), HandClock())
    async with served(guarded_settings(authenticator)) as url:
        status, text = await get(url, "/metrics", token=READER)
        assert status == 200
        assert "process_cpu_seconds_total" in text
        assert (await get(url, "/api/v1/queue", token=READER))[0] == 403


async def test_verbose_health_names_each_check() -> None:
    health = Health()
    health.add_readiness("reflector pods", lambda: "not synced")
    async with served(ServerSettings(port=0), health=health) as url:
        status, text = await get(url, "/readyz?verbose")
        assert status == 503
        assert text == "[-]reflector pods failed: not synced\n[+]shutdown ok\nfailed\n"


async def test_queue_is_limited() -> None:
    async with served(ServerSettings(port=0), pods=600) as url:
        view = decode_queue((await get(url, "/api/v1/queue"))[1].encode())
        assert (len(view.pods), view.left_out) == (500, 100)
        view = decode_queue((await get(url, "/api/v1/queue?limit=0"))[1].encode())
        assert (view.pods, view.left_out, view.domains[0].counts["unschedulable"]) == ((), 600, 600)


@pytest.mark.parametrize("limit", ["-1", "5001", "ten", "9" * 40, "%D9%A1"])
async def test_invalid_limit_is_refused(limit: str) -> None:
    async with served(ServerSettings(port=0)) as url:
        assert await get(url, f"/api/v1/queue?limit={limit}") == (400, "limit must be a number of 0..5000\n")


async def test_unknown_domain_is_not_found() -> None:
    async with served(ServerSettings(port=0)) as url:
        told = "domain nowhere: no such domain; there are job\n"
        assert await get(url, "/api/v1/queue?domain=nowhere") == (404, told)


async def test_explain_passes_its_parameters() -> None:
    async with served(ServerSettings(port=0)) as url:
        status, text = await get(url, "/api/v1/explain/pod/default/late?node=n1&fix=true&names=7")
        assert status == 200
        assert decode_view(text.encode(), PodView).notes == ("node=n1", "fix=True", "names=7")
        assert (await get(url, "/api/v1/explain/pod/default/other")) == (404, "pod default/other is not known here\n")
        assert (await get(url, "/api/v1/explain/pod/default/late?names=5001"))[0] == 400
        assert (await get(url, "/api/v1/explain/pod/default/broken")) == (500, "internal error\n")


async def test_plugin_view_is_passed_on_with_its_parameters() -> None:
    async with served(ServerSettings(port=0)) as url:
        assert await get(url, "/api/v1/forecast/nodes?domain=a&x=%2F") == (200, '{"asked":{"domain":"a","x":"/"}}')
        assert await get(url, "/api/v1/forecast/stars") == (404, "forecast has no stars\n")
        assert (await get(url, "/api/v1/forecast"))[0] == 404


@pytest.mark.parametrize(
    ("path", "reviewed"),
    [
        ("/api/v1/forecast/node", "/multisched/api/v1/forecast"),
        ("/api/v1/explain/pod/a/b", "/multisched/api/v1/explain"),
        ("/api/v1/queue", "/multisched/api/v1/queue"),
        ("/api/v1//node", "/multisched/api/v1/"),
        ("/metrics", "/metrics"),
    ],
)
def test_permission_for_one_view_covers_all_of_a_kind(path: str, reviewed: str) -> None:
    assert reviewed_path(path) == reviewed


async def test_what_if_accepts_only_a_json_manifest() -> None:
    async with served(ServerSettings(port=0)) as url:
        status, text = await post(url, "/api/v1/explain/what-if?replicas=3", b'{"kind": "Pod"}')
        assert (status, decode_view(text.encode(), WhatIfView).replicas) == (200, 3)
        several = b'{"kind": "List", "items": [{"kind": "Pod"}, {"kind": "Pod"}]}'
        status, text = await post(url, "/api/v1/explain/what-if?replicas=3", several)
        found = decode_view(text.encode(), WhatIfList)
        assert (status, [one.replicas for one in found.items]) == (200, [3, 3])
        assert (await post(url, "/api/v1/explain/what-if", b"{}"))[0] == 422
        assert (await post(url, "/api/v1/explain/what-if", b"kind: Pod"))[0] == 400
        assert (await post(url, "/api/v1/explain/what-if?replicas=1001", b"{}"))[0] == 400
        status, text = await post(url, "/api/v1/explain/what-if?replicas=10000&preempt=false", b'{"kind": "Pod"}')
        assert (status, decode_view(text.encode(), WhatIfView).replicas) == (200, 10_000)
        assert (await post(url, "/api/v1/explain/what-if?replicas=10001&preempt=false", b"{}"))[0] == 400
        assert (await post(url, "/api/v1/explain/what-if?preempt=false", several))[0] == 400
        assert (await post(url, "/api/v1/explain/what-if", b"{}", kind="text/plain"))[0] == 415
        assert (await post(url, "/api/v1/explain/what-if", b" " * (REQUEST_BYTES_MAX + 1)))[0] == 413


async def test_repair_plan_passes_its_parameters() -> None:
    async with served(ServerSettings(port=0)) as url:
        query = "threshold=log=90&threshold=80&moves=5&movesPerService=0&domain=forecast"
        status, text = await get(url, f"/api/v1/repair/plan?{query}")
        assert status == 200
        plan = decode_plan(text.encode())
        assert plan.threshold_percent == {"log": 90.0, "": 80.0}
        assert (plan.domain, plan.notes) == ("forecast", ("moves=5 None 0",))
        assert (await get(url, "/api/v1/repair/plan"))[0] == 200
        assert await get(url, "/api/v1/repair/plan?domain=nowhere") == (404, "domain nowhere: no such domain\n")
        assert await get(url, "/api/v1/repair/plan?domain=broken") == (500, "internal error\n")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("threshold=log", "threshold 'log': write DIMENSION=PERCENT such as log=90"),
        ("threshold=log=-3", "write DIMENSION=PERCENT"),
        ("threshold=log=nan", "write DIMENSION=PERCENT"),
        ("threshold=inf", "write DIMENSION=PERCENT"),
        ("threshold==90", "write DIMENSION=PERCENT"),
        ("threshold=90&threshold=80", "the one for all is given twice"),
        ("&".join(f"threshold=d{number}=90" for number in range(65)), "write DIMENSION=PERCENT"),
        ("moves=-1", "moves must be a number of 0..10000"),
        ("moves=10001", "moves must be a number of 0..10000"),
        ("movesPerNode=ten", "movesPerNode must be a number"),
        (
            "treshold=90",
            "treshold: unknown parameter; known here: domain, threshold, moves, movesPerNode, movesPerService",
        ),
    ],
)
async def test_invalid_repair_plan_request_is_refused_with_the_fix(query: str, words: str) -> None:
    async with served(ServerSettings(port=0)) as url:
        status, text = await get(url, f"/api/v1/repair/plan?{query}")
        assert (status, words in text) == (400, True), text


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/api/v1/queue?domian=job", "known here: domain, limit"),
        ("/api/v1/explain/pod/default/late?node=n1&domian=job", "known here: node, fix, now, names"),
        ("/api/v1/repair/plan?domian=job", f"known here: {', '.join(PLAN_PARAMETERS)}"),
        ("/api/v1/repair/status?domian=job", "known here: domain"),
    ],
)
async def test_unknown_parameter_is_refused_by_name(path: str, known: str) -> None:
    async with served(ServerSettings(port=0)) as url:
        assert await get(url, path) == (400, f"domian: unknown parameter; {known}\n")
        assert unknown_parameter(["domian"], ()) == "domian: unknown parameter; none is known here"
        assert (await get(url, f"{path.partition('?')[0]}?a%0A%1Bb=1"))[0] == 400
        assert (await get(url, "/readyz?exclude=etcd"))[0] != 400, "as probes of Kubernetes send it"


async def test_plan_is_executed_by_digest_and_its_run_shown(tmp_path: Path) -> None:
    async with served(ServerSettings(port=0, token_folder=tmp_path)) as url:
        own = {"Authorization": f"Bearer {read_token(tmp_path, urlsplit(url).port or 0)}"}
        status, text = await post(url, "/api/v1/repair/run?moves=2", b'{"digest": "abc"}', headers=own)
        assert (status, decode_status(text.encode()).steps) == (202, 2)
        assert await post(url, "/api/v1/repair/run", b'{"digest": "other"}', headers=own) == (
            409,
            "outside the windows of repair: the next one opens at 2026-01-01T01:00:00Z\n",
        )
        for body in (b"", b"{}", b'{"digest": 1}', b'{"digest": "abc", "force": true}'):
            assert (await post(url, "/api/v1/repair/run", body, headers=own))[0] == 400
        assert (await post(url, "/api/v1/repair/run?force=1", b'{"digest": "abc"}', headers=own))[0] == 400
        assert (await post(url, "/api/v1/repair/run", b'{"digest": "abc"}', kind="text/plain", headers=own))[0] == 415
        assert (await get(url, "/api/v1/repair/run"))[0] == 404
        status, text = await get(url, "/api/v1/repair/status?domain=forecast")
        assert (status, decode_status(text.encode()).move) == (200, "shop/web-1 from n1 to n2")
        assert await get(url, "/api/v1/repair/status?domain=nowhere") == (404, "domain nowhere: no such domain\n")


async def test_changes_without_authentication_need_the_process_token(tmp_path: Path) -> None:
    async with served(ServerSettings(port=0, token_folder=tmp_path / "own")) as url:
        port = urlsplit(url).port or 0
        run = ("/api/v1/repair/run", b'{"digest": "abc"}')
        status, text = await post(url, *run)
        assert (status, "server.authentication" in text) == (401, True)
        for token in ("", "made-up", "\xe9"):
            assert (await post(url, *run, headers={"Authorization": f"Bearer {token}"}))[0] == 401
        token = read_token(tmp_path / "own", port)
        assert (await post(url, *run, headers={"Authorization": f"Bearer {token}"}))[0] == 202
        assert (await post(url, "/api/v1/not/there/yet", b"{}"))[0] == 401, "what is new asks for it, too"
        (kept,) = (tmp_path / "own").iterdir()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    assert not kept.exists()
    async with served(ServerSettings(port=0)) as url:
        assert (await post(url, *run, headers={"Authorization": "Bearer "}))[0] == 401


async def test_non_text_token_is_a_wrong_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(ServerSettings(port=0, token_folder=tmp_path / "own")) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(
            b"POST /api/v1/repair/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xe9\r\nContent-Length: 0\r\n\r\n"
        )
        assert await reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
        writer.transport.abort()
    assert not caplog.records


def test_folder_writable_by_others_is_named(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    with pytest.raises(TokenFileError) as refused, own_token(tmp_path, 1):
        raise AssertionError("others may replace the token")
    assert str(refused.value) == f"{tmp_path}: other users may read or replace it; remove it, or chmod go= it"


def test_tokens_have_their_own_folder_below_a_shared_one(tmp_path: Path) -> None:
    """Tools make `~/.cache/multisched`, too, and with mode 0755."""
    cache = tmp_path / ".cache" / "multisched"
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    folder = token_folder({"HOME": str(tmp_path)})
    with own_token(folder, 1) as token:
        assert read_token(folder, 1) == token
    assert folder.parent == cache
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_folder_writable_by_others_holds_no_token(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    async with served(ServerSettings(port=0, token_folder=tmp_path)) as url:
        assert (await post(url, "/api/v1/repair/run", b'{"digest": "abc"}'))[0] == 401
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:1"}]
    + [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "made-up")],
    ids=str,
)
async def test_cross_origin_requests_are_refused_without_authentication(
    headers: dict[str, str], tmp_path: Path
) -> None:
    async with served(ServerSettings(port=0, token_folder=tmp_path)) as url:
        own = {"Authorization": f"Bearer {read_token(tmp_path, urlsplit(url).port or 0)}"}
        assert (await post(url, "/api/v1/repair/run", b'{"digest": "abc"}', headers={**own, **headers}))[0] == 403
        assert (await post(url, "/api/v1/explain/what-if", b'{"kind": "Pod"}', headers=headers))[0] == 403
        same = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
        assert (await post(url, "/api/v1/explain/what-if", b'{"kind": "Pod"}', headers=same))[0] == 200


async def test_failed_handler_fails_only_its_request() -> None:
    async with served(ServerSettings(port=0)) as url:
        assert await get(url, "/api/v1/queue?domain=broken") == (500, "internal error\n")
        assert (await get(url, "/api/v1/queue"))[0] == 200


async def test_only_loopback_names_are_answered_without_authentication() -> None:
    async with served(ServerSettings(port=0)) as url:
        assert (await get(url, "/metrics", host="evil.example"))[0] == 403
        assert (await get(url, "/metrics", host="localhost:1"))[0] == 200
        assert (await get(url, "/metrics", host="[::1]"))[0] == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_tls_and_authentication(address: str) -> None:
    with pytest.raises(ServerError, match="TLS and authentication only"):
        ServerSettings(bind_address=address)
    with pytest.raises(ServerError):
        ServerSettings(bind_address=address, certificate=self_signed("host", EPOCH))


async def test_used_port_is_an_error_with_its_address() -> None:
    async with served(ServerSettings(port=0)) as url:
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(ServerError, match=f"cannot listen on 127.0.0.1:{port}: .*; set another one with --port"):
            async with served(ServerSettings(port=port)):
                pass


async def test_self_signed_certificate_serves_tls() -> None:
    settings = ServerSettings(port=0, certificate=self_signed("host", EPOCH))
    async with served(settings) as url:
        assert url.startswith("https://")
        assert await get(url, "/livez", verify=False) == (200, "ok")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(url, "/livez")


def test_renewed_certificate_is_loaded_and_a_broken_one_is_not(tmp_path: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    _write_pair(cert, key, "first")
    certificate = ServerCertificate(cert, key)
    assert not certificate.reload_if_changed()
    _write_pair(cert, key, "second")
    os.utime(cert, ns=(1, 1))
    assert certificate.reload_if_changed()
    cert.write_text("nonsense")
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        certificate.reload_if_changed()
    assert isinstance(certificate.context, ssl.SSLContext)


def test_missing_certificate_is_named() -> None:
    with pytest.raises(CertificateError, match=r"/none/tls\.crt"):
        ServerCertificate(Path("/none/tls.crt"), Path("/none/tls.key"))


def _write_pair(cert: Path, key: Path, name: str) -> None:
    from multisched.cluster.access.certificates import Authority

    pair = Authority(EPOCH).server([name])
    cert.write_bytes(pair.certificate)
    key.write_bytes(pair.key)


# -- reviews of quotas ---------------------------------------------------------------------------------------------------


async def test_quota_reviews_need_the_setting() -> None:
    authenticator = DelegatedAuthenticator(await a_reviewer(), HandClock())
    async with served(ServerSettings(port=0)) as url:
        assert (await post(url, VALIDATE_QUOTAS_PATH, b"{}"))[0] == 401
    async with served(guarded_settings(authenticator)) as url:
        assert (await post(url, VALIDATE_QUOTAS_PATH, b"{}"))[0] == 401


async def test_api_server_reviews_quotas_without_a_token_and_gets_nothing_else() -> None:
    settings = guarded_settings(DelegatedAuthenticator(await a_reviewer(), HandClock()))
    async with served(settings, admission=OneReview()) as url:
        assert await post(url, VALIDATE_QUOTAS_PATH, b'{"request": 1}') == (200, '{"reviewed": {"request": 1}}')
        assert await post(url, VALIDATE_QUOTAS_PATH, b"no") == (400, "no review\n")
        assert (await get(url, VALIDATE_QUOTAS_PATH))[0] in (401, 405)
        for path in GUARDED:
            assert (await get(url, path))[0] == 401


async def test_review_size_is_limited() -> None:
    async with served(ServerSettings(port=0), admission=OneReview()) as url:
        body = b'{"a": "' + b"x" * (REQUEST_BYTES_MAX * 2) + b'"}'
        status, text = await post(url, VALIDATE_QUOTAS_PATH, body)
        assert (status, len(text) > len(body)) == (200, True)
        assert (await post(url, VALIDATE_QUOTAS_PATH, b" " * (REVIEW_BYTES_MAX + 1)))[0] == 413
        assert (await post(url, "/api/v1/explain/what-if", b" " * (REQUEST_BYTES_MAX + 1)))[0] == 413


async def test_cross_origin_quota_reviews_are_refused() -> None:
    async with served(ServerSettings(port=0), admission=OneReview()) as url:
        headers = {"Origin": "http://example.com", "Sec-Fetch-Site": "cross-site"}
        assert (await post(url, VALIDATE_QUOTAS_PATH, b"{}", headers=headers))[0] == 403


async def test_number_of_concurrent_quota_reviews_is_limited() -> None:
    source = OneReview(is_slow=True, full_at=REVIEWS_MAX)
    async with served(ServerSettings(port=0), admission=source) as url, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(post(url, VALIDATE_QUOTAS_PATH, b"{}")) for _ in range(REVIEWS_MAX)]
        await source.full.wait()
        assert (await post(url, VALIDATE_QUOTAS_PATH, b"{}"))[0] == 429
        source.go_on.set()
        assert [(await one)[0] for one in waiting] == [200] * REVIEWS_MAX
        assert (await post(url, VALIDATE_QUOTAS_PATH, b"{}"))[0] == 200
