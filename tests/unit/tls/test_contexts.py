"""Contexts and certificates as servers and clients share them."""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from multisched.client.tls_trust import context_of
from multisched.framework.ports import ExtenderTrust
from multisched.tls.certificates import BACKDATED, LIFETIME, Pair, common_name, new_key, pair_of, signed, unsigned
from multisched.tls.contexts import authorities_on_demand, client_context, empty_server_context, load_pair, pem_files

NOW = datetime(2026, 1, 1, tzinfo=UTC)
URL = "https://extender:1"


def a_pair(key_password: bytes = b"") -> Pair:
    key, name = new_key(), common_name("authority")
    pair = pair_of(signed(unsigned(name, name, key, NOW), key), key)
    if not key_password:
        return pair
    locked = serialization.BestAvailableEncryption(key_password)
    return Pair(
        pair.certificate, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )


def system_of(folder: Path, authority: Pair, monkeypatch: pytest.MonkeyPatch, *, links: int = 1) -> None:
    """A system that trusts one authority: with a bundle, and links by hash as on Debian."""
    name = x509.load_pem_x509_certificate(authority.certificate).subject
    number = int.from_bytes(hashlib.sha1(name.public_bytes()[2:], usedforsecurity=False).digest()[:4], "little")
    (folder / "bundle.crt").write_bytes(authority.certificate)
    for index in range(links):
        (folder / f"{number:08x}.{index}").symlink_to("bundle.crt")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "bundle.crt"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))


def is_trusted(client: ssl.SSLContext, server: ssl.SSLContext) -> bool:
    """Whether a TLS handshake in memory succeeds."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs, ours):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError:
            return False
    return True


def server_of(signer: Pair) -> ssl.SSLContext:
    key, issuer = new_key(), x509.load_pem_x509_certificate(signer.certificate).subject
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    builder = unsigned(common_name("localhost"), issuer, key, datetime.now(UTC)).add_extension(names, critical=False)
    signing = serialization.load_pem_private_key(signer.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    pair, context = pair_of(signed(builder, signing), key), empty_server_context()
    with pem_files(pair.certificate, pair.key) as (certificate, key_file):
        load_pair(context, certificate, key_file)
    return context


def an_authority(called: str = "authority") -> Pair:
    key, name = new_key(), common_name(called)
    basic = x509.BasicConstraints(ca=True, path_length=None)
    return pair_of(signed(unsigned(name, name, key, datetime.now(UTC)).add_extension(basic, critical=True), key), key)


def test_hashed_authorities_are_found_without_reading_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = an_authority(), an_authority()
    system_of(tmp_path, ours, monkeypatch)
    with authorities_on_demand():
        context = ssl.create_default_context()
    assert context.cert_store_stats()["x509"] == 0
    assert is_trusted(context, server_of(ours))
    assert not is_trusted(context, server_of(other))
    assert os.environ["SSL_CERT_FILE"] == str(tmp_path / "bundle.crt")


def test_bundle_without_hash_links_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system_of(tmp_path, an_authority(), monkeypatch, links=0)
    with authorities_on_demand():
        assert ssl.create_default_context().cert_store_stats()["x509"] == 1


def test_bundle_with_an_unlinked_authority_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked, appended = an_authority("linked"), an_authority("appended")
    system_of(tmp_path, linked, monkeypatch, links=2)  # as many links as certificates
    (tmp_path / "bundle.crt").rename(tmp_path / "linked.pem")
    for link in tmp_path.glob("*.[0-9]"):
        link.unlink()
        link.symlink_to("linked.pem")
    (tmp_path / "bundle.crt").write_bytes(linked.certificate + b"# of the company\n" + appended.certificate)
    with authorities_on_demand():
        context = ssl.create_default_context()
    assert is_trusted(context, server_of(appended))
    assert is_trusted(context, server_of(linked))


def test_hash_link_to_several_certificates_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked, appended = an_authority("linked"), an_authority("appended")
    system_of(tmp_path, linked, monkeypatch, links=2)
    with (tmp_path / "bundle.crt").open("ab") as bundle:
        bundle.write(appended.certificate)
    with authorities_on_demand():
        context = ssl.create_default_context()
    assert is_trusted(context, server_of(appended))


def test_certificate_file_without_a_hash_link_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked, lone = an_authority("linked"), an_authority("lone")
    system_of(tmp_path, linked, monkeypatch)
    (tmp_path / "lone.pem").write_bytes(lone.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "lone.pem"))
    with authorities_on_demand():
        context = ssl.create_default_context()
    assert is_trusted(context, server_of(lone))


def test_certificate_is_valid_from_shortly_before_its_creation() -> None:
    made = x509.load_pem_x509_certificate(a_pair().certificate)
    assert (made.not_valid_before_utc, made.not_valid_after_utc) == (NOW - BACKDATED, NOW + LIFETIME)


def test_key_files_are_private_and_deleted_after_the_block() -> None:
    with pem_files(b"one", b"two") as paths:
        assert [path.read_bytes() for path in paths] == [b"one", b"two"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert not any(path.exists() for path in paths)


def test_encrypted_key_is_refused_without_a_password_prompt(tmp_path: Path) -> None:
    pair = a_pair(b"secret")
    with (
        pem_files(pair.certificate, pair.key) as (certificate, key),
        pytest.raises(ValueError, match="must not have a password"),
    ):
        load_pair(empty_server_context(), certificate, key)
    with pytest.raises(ValueError, match="must not have a password"):
        context_of(URL, ExtenderTrust(cert_data=pair.certificate, key_data=pair.key))


def test_authorities_may_have_comments_in_any_language() -> None:
    context = client_context("# Müller & Söhne\n".encode() + a_pair().certificate)
    assert context.cert_store_stats()["x509"] == 1
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_authorities_without_a_certificate_are_refused() -> None:
    with pytest.raises(ValueError, match="no certificate"):
        client_context("äöü".encode())


def test_client_without_verification_accepts_any_name() -> None:
    context = client_context(b"", is_verifying=False)
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)


def test_empty_authorities_file_does_not_select_the_system_authorities(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    with pytest.raises(ValueError, match=r"ca\.pem is empty"):
        context_of(URL, ExtenderTrust(ca_file=str(tmp_path / "ca.pem")))


def test_key_and_certificate_may_be_in_one_file(tmp_path: Path) -> None:
    pair = a_pair()
    (tmp_path / "both.pem").write_bytes(pair.certificate + pair.key)
    assert isinstance(context_of(URL, ExtenderTrust(cert_file=str(tmp_path / "both.pem"))), ssl.SSLContext)


def test_without_https_there_is_no_context() -> None:
    assert context_of("http://extender:1", ExtenderTrust()) is True
