"""Credentials through kubernetes-asyncio: kubeconfig (certificates, tokens, exec, OIDC) and the in-cluster service
account.

Owns the import of that package and the current credentials of one transport. While requests are made, credentials are
read again at least once a minute and at once after a 401, but never by two requests at a time. No secret is part of a
message. Called by `transport` only.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import msgspec

from multisched.client.errors import EXPIRED_HINT, STATUS_TEXT_CHARS_MAX, CredentialsError
from multisched.client.kubeconfig_errors import reason_of
from multisched.client.kubeconfig_files import current_context, files_of

logger = logging.getLogger(__name__)

REREAD_INTERVAL_S: Final = 60.0
FORCED_INTERVAL_S: Final = 2.0
"""If 401s persist, credentials are read again (and an exec plugin runs) no more often than this."""
LOAD_TIMEOUT_S: Final = 30.0
"""An exec plugin that takes longer counts as failed."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

REPORT_INTERVAL_S: Final = 60.0
"""A persistent problem with credentials is logged no more often than this."""

_PACKAGE: Final = "kubernetes_asyncio"


class Vendor(msgspec.Struct, frozen=True):
    """The functions of kubernetes-asyncio that are used."""

    load_kube_config: Any
    load_incluster_config: Any


@cache
def import_vendor() -> Vendor:
    """Imports the configuration loaders without the generated models and APIs, and without a second HTTP client.

    `import kubernetes_asyncio` loads about 900 modules: 0.5 s and 38 MB (measured) that nothing here uses. Empty
    modules replace its package initialisers while the loaders are imported, unless the whole package is imported
    already. Everything is removed from `sys.modules` afterwards, so that a plugin can still import the real package.
    """
    if _PACKAGE in sys.modules:
        return _load_parts()
    with _without_initialisers():
        return _load_parts()


def _load_parts() -> Vendor:
    config = importlib.import_module(f"{_PACKAGE}.config")
    return Vendor(
        load_kube_config=config.load_kube_config,
        load_incluster_config=config.load_incluster_config,
    )


@contextmanager
def _without_initialisers() -> Iterator[None]:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise CredentialsError("the package kubernetes-asyncio is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    package, client = ModuleType(_PACKAGE), ModuleType(f"{_PACKAGE}.client")
    package.__path__ = [str(root)]
    # These names appear in signatures and in functions that are not called; the settings are `Settings` below.
    client.Configuration = client.ApiClient = object  # type: ignore[attr-defined]
    sys.modules[_PACKAGE], sys.modules[f"{_PACKAGE}.client"] = package, client
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
            del sys.modules[name]


class Settings:
    """The attributes that the library's loaders set, by its names. Its own class for them imports urllib3, which takes
    60 ms at startup.
    """

    def __init__(self) -> None:
        self.host = ""
        self.api_key: dict[str, str] = {}
        self.ssl_ca_cert: str | None = None
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.tls_server_name: str | None = None
        self.proxy: str | None = None


class Access(msgspec.Struct, frozen=True):
    """Everything needed to reach one API server and to authenticate to it, as read at one moment."""

    host: str
    authorization: str
    """The whole value of the Authorization header; empty for client certificates or no credentials."""
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    verify_tls: bool
    tls_server_name: str | None
    proxy: str | None
    file_versions: tuple[tuple[int, int], ...]
    """Modification time and size of the three files: a renewed certificate keeps its file name."""

    def connects_like(self, other: Access) -> bool:
        """Returns whether connections made for `other` can be used for this one too."""
        return _connection_parts(self) == _connection_parts(other)


def _connection_parts(access: Access) -> tuple[object, ...]:
    files = (access.ca_file, access.cert_file, access.key_file, access.file_versions)
    return (access.host, files, access.verify_tls, access.tls_server_name, access.proxy)


class CredentialSource(Protocol):
    """A source of credentials."""

    async def load(self, *, is_forced: bool) -> Access:
        """Reads the credentials again. `is_forced`: after a 401, when cached ones are not valid. Raises CredentialsError."""
        ...


class KubeconfigSource:
    """A kubeconfig of one file or several (`kubeconfig_files`), with `context` or its current context."""

    def __init__(self, vendor: Vendor, path: Path, context: str | None = None) -> None:
        self._vendor = vendor
        self._path = path
        self._context = context
        self._loader: Any = None
        self._settings = Settings()

    async def load(self, *, is_forced: bool) -> Access:
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                return await self._load(is_forced=is_forced)
        except TimeoutError as error:
            raise CredentialsError(
                f"kubeconfig {self._path}: its exec plugin took over {LOAD_TIMEOUT_S:.0f} s"
            ) from error
        except CredentialsError:
            raise
        except Exception as error:
            raise CredentialsError(f"kubeconfig {self._path}: {reason_of(self._path, self._context, error)}") from error

    async def _load(self, *, is_forced: bool) -> Access:
        if self._loader is None or (is_forced and self._loader.provider != "oidc"):
            # A new loader drops the cached output of an exec plugin and reads a rewritten file. An OIDC loader is kept,
            # because only it has the newest refresh token: the library's option to persist that token calls the
            # persister with an argument it does not take.
            files = files_of(self._path)
            if not files:
                raise CredentialsError(f"no kubeconfig at {self._path}")
            self._settings = Settings()
            self._loader = await self._vendor.load_kube_config(
                config_file=os.pathsep.join(str(file) for file in files),
                context=self._context or (current_context(files) if len(files) > 1 else None),
                client_configuration=self._settings,
                persist_config=False,
            )
        elif not self._is_exec_without_expiry():
            await self._loader.load_and_set(self._settings)
        if not self._settings.host:
            raise ValueError("its cluster has no server")
        return _access(self._settings)

    def _is_exec_without_expiry(self) -> bool:
        """Reports whether the credential is valid until a 401 (client-go's rule); the library would run the plugin at each reread."""
        user = self._loader._user  # noqa: SLF001 -- the library's own refresh_token() reads it, too
        return user is not None and "exec" in user and not hasattr(self._loader, "exec_plugin_expiry")


class InClusterSource:
    """The service account of the pod that this process runs in; kubelet rotates its token file."""

    def __init__(self, vendor: Vendor, directory: Path = SERVICE_ACCOUNT) -> None:
        self._vendor = vendor
        self._directory = directory

    async def load(self, *, is_forced: bool) -> Access:
        settings = Settings()
        try:
            self._vendor.load_incluster_config(
                client_configuration=settings,
                try_refresh_token=False,
                token_filename=str(self._directory / "token"),
                cert_filename=str(self._directory / "ca.crt"),
            )
        except Exception as error:
            raise CredentialsError(f"no service account: {str(error)[:STATUS_TEXT_CHARS_MAX]}") from error
        return _access(settings)


def _access(settings: Settings) -> Access:
    files = (settings.ssl_ca_cert, settings.cert_file, settings.key_file)
    return Access(
        host=settings.host.rstrip("/"),
        authorization=settings.api_key.get("BearerToken", "").strip(),
        ca_file=files[0],
        cert_file=files[1],
        key_file=files[2],
        verify_tls=settings.verify_ssl,
        tls_server_name=settings.tls_server_name,
        proxy=settings.proxy,
        file_versions=tuple(_file_version(file) for file in files),
    )


def _file_version(file: str | None) -> tuple[int, int]:
    if file is None:
        return (0, 0)
    try:
        stat = Path(file).stat()
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_size)


class Credentials:
    """The current Access. Requests renew it when it is due: there is no task and nothing to stop."""

    def __init__(self, source: CredentialSource, access: Access) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._renewal = asyncio.Lock()
        self._read_at = self._loop.time()
        self._forced_at = -math.inf
        self._reported_at: dict[str, float] = {}
        self.access = access
        self.renewals = 0
        self.failures = 0

    @classmethod
    async def load(cls, source: CredentialSource) -> Credentials:
        return cls(source, await source.load(is_forced=False))

    @property
    def is_due(self) -> bool:
        return self._loop.time() - self._read_at >= REREAD_INTERVAL_S and not self._renewal.locked()

    def expire(self) -> None:
        """Makes the next request read again, unless the last read is less than FORCED_INTERVAL_S ago (a certificate was refused)."""
        if self._loop.time() - self._read_at >= FORCED_INTERVAL_S:
            self._read_at = -math.inf

    async def reread(self) -> None:
        """Reads the credentials again, once a minute. If that fails, the current ones are kept: they may still be valid, else a 401 shows
        it.
        """
        async with self._renewal:
            await self._read(is_forced=False)

    async def renew(self, refused: Access) -> bool:
        """Reads again after a 401 for `refused`; returns whether the credentials or the server's address changed."""
        async with self._renewal:
            if self.access is refused and self._loop.time() - self._forced_at >= FORCED_INTERVAL_S:
                self._forced_at = self._loop.time()
                await self._read(is_forced=True)
        is_same = self.access.authorization == refused.authorization and self.access.connects_like(refused)
        if is_same:
            self._report(
                "the API server does not accept our credentials", {"server": refused.host, "hint": EXPIRED_HINT}
            )
        return not is_same

    async def _read(self, *, is_forced: bool) -> None:
        self._read_at = self._loop.time()
        try:
            self.access = await self._source.load(is_forced=is_forced)
        except CredentialsError as error:
            self.failures += 1
            self.report_unusable(error)
        else:
            self.renewals += 1

    def report_unusable(self, error: CredentialsError) -> None:
        """Logs that new credentials are unusable. The previous ones stay in use."""
        self._report("credentials cannot be renewed; the previous ones stay in use", {"reason": str(error)})

    def _report(self, text: str, fields: dict[str, str]) -> None:
        now_s = self._loop.time()
        if now_s - self._reported_at.get(text, -math.inf) >= REPORT_INTERVAL_S:
            self._reported_at[text] = now_s
            logger.warning(text, extra=fields)
