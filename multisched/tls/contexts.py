"""TLS contexts as all of us want them, and certificates from memory, which Python's ssl module reads from files only."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def empty_server_context() -> ssl.SSLContext:
    """To be given its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def read_pem(file: Path) -> bytes:
    """Read by us, so that what cannot be read is named. Raises OSError; ValueError for an empty file.

    No authority at all would stand for the system's.
    """
    content = file.read_bytes()
    if not content:
        raise ValueError(f"{file} is empty")
    return content


def client_context(authorities: bytes, *, is_verifying: bool = True) -> ssl.SSLContext:
    """`authorities`: PEM; empty: the system's. Raises ssl.SSLError; ValueError for bytes that hold no text at all."""
    text = authorities.decode("ascii", "ignore")  # what stands beside the certificates may be in any language
    if authorities and not text:
        raise ValueError("no certificate is among the authorities")
    context = ssl.create_default_context(cadata=text or None)
    if not is_verifying:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    """`key_file` None: the key stands beside the certificate. Raises OSError, ValueError, ssl.SSLError."""
    context.load_cert_chain(cert_file, key_file, password=_refuse_password)


@contextmanager
def pem_files(*contents: bytes) -> Iterator[list[Path]]:
    """A file for each, which its owner alone may read, as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="multisched-") as folder:
        paths = [Path(folder, f"{number}.pem") for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        yield paths


def _refuse_password() -> str:
    """Else OpenSSL would ask at the terminal and stop the program."""
    raise ValueError("the private key must not have a password")
