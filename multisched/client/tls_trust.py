"""The TLS context for one https endpoint other than the API server: an extender, or a source of measurements."""

from __future__ import annotations

import ssl
from pathlib import Path

from multisched.framework.ports import ExtenderTrust
from multisched.tls.contexts import client_context, load_pair, pem_files, read_pem


def context_of(url: str, trust: ExtenderTrust) -> ssl.SSLContext | bool:
    """Returns the context for an https URL; True for any other. Raises OSError, ValueError, ssl.SSLError."""
    if not url.startswith("https:"):
        return True
    context = client_context(_pem(trust.ca_data, trust.ca_file), is_verifying=not trust.is_insecure)
    certificate = _pem(trust.cert_data, trust.cert_file)
    if certificate:
        key = _pem(trust.key_data, trust.key_file)
        with pem_files(certificate, key) as (cert_file, key_file):
            load_pair(context, cert_file, key_file if key else None)
    return context


def _pem(data: bytes, file: str) -> bytes:
    return read_pem(Path(file)) if file and not data else data
