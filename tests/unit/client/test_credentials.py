"""Credentials that rotate, expire, run a plugin, or are not there; certificates that are renewed; proxies."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from multisched.client.auth import REREAD_INTERVAL_S, Credentials, InClusterSource, KubeconfigSource, import_vendor
from multisched.client.errors import CredentialsError
from multisched.client.transport import connect, open_transport
from multisched.cluster.access.certificates import Authority, server_context
from multisched.model.wire import ConnectFailedError
from tests.unit.client.servers import Handler, connected, serving, write_kubeconfig
from tests.unit.tls.test_contexts import a_pair

EXEC_PLUGIN = """
import json, pathlib, sys
count = pathlib.Path(sys.argv[1])
number = int(count.read_text() or 0) + 1 if count.exists() else 1
count.write_text(str(number))
status = {{"token": f"token-{{number}}"{expiry}}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""

SERVERLESS = """
clusters: [{name: it, cluster: {}}]
contexts: [{name: it, context: {cluster: it, user: it}}]
users: [{name: it, user: {token: t}}]
current-context: it
"""


def expecting(valid: set[str], seen: list[str]) -> Handler:
    """A server that lets in the tokens of `valid`, which a test may change."""

    async def handle(request: web.BaseRequest) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        seen.append(token)
        return web.Response(status=200 if token in valid else 401)

    return handle


def exec_user(folder: Path, expiry: str = "") -> dict[str, object]:
    script = folder / "plugin.py"
    script.write_text(EXEC_PLUGIN.format(expiry=expiry))
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(script), str(folder / "count")],
        "interactiveMode": "Never",
    }
    return {"exec": command}


async def test_rotated_token_is_reread_on_a_401_for_all_requests(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    valid, seen = {"old"}, list[str]()
    async with (
        serving(expecting(valid, seen)) as address,
        connected(tmp_path, address, {"tokenFile": str(token)}) as transport,
    ):
        assert (await transport.request("GET", "/x")).status == 200
        token.write_text("new\n")
        valid.clear()
        valid.add("new")
        answers = await asyncio.gather(*(transport.request("POST", "/x", body=b"{}") for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert transport._credentials.renewals == 1
        assert seen.count("new") == 20


async def test_lasting_401_is_returned_and_rereads_are_limited(tmp_path: Path) -> None:
    seen: list[str] = []
    async with serving(expecting(set(), seen)) as address, connected(tmp_path, address) as transport:
        for _ in range(10):
            assert (await transport.request("GET", "/x")).status == 401
        assert transport._credentials.renewals == 1
        assert len(seen) == 10


async def test_watch_is_reopened_with_the_new_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    valid, seen = {"new"}, list[str]()
    async with (
        serving(expecting(valid, seen)) as address,
        connected(tmp_path, address, {"tokenFile": str(token)}) as transport,
    ):
        token.write_text("new")
        async with transport.stream("/x?watch=1") as stream:
            assert stream.status == 200
        assert seen == ["old", "new"]


async def test_service_account_token_is_reread_each_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(dt.datetime.now(dt.UTC))
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "token").write_text("one\n")
    valid, seen = {"one", "two"}, list[str]()
    async with serving(expecting(valid, seen), server_context(authority, ["127.0.0.1"])) as address:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", address.rpartition(":")[2])
        vendor = import_vendor()
        credentials = await Credentials.load(InClusterSource(vendor, tmp_path))
        async with open_transport(credentials) as transport:
            await transport.request("GET", "/x")
            (tmp_path / "token").write_text("two\n")
            await transport.request("GET", "/x")
            credentials._read_at -= REREAD_INTERVAL_S
            await transport.request("GET", "/x")
        assert seen == ["one", "one", "two"]
        assert transport.statistics().sessions == 1


async def test_an_exec_plugin_without_expiry_runs_again_on_a_401_only(tmp_path: Path) -> None:
    valid, seen = {"token-1"}, list[str]()
    async with serving(expecting(valid, seen)) as address:
        async with connected(tmp_path, address, exec_user(tmp_path)) as transport:
            await transport.request("GET", "/x")
            transport._credentials._read_at -= REREAD_INTERVAL_S
            await transport.request("GET", "/x")
            valid.clear()
            valid.add("token-2")
            assert (await transport.request("GET", "/x")).status == 200
        assert seen == ["token-1", "token-1", "token-1", "token-2"]


async def test_an_exec_plugins_token_is_renewed_before_it_expires(tmp_path: Path) -> None:
    soon = (dt.datetime.now(dt.UTC) + dt.timedelta(minutes=4)).strftime("%Y-%m-%dT%H:%M:%SZ")
    user = exec_user(tmp_path, f', "expirationTimestamp": "{soon}"')
    valid, seen = {"token-1", "token-2"}, list[str]()
    async with serving(expecting(valid, seen)) as address, connected(tmp_path, address, user) as transport:
        await transport.request("GET", "/x")
        transport._credentials._read_at -= REREAD_INTERVAL_S
        await transport.request("GET", "/x")
    assert seen == ["token-1", "token-2"]


async def test_failed_reread_keeps_credentials_and_is_counted(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("good")
    valid, seen = {"good"}, list[str]()
    async with (
        serving(expecting(valid, seen)) as address,
        connected(tmp_path, address, {"tokenFile": str(token)}) as transport,
    ):
        token.unlink()
        transport._credentials._read_at -= REREAD_INTERVAL_S
        assert (await transport.request("GET", "/x")).status == 200
        assert transport._credentials.failures == 1


async def test_renewed_server_ca_is_trusted_without_a_restart(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    old, new = Authority(now), Authority(now)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(old.certificate)
    seen: list[str] = []
    async with (
        serving(expecting({"token-1"}, seen), server_context(new, ["127.0.0.1"])) as address,
        connected(tmp_path, address, cluster={"certificate-authority": str(ca)}) as transport,
    ):
        with pytest.raises(ConnectFailedError, match="certificate"):
            await transport.request("GET", "/x")
        assert seen == []
        ca.write_bytes(new.certificate + b"\n")
        transport._credentials._read_at -= REREAD_INTERVAL_S
        assert (await transport.request("GET", "/x")).status == 200
        assert transport.statistics().sessions == 2
        assert not transport._retired


async def test_open_watch_survives_a_certificate_renewal(tmp_path: Path) -> None:
    authority = Authority(dt.datetime.now(dt.UTC))
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate)
    may_go_on = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        if request.path == "/watch":
            await may_go_on.wait()
            await response.write(b"two\n")
        return response

    async with (
        serving(handle, server_context(authority, ["127.0.0.1"])) as address,
        connected(tmp_path, address, cluster={"certificate-authority": str(ca)}) as transport,
    ):
        async with transport.stream("/watch") as stream:
            ca.write_bytes(authority.certificate + b"\n")
            transport._credentials._read_at -= REREAD_INTERVAL_S
            await transport.request("GET", "/x")
            assert len(transport._retired) == 1
            may_go_on.set()
            assert [line async for line in stream] == [b"one", b"two"]
        assert not transport._retired


async def test_certificate_of_an_unknown_ca_is_refused(tmp_path: Path) -> None:
    authority = Authority(dt.datetime.now(dt.UTC))
    async with (
        serving(expecting({"token-1"}, []), server_context(authority, ["127.0.0.1"])) as address,
        connected(tmp_path, address) as transport,
    ):
        with pytest.raises(ConnectFailedError):
            await transport.request("GET", "/x")


async def test_environment_proxy_is_used_unless_the_host_is_exempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        asked.append(request.raw_path)
        return web.Response()

    async with serving(handle) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with connected(tmp_path, "http://api.invalid:6443") as transport:
            assert (await transport.request("GET", "/x")).status == 200
        async with connected(tmp_path, proxy) as transport:
            await transport.request("GET", "/y")
    assert asked == ["http://api.invalid:6443/x", "/y"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "no kubeconfig at"),
        ("", "kubeconfig"),
        ("{", "kubeconfig"),
        ("[]", "kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "kubeconfig"),
        ("clusters: []\ncontexts: []\nusers: []\ncurrent-context: nope\n", "nope"),
        (SERVERLESS, "cluster it has no server; write https://HOST:PORT"),
    ],
)
async def test_unusable_kubeconfig_is_named_in_one_error(tmp_path: Path, text: str | None, what: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CredentialsError, match=what) as caught:
        async with connect(path):
            pass
    assert str(path) in str(caught.value)


async def test_missing_context_and_failed_plugin_are_reported(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    with pytest.raises(CredentialsError, match="other"):
        async with connect(path, "other"):
            pass
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/plugin"}}
    with pytest.raises(CredentialsError, match="its exec plugin /no/such/plugin is not installed"):
        async with connect(write_kubeconfig(tmp_path, "http://127.0.0.1:1", user)):
            pass


def imported_of_vendor() -> list[str]:
    """Modules of kubernetes-asyncio."""
    return [name for name in sys.modules if name.partition(".")[0] == "kubernetes_asyncio"]


@pytest.mark.parametrize("is_imported_already", [False, True])
async def test_partial_import_reads_kubeconfigs_and_service_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported_already: bool
) -> None:
    """Narrowly, or from the whole package, which a plugin may have imported."""
    kubeconfig = tmp_path / "kubeconfig"
    for name in imported_of_vendor():
        monkeypatch.delitem(sys.modules, name)
    if is_imported_already:
        importlib.import_module("kubernetes_asyncio")
    try:
        vendor = import_vendor.__wrapped__()
        is_there = bool(imported_of_vendor())
    finally:
        for name in imported_of_vendor():
            del sys.modules[name]
    assert is_there == is_imported_already
    seen: list[str] = []
    async with serving(expecting({"token-1"}, seen)) as address:
        assert write_kubeconfig(tmp_path, address) == kubeconfig
        credentials = await Credentials.load(KubeconfigSource(vendor, kubeconfig))
        async with open_transport(credentials) as transport, transport.stream("/x?watch=1") as stream:
            assert stream.status == 200
    assert seen == ["token-1"]
    (tmp_path / "ca.crt").write_bytes(Authority(dt.datetime.now(dt.UTC)).certificate)
    (tmp_path / "token").write_text("one\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    inside = (await Credentials.load(InClusterSource(vendor, tmp_path))).access
    assert (inside.host, inside.authorization) == ("https://10.0.0.1:443", "Bearer one")


def test_partial_import_keeps_the_real_package_importable() -> None:
    code = (
        "import sys; from multisched.client.auth import import_vendor; import_vendor();"
        "assert not [m for m in sys.modules if m.startswith(('kubernetes_asyncio', 'urllib3'))];"
        "import kubernetes_asyncio; kubernetes_asyncio.client.CoreV1Api; kubernetes_asyncio.config.load_kube_config"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


@pytest.mark.parametrize("kind", ["authority", "pair"])
async def test_invalid_certificates_are_reported_with_a_fix(kind: str, tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("no certificate\n")
    none = str(tmp_path / "none.pem")
    user = {"client-certificate": none, "client-key": none} if kind == "pair" else {"token": "t"}
    cluster = {"certificate-authority": none} if kind == "authority" else {}
    path = write_kubeconfig(tmp_path, "https://127.0.0.1:1", user, cluster)
    with pytest.raises(CredentialsError, match=r"the certificates for https://127.0.0.1:1 cannot be used .*; check"):
        async with connect(path):
            raise AssertionError("there is nothing to connect with")


async def test_encrypted_client_key_is_refused_without_a_prompt(tmp_path: Path) -> None:
    pair = a_pair(key_password=b"locked")
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    user = {"client-certificate": str(tmp_path / "tls.crt"), "client-key": str(tmp_path / "tls.key")}
    with pytest.raises(CredentialsError, match=r"\(ValueError the private key must not have a password\)"):
        async with connect(write_kubeconfig(tmp_path, "https://127.0.0.1:1", user)):
            raise AssertionError("there is nothing to connect with")


async def test_http_server_needs_no_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", None)
    async with serving(expecting({"token-1"}, [])) as address, connected(tmp_path, address) as transport:
        assert (await transport.request("GET", "/x")).status == 200
        async with transport.stream("/x?watch=1") as stream:
            assert stream.status == 200


async def test_partial_certificate_renewal_keeps_the_old_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(dt.datetime.now(dt.UTC))
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate)
    async with (
        serving(expecting({"token-1"}, []), server_context(authority, ["127.0.0.1"])) as address,
        connected(tmp_path, address, cluster={"certificate-authority": str(ca)}) as transport,
    ):
        ca.write_bytes(authority.certificate[:40])
        transport._credentials._read_at -= REREAD_INTERVAL_S
        for _ in range(3):
            assert (await transport.request("GET", "/x")).status == 200
        told = [record for record in caplog.records if record.message.startswith("credentials cannot be renewed")]
        assert [vars(record)["reason"].startswith("the certificates for ") for record in told] == [True]
        ca.write_bytes(authority.certificate + b"\n")
        transport._credentials._read_at -= REREAD_INTERVAL_S
        assert (await transport.request("GET", "/x")).status == 200
        assert transport.statistics().sessions == 3


async def test_lasting_401_is_logged_once_with_the_fix(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(expecting(set(), [])) as address, connected(tmp_path, address) as transport:
        for _ in range(5):
            assert (await transport.request("GET", "/x")).status == 401
    (told,) = [record for record in caplog.records if record.name == "multisched.client.auth"]
    assert (told.levelname, told.message) == ("WARNING", "the API server does not accept our credentials")
    assert "renew the token or certificate" in vars(told)["hint"]


async def test_failed_plugin_is_logged_and_its_last_token_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soon = (dt.datetime.now(dt.UTC) + dt.timedelta(minutes=4)).strftime("%Y-%m-%dT%H:%M:%SZ")
    user = exec_user(tmp_path, f', "expirationTimestamp": "{soon}"')
    async with (
        serving(expecting({"token-1"}, [])) as address,
        connected(tmp_path, address, user) as transport,
    ):
        (tmp_path / "plugin.py").write_text("raise SystemExit(3)")
        transport._credentials._read_at -= REREAD_INTERVAL_S
        assert (await transport.request("GET", "/x")).status == 200
    (told,) = [record for record in caplog.records if record.name == "multisched.client.auth"]
    assert told.message == "credentials cannot be renewed; the previous ones stay in use"
    assert "its exec plugin" in vars(told)["reason"]
