"""When credentials are read again, by virtual time, and where they are looked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from multisched.client import transport
from multisched.client.auth import FORCED_INTERVAL_S, REREAD_INTERVAL_S, Access, Credentials, Vendor, import_vendor
from multisched.client.errors import CredentialsError
from tests.unit.client.servers import write_kubeconfig

pytestmark = pytest.mark.looptime


def access(token: str = "one", **fields: Any) -> Access:
    parts: dict[str, Any] = dict.fromkeys(("ca_file", "cert_file", "key_file", "tls_server_name", "proxy"))
    parts |= {"host": "https://server", "verify_tls": True, "file_versions": (), **fields}
    return Access(authorization=f"Bearer {token}", **parts)


class Source:
    """Gives what stands in `now`, and remembers how it was asked."""

    def __init__(self) -> None:
        self.now: Access | None = access()
        self.asked: list[bool] = []

    async def load(self, *, is_forced: bool) -> Access:
        self.asked.append(is_forced)
        await asyncio.sleep(0.1)
        if self.now is None:
            raise CredentialsError("gone")
        return self.now


async def test_credentials_are_due_each_interval_and_kept_on_failure() -> None:
    source = Source()
    found = await Credentials.load(source)
    assert not found.is_due
    await asyncio.sleep(REREAD_INTERVAL_S - 1)
    assert not found.is_due
    await asyncio.sleep(1)
    assert found.is_due
    source.now = access("two")
    reading = asyncio.create_task(found.reread())
    await asyncio.sleep(0.05)
    assert not found.is_due, "somebody reads them already"
    await reading
    assert (found.access.authorization, found.renewals, found.failures) == ("Bearer two", 1, 0)
    assert not found.is_due
    source.now = None
    await found.reread()
    assert (found.access.authorization, found.renewals, found.failures) == ("Bearer two", 1, 1)
    assert source.asked == [False, False, False]


async def test_refused_token_is_renewed_once_for_all_requests() -> None:
    source = Source()
    found = await Credentials.load(source)
    refused, source.now = found.access, access("two")
    assert await asyncio.gather(*(found.renew(refused) for _ in range(5))) == [True] * 5
    assert source.asked == [False, True]
    assert not await found.renew(found.access), "it was forced a moment ago"
    await asyncio.sleep(FORCED_INTERVAL_S)
    assert not await found.renew(found.access), "there is nothing else to try"
    assert source.asked == [False, True, True]


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "https://other"},
        {"ca_file": "ca"},
        {"cert_file": "cert"},
        {"key_file": "key"},
        {"verify_tls": False},
        {"tls_server_name": "other"},
        {"proxy": "http://proxy"},
        {"file_versions": ((1, 2),)},
    ],
)
async def test_any_changed_credential_is_tried(changed: dict[str, Any]) -> None:
    source = Source()
    found = await Credentials.load(source)
    refused, source.now = found.access, access(**changed)
    assert await found.renew(refused)
    assert not found.access.connects_like(refused)
    assert access("three", **changed).connects_like(found.access), "the token is no matter of the connection"


async def test_credentials_with_a_refused_certificate_are_due_at_once_but_limited() -> None:
    found = await Credentials.load(Source())
    await asyncio.sleep(FORCED_INTERVAL_S / 2)
    found.expire()
    assert not found.is_due
    await asyncio.sleep(FORCED_INTERVAL_S / 2 + 0.1)
    found.expire()
    assert found.is_due
    await found.reread()
    assert not found.is_due


def vendor(*, is_inside: bool) -> Vendor:
    """`is_inside`: whether this is a pod with a service account."""

    def load(client_configuration: Any, **paths: Any) -> None:
        if not is_inside:
            raise LookupError("no service host")
        client_configuration.host = "https://inside/"
        client_configuration.api_key["BearerToken"] = "Bearer pod"

    return msgspec.structs.replace(import_vendor(), load_incluster_config=load)


async def test_in_cluster_account_precedes_the_default_kubeconfig_but_not_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "named").mkdir()
    default = write_kubeconfig(tmp_path, "http://default")
    named = write_kubeconfig(tmp_path / "named", "http://named")
    monkeypatch.setenv("KUBECONFIG", str(default))
    inside, outside = vendor(is_inside=True), vendor(is_inside=False)
    hosts = [
        (await transport.find_credentials(where, path, None)).access.host
        for where, path in ((inside, None), (outside, None), (inside, named), (outside, named))
    ]
    assert hosts == ["https://inside", "http://default", "http://named", "http://named"]
    with pytest.raises(CredentialsError, match="other"):
        await transport.find_credentials(outside, None, "other")


async def test_missing_credentials_name_both_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "none"
    monkeypatch.setenv("KUBECONFIG", str(nowhere))
    with pytest.raises(CredentialsError) as told:
        await transport.find_credentials(vendor(is_inside=False), None, None)
    assert str(told.value) == f"no kubeconfig at {nowhere}; no service account: no service host"


async def test_interval_ends_inclusively() -> None:
    source = Source()
    found, expired = Credentials(source, access()), Credentials(source, access())
    await found.renew(found.access)  # takes a tenth of a second
    await asyncio.sleep(FORCED_INTERVAL_S - 0.1)
    expired.expire()
    assert expired.is_due
    await found.renew(found.access)
    assert source.asked == [True, True]
