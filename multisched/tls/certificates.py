"""New keys and certificates. Keys are elliptic curve keys, because generating RSA keys takes longer than starting a whole cluster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME: Final = timedelta(days=365)
BACKDATED: Final = timedelta(hours=1)
"""A certificate is valid from this long before its creation, because clients' clocks may be slow."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    """Returns the builder of a certificate of the key, to be extended and signed; valid from `now - BACKDATED` to `now + LIFETIME`."""
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - BACKDATED).not_valid_after(now + LIFETIME)


def signed(builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    return builder.sign(signer, hashes.SHA256())


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def pair_of(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(pem_of(certificate), private)
