"""The server's TLS: certificate files that are read again when they change, or a certificate created at startup.

Private keys are on disk only where the operator put them, or for an instant in a private temporary folder.
"""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path
from typing import Final

from multisched.tls.contexts import empty_server_context, load_pair, pem_files

RELOAD_INTERVAL_S: Final = 30.0


class CertificateError(Exception):
    """There is no usable certificate; the message names the file and the reason."""


class ServerCertificate:
    """An SSL context whose certificate can be renewed: new handshakes use the new one."""

    def __init__(self, cert_file: Path, key_file: Path, *, is_lasting: bool = True) -> None:
        """`is_lasting` False: the files are deleted after the first read and never read again."""
        self.context = empty_server_context()
        self._cert_file, self._key_file = cert_file, key_file
        self._is_lasting = is_lasting
        self._file_versions = self._read_file_versions()
        self.expires_at = self._load()

    def reload_if_changed(self) -> bool:
        """Returns whether there was a new certificate. Raises CertificateError and keeps the old one if the new one is not usable."""
        if not self._is_lasting or (versions := self._read_file_versions()) == self._file_versions:
            return False
        self.expires_at = self._load()
        self._file_versions = versions
        return True

    def _load(self) -> datetime:
        from cryptography import x509

        try:
            expires_at = x509.load_pem_x509_certificate(self._cert_file.read_bytes()).not_valid_after_utc
            load_pair(self.context, self._cert_file, self._key_file)
        except (OSError, ValueError, ssl.SSLError) as error:
            raise CertificateError(f"server.tls: {self._cert_file}, {self._key_file}: {error}") from error
        return expires_at

    def _read_file_versions(self) -> tuple[int, ...]:
        try:
            stats = [path.stat() for path in (self._cert_file, self._key_file)]
        except OSError as error:
            raise CertificateError(f"server.tls: {error.filename} cannot be read: {error.strerror}") from error
        return tuple(number for stat in stats for number in (stat.st_mtime_ns, stat.st_size, stat.st_ino))


def self_signed(host: str, now: datetime) -> ServerCertificate:
    """Creates a self-signed certificate for this process, which no client can verify: enough for probes and encrypted scrapes."""
    from cryptography import x509

    from multisched.tls.certificates import common_name, new_key, pair_of, signed, unsigned

    key, name = new_key(), common_name("multisched")
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(host)])
    builder = unsigned(name, name, key, now).add_extension(hosts, critical=False)
    pair = pair_of(signed(builder, key), key)
    with pem_files(pair.certificate, pair.key) as (cert_file, key_file):
        return ServerCertificate(cert_file, key_file, is_lasting=False)
