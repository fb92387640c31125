"""The certificates of one throw-away control plane: a CA, a serving pair on loopback, a ServiceAccount signing key.

Owns nothing after `write_certificates` returns: the files are the control plane's. Elliptic keys, because a test that
waits for RSA primes is a slow test; every extension that Python's strict X.509 checks (3.13+) ask for is there.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME: Final = datetime.timedelta(days=2)
CLOCK_SLACK: Final = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files in one folder."""

    ca: Path
    serving: Path
    serving_key: Path
    service_account_key: Path


def write_certificates(folder: Path) -> Certificates:
    """Writes a fresh set for 127.0.0.1 and localhost into `folder`, which must exist."""
    files = Certificates(*(folder / name for name in ("ca.crt", "serving.crt", "serving.key", "service-account.key")))
    ca_key, serving_key, account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = _certificate(_name("multisched-test-ca"), ca_key, issuer=None, issuer_key=ca_key)
    serving = _certificate(_name("kube-apiserver"), serving_key, issuer=ca, issuer_key=ca_key)
    for path, certificate in ((files.ca, ca), (files.serving, serving)):
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    # TraditionalOpenSSL: kube-apiserver takes an elliptic ServiceAccount key as "EC PRIVATE KEY" and not as PKCS 8
    for path, key in ((files.serving_key, serving_key), (files.service_account_key, account_key)):
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
    return files


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    is_ca = issuer is None
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(_key_usage(is_ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_ca:
        loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(loopback), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _key_usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
