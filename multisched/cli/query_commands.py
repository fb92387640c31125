"""Commands that query a server or a dump: their shared options, and the printing of their results.

    @app.command()
    @query_command(SourceOptions)
    def week(options: SourceOptions, service: str) -> str:
        return text_of(document_of(options.source(), "forecast", ViewQuery("service", {"name": service})))

`week` has the options of SourceOptions in addition to its own. Domains define their commands in the same way. This
module is imported at each start, so the modules that send queries are imported only by the command that needs them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar, get_type_hints

from multisched.cli.options import (
    DEPLOYED_IN,
    SERVER_VARIABLE,
    CaFile,
    ConfigFile,
    DeployedIn,
    Insecure,
    ServerUrl,
    Snapshot,
    TlsServerName,
    TokenContext,
    TokenFile,
    TokenKubeconfig,
    answered,
    configuration_of,
    fail,
    has_kubeconfig,
    show,
)
from multisched.config.options import DEFAULT_SERVER, RefusedError
from multisched.model.server_url import scheme_of

if TYPE_CHECKING:
    from multisched.cli.dump import Dump
    from multisched.cli.server import Server

    Source = Server | Dump
    """The source that a command queries."""

T = TypeVar("T")
R = TypeVar("R")
Output = str | Iterable[str] | None
"""The output of a command: at once, or part by part."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options for a running multisched and the credentials for it."""

    server: ServerUrl = None
    kubeconfig: TokenKubeconfig = None
    context: TokenContext = None
    namespace: DeployedIn = DEPLOYED_IN
    token_file: TokenFile = None
    ca_file: CaFile = None
    tls_server_name: TlsServerName = None
    insecure_skip_tls_verify: Insecure = False

    def running(self) -> Server:
        """Returns the process to query: by its address, or in the named cluster. Raises RefusedError."""
        from multisched.cli.server import Server

        is_in_cluster = self.kubeconfig is not None or self.context is not None
        url, named_by = self.server, "--server "
        if url is None and not is_in_cluster:  # an option overrides the environment
            url, named_by = os.environ.get(SERVER_VARIABLE) or None, f"{SERVER_VARIABLE}="
        if url is not None and not scheme_of(url):
            raise RefusedError(f"{named_by}{url}: write http://HOST:PORT or https://HOST:PORT")
        server = Server(
            DEFAULT_SERVER if url is None else url,
            self.kubeconfig,
            self.context,
            self.token_file,
            self.ca_file,
            not self.insecure_skip_tls_verify,
            () if self.tls_server_name is None else (self.tls_server_name,),
        )
        if url is not None:
            return server
        if not is_in_cluster:
            return server.with_advice() if has_kubeconfig() else server
        from multisched.cli.deployment import Deployment

        return server.within(Deployment(self.kubeconfig, self.context, self.namespace))


@dataclass(frozen=True, slots=True)
class SourceOptions(ServerOptions):
    """Options for a running multisched, or for a dump of a cluster instead."""

    snapshot: Snapshot = None
    config: ConfigFile = None

    def source(self) -> Source:
        """Returns what to query."""
        if self.snapshot is None:
            if self.config is not None:
                fail("--config needs --snapshot: a running multisched has its own configuration")
            return self.running()
        from multisched.cli.dump import Dump

        now, is_default = datetime.now(UTC), self.config is None
        return Dump(self.snapshot, configuration_of(self.config), now, is_default=is_default)


def with_options(shared: Callable[..., T]) -> Callable[[Callable[Concatenate[T, ...], R]], Callable[..., R]]:
    """Adds the options of `shared` to a function's own; the result of `shared` is the function's first argument."""

    def decorate(command: Callable[Concatenate[T, ...], R]) -> Callable[..., R]:
        own = list(inspect.signature(command).parameters.values())[1:]
        theirs = list(inspect.signature(shared).parameters.values())

        @wraps(command)
        def run(**given: Any) -> R:
            made = shared(**{one.name: given.pop(one.name) for one in theirs})
            return command(made, **given)

        hints = get_type_hints(shared, include_extras=True) | get_type_hints(command, include_extras=True)
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in (*own, *theirs)
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def query_command(shared: Callable[..., T]) -> Callable[[Callable[Concatenate[T, ...], Output]], Callable[..., None]]:
    """Like `with_options`, and prints what the command returns. If a query fails, the command ends with a sentence that
    gives the reason.
    """

    def decorate(command: Callable[Concatenate[T, ...], Output]) -> Callable[..., None]:
        ask = with_options(shared)(command)

        @wraps(ask)
        def run(**given: Any) -> None:
            with answered():
                output = ask(**given)
                for part in (output,) if isinstance(output, str) else output or ():
                    show(part)

        return run

    return decorate
