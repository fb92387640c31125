"""What several commands share: options that say whom to ask and how to print, and how a refusal is printed. Prints and exits only."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from multisched.config.options import DEFAULT_SERVER, DUMP_COMMAND, ExitCode, RefusedError
from multisched.model.visible_text import escaped_lines

if TYPE_CHECKING:
    from multisched.config.schema import Configuration

SERVER_VARIABLE: Final = "MULTISCHED_SERVER"
"""Names a server where no option does."""
NOT_STRICT = "nothing is written: not all is carried over, as the lines above say; without --strict the rest is written"


class Output(Enum):
    """How tables are printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Kubeconfig file. Default: the pod's service account, else the user's own.", dir_okay=False),
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig. Default: its current one.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Configuration file. Default: three domains with the defaults.")
]
Format = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        help=f"Base URL of a running multisched. Default: in the cluster that --context or --kubeconfig names, else"
        f" {SERVER_VARIABLE}, else {DEFAULT_SERVER}.",
    ),
]
TokenKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Ask the one that is deployed in its cluster, with its token; with --server only the token is its.",
        exists=True,
        dir_okay=False,
    ),
]
TokenContext = Annotated[
    str | None, typer.Option(help="Context of the kubeconfig; alone: of the user's own. Default: its current one.")
]
DEPLOYED_IN: Final = "multisched-system"
DeployedIn = Annotated[str, typer.Option("--namespace", help="Where it is deployed in the cluster.")]
TlsServerName = Annotated[
    str | None,
    typer.Option(help="Name that the certificate must be good for. Default: the host that is asked, or its Service."),
]
TokenFile = Annotated[Path | None, typer.Option(help="Bearer token.", exists=True, dir_okay=False)]
CaFile = Annotated[Path | None, typer.Option(help="Whom to trust for https.", exists=True, dir_okay=False)]
Insecure = Annotated[
    bool, typer.Option("--insecure-skip-tls-verify", help="Accept any certificate, for instance a self-signed one.")
]
Snapshot = Annotated[
    Path | None,
    typer.Option(help=f"Ask no server but this output of {DUMP_COMMAND}; - for standard input."),
]


def has_kubeconfig() -> bool:
    """Whether the user has one."""
    return bool(os.environ.get("KUBECONFIG")) or (Path.home() / ".kube" / "config").exists()


def configuration_of(file: Path | None) -> Configuration:
    from multisched.config import loading
    from multisched.config.document import ConfigError

    try:
        return loading.default() if file is None else loading.load(file)
    except ConfigError as error:
        refuse(error.problems)


def show(text: str, *, to_errors: bool = False) -> None:
    """Prints, with all visible that others may have put into it."""
    typer.echo(escaped_lines(text), err=to_errors)


def refuse(problems: Iterable[object]) -> NoReturn:
    """Tells everything that is wrong with a file, and ends."""
    for problem in problems:
        show(str(problem), to_errors=True)
    raise typer.Exit(ExitCode.USAGE) from None


class AskError(RefusedError):
    """Nothing can be shown. `status`: of the HTTP answer, 0 without one."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE, status: int = 0) -> None:
        super().__init__(message, code)
        self.status = status


@contextmanager
def answered() -> Iterator[None]:
    """Turns what a server or a file does not give into a sentence and an exit code."""
    try:
        yield
    except RefusedError as error:
        fail(str(error), error.code)


def fail(message: str, code: ExitCode = ExitCode.USAGE) -> NoReturn:
    """Tells why, and ends."""
    show(f"multisched: {message}", to_errors=True)
    sys.stderr.flush()
    raise typer.Exit(int(code))


@contextmanager
def output_written() -> Iterator[None]:
    """Turns output that finds no room into a sentence. Whoever has closed a pipe has read enough: click ends without a word."""
    try:
        yield
    except OSError as error:
        if not is_without_room(error):
            raise
        _drop_output()
        show(f"multisched: the output cannot be written: {error.strerror}", to_errors=True)
        sys.exit(int(ExitCode.PROBLEM))


def is_without_room(error: BaseException) -> bool:
    """A full disk, or a limit of what may be written."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _drop_output() -> None:
    """What is still buffered would fail once more when the interpreter ends."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def write_whole(target: Path, text: str, *, sources: Iterable[Path]) -> None:
    """Writes a file whole or not at all; never over one of those that it was made of."""
    if any(_is_same(target, source) for source in sources):
        fail(f"{target} is the file to convert; name another one")
    try:
        if target.exists() and not target.is_file():  # a pipe or a terminal: there is nothing to keep
            target.write_text(text)
            return
        whole = target.resolve()
        beside = whole.with_name(f".{whole.name}.{os.getpid()}")
        try:
            beside.write_text(text)
            beside.replace(whole)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        fail(f"{target}: cannot be written: {error.strerror}")


def _is_same(target: Path, source: Path) -> bool:
    try:
        return target.samefile(source)
    except OSError:
        return False
