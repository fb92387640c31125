"""Certificates of the embedded cluster: an authority made at start, the server's certificate and those of users.

Owns the authority's key. Elliptic curve keys, since RSA ones take longer to make than the whole cluster takes to start.
"""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from multisched.cluster.base.request import UserInfo

LIFETIME = timedelta(days=365)
BACKDATED = timedelta(hours=1)
"""Clocks of clients may be behind."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs the cluster's certificates."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "multisched-embedded-ca")])
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = builder.add_extension(identifier, critical=False).sign(self._key, hashes.SHA256())

    @property
    def certificate(self) -> bytes:
        """PEM of the authority, for kubeconfigs."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, hosts: Sequence[str]) -> Pair:
        """The API server's own."""
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        entries: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        for host in hosts:
            try:
                entries.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                entries.append(x509.DNSName(host))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(entries))

    def client(self, user: UserInfo) -> Pair:
        """A user's: the common name is the user, organizations are its groups."""
        groups = [group for group in user.groups if group != "system:authenticated"]
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user.name)])
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(subject_name=subject, issuer_name=self._name, public_key=key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(self._now - BACKDATED).not_valid_after(self._now + LIFETIME)

    def _issue(self, subject: x509.Name, purpose: x509.ObjectIdentifier, names: x509.ExtensionType | None) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key).add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)


def server_context(authority: Authority, hosts: Sequence[str]) -> ssl.SSLContext:
    """TLS for the server: client certificates are asked for, not demanded (tokens do as well)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=authority.certificate.decode())
    context.set_alpn_protocols(["http/1.1"])
    pair = authority.server(hosts)
    # The ssl module reads chains from files only; this one lives for a moment, readable by its owner alone.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.pem"
        path.touch(mode=0o600)
        path.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(path)
    return context
