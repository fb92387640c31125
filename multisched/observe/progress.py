"""The demo's view in the terminal: one row per domain, redrawn in place; plain lines where there is no terminal.

Values in, text out; the composition root reads the counters and says when to draw.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text


class DomainProgress(msgspec.Struct, frozen=True):
    """One domain at one moment."""

    domain: str
    queued: int
    """Waiting in any state."""
    bound: int
    binds_per_s: float
    p50_ms: float
    p99_ms: float
    conflicts_true: int = 0
    conflicts_false: int = 0


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of ascending values; 0 for none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


class _Console(Console):
    """Leaves a closed pipe to the caller; rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class ProgressView:
    """Shows rows until its context ends. Use `progress_view`."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._shown: tuple[DomainProgress, ...] = ()

    def update(self, rows: Sequence[DomainProgress], elapsed_s: float) -> None:
        """Redraws; without a terminal prints lines for what has changed."""
        if self._live is not None:
            self._live.update(_picture(rows, elapsed_s), refresh=True)
            return
        before = {row.domain: (row.queued, row.bound) for row in self._shown}
        self._shown = tuple(rows)
        for row in rows:
            if before.get(row.domain) != (row.queued, row.bound):
                self._console.print(_line(row, elapsed_s), highlight=False, markup=False)


@contextmanager
def progress_view(kubeconfig: Path, stream: TextIO | None = None) -> Iterator[ProgressView]:
    """A view on `stream` (standard output); names the kubeconfig for kubectl first. Raises BrokenPipeError."""
    console = _Console(file=stream or sys.stdout)
    # One line, however narrow the terminal: it is there to be copied. Without markup: a path is not ours to interpret.
    console.print(f"export KUBECONFIG={kubeconfig}", highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield ProgressView(console, None)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield ProgressView(console, live)


def _picture(rows: Sequence[DomainProgress], elapsed_s: float) -> Group:
    table = Table(title=f"multisched demo, {elapsed_s:.0f} s", title_justify="left")
    table.add_column("domain")
    for name in ("queued", "bound", "binds/s", "p50 to bind", "p99 to bind", "conflicts true/false"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.domain,
            str(row.queued),
            str(row.bound),
            f"{row.binds_per_s:.0f}",
            _duration(row.p50_ms),
            _duration(row.p99_ms),
            f"{row.conflicts_true}/{row.conflicts_false}",
        )
    return Group(table, Text("kubectl get pods -A --watch   looks closer\nCtrl-C                        ends it"))


def _line(row: DomainProgress, elapsed_s: float) -> str:
    return (
        f"{elapsed_s:6.1f}s {row.domain}: queued {row.queued}, bound {row.bound}, {row.binds_per_s:.0f} binds/s,"
        f" p50 {_duration(row.p50_ms)}, p99 {_duration(row.p99_ms)}"
    )


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"
