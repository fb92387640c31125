"""TLS contexts for the whole program; and temporary files for certificates, which Python's ssl module reads only from files."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")
"""Names of links under which OpenSSL looks for an authority."""
_BEGIN: Final = b"-----BEGIN "
_END: Final = b"-----END "


def empty_server_context() -> ssl.SSLContext:
    """Returns a server context without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def read_pem(file: Path) -> bytes:
    """Reads a PEM file, so that errors name the file. Raises OSError; ValueError for an empty file.

    Without that check, `client_context` would use the system's authorities for an empty file.
    """
    content = file.read_bytes()
    if not content:
        raise ValueError(f"{file} is empty")
    return content


def client_context(authorities: bytes, *, is_verifying: bool = True) -> ssl.SSLContext:
    """Returns a client context. `authorities`: PEM; empty: those of the system. Raises ssl.SSLError; ValueError for PEM without ASCII."""
    text = authorities.decode("ascii", "ignore")  # text next to the certificates may be in any language
    if authorities and not text:
        raise ValueError("the authorities contain no certificate")
    context = ssl.create_default_context(cadata=text or None)
    if not is_verifying:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    """Loads a certificate and its key. `key_file` None: `cert_file` contains the key. Raises OSError, ValueError, ssl.SSLError."""
    context.load_cert_chain(cert_file, key_file, password=_refuse_password)


@contextmanager
def authorities_on_demand() -> Iterator[None]:
    """Makes contexts that are created in the block look up the system's authorities when they verify a certificate.

    OpenSSL reads a whole bundle for each context, which takes 30 ms, and aiohttp creates two contexts when it is imported.
    If the directory of authorities has a link by hash to each certificate of the bundle, as on Debian, OpenSSL finds the
    same authorities there. Otherwise, nothing changes.
    """
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None or paths.capath is None or not _has_links(Path(paths.cafile), Path(paths.capath)):
        yield
        return
    before = os.environ.get(paths.openssl_cafile_env)
    os.environ[paths.openssl_cafile_env] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ[paths.openssl_cafile_env]
        else:
            os.environ[paths.openssl_cafile_env] = before


def _has_links(bundle: Path, folder: Path) -> bool:
    """Returns whether the folder contains a link by hash to each certificate of the bundle.

    Compares the texts, because an authority may have been appended to the bundle without a link. A target with several certificates does
    not count: OpenSSL finds it only by the hash of its link.
    """
    try:
        bundled = _certificates(bundle)
        targets = (_certificates(folder / name) for name in os.listdir(folder) if _HASHED.fullmatch(name))
        linked = {target[0] for target in targets if len(target) == 1}
    except OSError:
        return False
    return bool(bundled) and linked.issuperset(bundled)


def _certificates(file: Path) -> list[bytes]:
    """Returns the PEM blocks of a file, without the text between them. Raises OSError."""
    return [block.partition(_END)[0] for block in file.read_bytes().split(_BEGIN)[1:]]


@contextmanager
def pem_files(*contents: bytes) -> Iterator[list[Path]]:
    """Writes each content to a file that only its owner can read; yields the paths and deletes the files at exit."""
    with tempfile.TemporaryDirectory(prefix="multisched-") as folder:
        paths = [Path(folder, f"{number}.pem") for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        yield paths


def _refuse_password() -> str:
    """Raises ValueError; otherwise OpenSSL would ask for a password at the terminal and block the program."""
    raise ValueError("the private key must not have a password")
