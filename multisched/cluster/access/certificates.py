"""Certificates of the embedded cluster: a certificate authority created at start; certificates of the server and of users.

Owns the authority's private key.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from multisched.cluster.base.request import UserInfo
from multisched.tls.certificates import Pair, common_name, new_key, pair_of, pem_of, signed, unsigned
from multisched.tls.contexts import empty_server_context, load_pair, pem_files


class Authority:
    """The certificate authority of the cluster."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._key = new_key()
        self._name = common_name("multisched-embedded-ca")
        builder = unsigned(self._name, self._name, self._key, now)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = signed(builder.add_extension(identifier, critical=False), self._key)

    @property
    def certificate(self) -> bytes:
        """Returns the authority's certificate as PEM, for kubeconfigs."""
        return pem_of(self._certificate)

    def server(self, hosts: Sequence[str]) -> Pair:
        """Issues the API server's certificate for these hosts."""
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        entries: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        for host in hosts:
            try:
                entries.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                entries.append(x509.DNSName(host))
        return self._issue(
            common_name("kube-apiserver"), ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(entries)
        )

    def client(self, user: UserInfo) -> Pair:
        """Issues a user's certificate: the common name is the user, the organizations are its groups."""
        groups = [group for group in user.groups if group != "system:authenticated"]
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user.name)])
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(self, subject: x509.Name, purpose: x509.ObjectIdentifier, names: x509.ExtensionType | None) -> Pair:
        key = new_key()
        builder = unsigned(subject, self._name, key, self._now)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return pair_of(signed(builder, self._key), key)


def server_context(authority: Authority, hosts: Sequence[str]) -> ssl.SSLContext:
    """Builds the server's TLS context; client certificates are optional, since clients may use tokens."""
    context = empty_server_context()
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=authority.certificate.decode())
    context.set_alpn_protocols(["http/1.1"])
    pair = authority.server(hosts)
    with pem_files(pair.certificate, pair.key) as (cert_file, key_file):
        load_pair(context, cert_file, key_file)
    return context
