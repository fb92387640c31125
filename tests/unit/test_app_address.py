"""The address that a Lease tells of its holder: one at which other machines find it."""

from __future__ import annotations

import os

import pytest

from multisched.app import advertised
from multisched.config.document import ConfigError
from multisched.config.schema import ServerConfig
from multisched.config.structure import from_plain

TLS = {"selfSigned": True}


@pytest.mark.parametrize(
    ("settings", "pod_ip", "bound", "told"),
    [
        ({}, "10.0.0.5", "http://127.0.0.1:4711", "http://127.0.0.1:4711"),
        ({"bindAddress": "192.0.2.7", "tls": TLS}, "10.0.0.5", "https://192.0.2.7:10260", "https://192.0.2.7:10260"),
        ({"bindAddress": "0.0.0.0", "tls": TLS}, "10.0.0.5", "https://0.0.0.0:10260", "https://10.0.0.5:10260"),
        ({"bindAddress": "::", "tls": TLS}, "fd00::5", "https://[::]:4711", "https://[fd00::5]:4711"),
        ({"bindAddress": "0.0.0.0", "tls": TLS}, "", "https://0.0.0.0:1", f"https://{os.uname().nodename}:1"),
        ({"advertisedUrl": "https://ms.example/"}, "10.0.0.5", "http://127.0.0.1:1", "https://ms.example"),
    ],
)
def test_bound_address_counts_unless_it_is_every_interface(
    settings: dict[str, object], pod_ip: str, bound: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_IP", pod_ip)
    assert advertised(from_plain(settings, ServerConfig), bound) == told


@pytest.mark.parametrize("url", ["ms.example:10260", "ftp://ms.example", "https://", "https://ms example"])
def test_address_that_is_no_server_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a server URL; write https://HOST:PORT"):
        from_plain({"advertisedUrl": url}, ServerConfig)
