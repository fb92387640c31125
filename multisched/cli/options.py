"""Shared by several commands: options that name a source and an output format, and the printing of errors. Only prints and exits."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from multisched.cli.driving import is_without_room
from multisched.config.options import DEFAULT_SERVER, DUMP_COMMAND, ExitCode, RefusedError
from multisched.model.visible_text import escaped_lines

if TYPE_CHECKING:
    from multisched.config.schema import Configuration

SERVER_VARIABLE: Final = "MULTISCHED_SERVER"
"""Environment variable that names a server if no option does."""
NOT_STRICT = "nothing is written: the lines above list what is not converted; without --strict the rest is written"


class Output(Enum):
    """Output format of tables."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig file. Default: the service account of the pod; outside a pod, the kubeconfig of the user.",
        dir_okay=False,
    ),
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig. Default: its current context.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Configuration file. Default: the three built-in domains.")
]
Format = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        help=f"Base URL of a running multisched. Default: the multisched in the cluster of --context or --kubeconfig; without"
        f" them, {SERVER_VARIABLE}; if that is unset, {DEFAULT_SERVER}.",
    ),
]
TokenKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Ask the multisched in the cluster of this kubeconfig, with its token. With --server, only its token is used.",
        exists=True,
        dir_okay=False,
    ),
]
TokenContext = Annotated[
    str | None, typer.Option(help="Context of --kubeconfig, or of the user's kubeconfig. Default: its current context.")
]
DEPLOYED_IN: Final = "multisched-system"
DeployedIn = Annotated[str, typer.Option("--namespace", help="Namespace in which multisched is deployed.")]
TlsServerName = Annotated[
    str | None,
    typer.Option(
        help="Name for which the certificate must be valid. Default: the host of the URL, or the name of the Service."
    ),
]
TokenFile = Annotated[Path | None, typer.Option(help="File with a bearer token.", exists=True, dir_okay=False)]
CaFile = Annotated[
    Path | None,
    typer.Option(help="File with the certificate authorities to trust for https.", exists=True, dir_okay=False),
]
Insecure = Annotated[
    bool, typer.Option("--insecure-skip-tls-verify", help="Accept any certificate, for instance a self-signed one.")
]
Snapshot = Annotated[
    Path | None,
    typer.Option(help=f"Read this output of {DUMP_COMMAND} instead of querying a server; - for standard input."),
]


def has_kubeconfig() -> bool:
    """Returns whether the user has a kubeconfig."""
    return bool(os.environ.get("KUBECONFIG")) or (Path.home() / ".kube" / "config").exists()


def configuration_of(file: Path | None) -> Configuration:
    from multisched.config import loading
    from multisched.config.document import ConfigError

    try:
        return loading.default() if file is None else loading.load(file)
    except ConfigError as error:
        refuse(error.problems)


def show(text: str, *, to_errors: bool = False) -> None:
    """Prints the text, with control characters of untrusted values escaped."""
    typer.echo(escaped_lines(text), err=to_errors)


def refuse(problems: Iterable[object]) -> NoReturn:
    """Prints every problem of a file, and exits."""
    for problem in problems:
        show(str(problem), to_errors=True)
    raise typer.Exit(ExitCode.USAGE) from None


class QueryError(RefusedError):
    """No result can be shown. `status`: of the HTTP response, 0 without one."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE, status: int = 0) -> None:
        super().__init__(message, code)
        self.status = status


@contextmanager
def answered() -> Iterator[None]:
    """Turns a failed query into a sentence and an exit code."""
    try:
        yield
    except RefusedError as error:
        fail(str(error), error.code)


def fail(message: str, code: ExitCode = ExitCode.USAGE) -> NoReturn:
    """Prints the reason, and exits."""
    show(f"multisched: {message}", to_errors=True)
    sys.stderr.flush()
    raise typer.Exit(int(code))


@contextmanager
def output_written() -> Iterator[None]:
    """Turns a failure to write output into a sentence. If the reader closed the pipe, click exits silently."""
    try:
        yield
    except OSError as error:
        if not is_without_room(error):
            raise
        _drop_output()
        show(f"multisched: the output cannot be written: {error.strerror}", to_errors=True)
        sys.exit(int(ExitCode.PROBLEM))


def _drop_output() -> None:
    """Redirects stdout, because its buffered output would fail again when the interpreter exits."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def write_whole(target: Path, text: str, *, sources: Iterable[Path]) -> None:
    """Writes a file whole or not at all; never over one of the files that it was made from."""
    if any(_is_same(target, source) for source in sources):
        fail(f"{target} is the file to convert; name another one")
    try:
        if target.exists() and not target.is_file():  # a pipe or a terminal: there is no content to preserve
            target.write_text(text)
            return
        whole = target.resolve()
        temporary = whole.with_name(f".{whole.name}.{os.getpid()}")
        try:
            temporary.write_text(text)
            temporary.replace(whole)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        fail(f"{target}: cannot be written: {error.strerror}")


def _is_same(target: Path, source: Path) -> bool:
    try:
        return target.samefile(source)
    except OSError:
        return False
