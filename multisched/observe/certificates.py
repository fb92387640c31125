"""The server's TLS: certificate files that are read again when they change, or a certificate made at start.

Private keys touch the disk only where the operator put them, or for an instant in a private temporary folder.
"""

from __future__ import annotations

import ssl
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SELF_SIGNED_DAYS: Final = 365
CLOCK_SKEW: Final = timedelta(hours=1)
RELOAD_INTERVAL_S: Final = 30.0


class CertificateError(Exception):
    """There is no usable certificate; the message names the file and the reason."""


class ServerCertificate:
    """An SSL context that stays the same while its certificate is renewed: new handshakes get the new one."""

    def __init__(self, cert_file: Path, key_file: Path, *, is_lasting: bool = True) -> None:
        """`is_lasting` False: the files go away once they are read, and are never looked at again."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._cert_file, self._key_file = cert_file, key_file
        self._is_lasting = is_lasting
        self._stamp = self._read_stamp()
        self.expires_at = self._load()

    def reload_if_changed(self) -> bool:
        """True if there was something new. Raises CertificateError and keeps the old one if the new is not usable."""
        if not self._is_lasting or (stamp := self._read_stamp()) == self._stamp:
            return False
        self.expires_at = self._load()
        self._stamp = stamp
        return True

    def _load(self) -> datetime:
        try:
            expires_at = x509.load_pem_x509_certificate(self._cert_file.read_bytes()).not_valid_after_utc
            self.context.load_cert_chain(self._cert_file, self._key_file, password=_refuse_password)
        except (OSError, ValueError, ssl.SSLError) as error:
            raise CertificateError(f"server.tls: {self._cert_file}, {self._key_file}: {error}") from error
        return expires_at

    def _read_stamp(self) -> tuple[int, ...]:
        try:
            stats = [path.stat() for path in (self._cert_file, self._key_file)]
        except OSError as error:
            raise CertificateError(f"server.tls: {error}") from error
        return tuple(number for stat in stats for number in (stat.st_mtime_ns, stat.st_size, stat.st_ino))


def _refuse_password() -> str:
    """Else OpenSSL would ask at the terminal and stop the program."""
    raise ValueError("the private key must not have a password")


def self_signed(host: str, now: datetime) -> ServerCertificate:
    """A certificate nobody can verify, made for this process: enough for probes and encrypted scrapes."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "multisched")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory(prefix="multisched-") as folder:
        cert_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.touch(mode=0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return ServerCertificate(cert_file, key_file, is_lasting=False)
