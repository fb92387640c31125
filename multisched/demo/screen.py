"""The demo in the terminal: one screen that is redrawn in place; without a terminal, or in a small one, plain lines.

The screen fits into 80 columns and 24 lines; longer lines are truncated. rich omits colours if NO_COLOR or TERM=dumb is set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from multisched.demo.facts import DomainProgress, Facts, ServicePeak
from multisched.model.visible_text import escaped

COLUMNS_MIN, LINES_MIN = 70, 23
SERVICES_SHOWN: Final = 2
DECISIONS_MIN, DECISIONS_MAX = 2, 8
_TOPIC: Final = 9
_NAME: Final = 24
_NODE: Final = 12
_COLOURS: Final = {
    "forecast": "cyan",
    "gang": "magenta",
    "quota": "yellow",
    "loan": "blue",
    "refused": "red",
    "its fix": "green",
}
_NUMBERS: Final = (("queued", 8), ("bound", 8), ("binds/s", 9), ("p50", 10), ("p99", 10), ("conflicts", 12))


class Header(msgspec.Struct, frozen=True):
    """The texts that do not change during a run."""

    program: str
    """How the user calls `multisched`."""
    server: str
    """Base URL of the scheduler's HTTP server."""
    notes: tuple[str, ...] = ()
    """Deviations from the defaults."""
    exports: tuple[str, ...] = ()
    """Export commands that other terminals need first."""

    def commands(self) -> list[str]:
        """Returns suggestions for another terminal: commands, and the page."""
        asked = ("queue", "quota tree", "loans", "forecast nodes", "forecast service web", "explain pod too-big --fix")
        return [*(f"{self.program} {one}" for one in asked), f"open {self.server}/ in a browser"]


class _Console(Console):
    """Raises BrokenPipeError on a closed pipe; rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Screen:
    """Shows facts until its context ends. Created by `open_screen`."""

    def __init__(self, console: Console, header: Header, live: Live | None) -> None:
        self._console = console
        self._header = header
        self._live = live
        self._domains: dict[str, tuple[int, int]] = {}
        self._said: dict[str, str] = {}

    def update(self, facts: Facts) -> None:
        """Redraws the screen; without a terminal, prints a line for each change."""
        if self._live is not None:
            size = self._console.size
            self._live.update(Group(*picture(facts, self._header, size.width, size.height)), refresh=True)
            return
        for line in self._changes(facts):
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _changes(self, facts: Facts) -> Iterator[str]:
        for row in facts.domains:
            if self._domains.get(row.domain) != (row.queued, row.bound):
                self._domains[row.domain] = (row.queued, row.bound)
                yield _line(row, facts.elapsed_s)
        for topic, sentence in facts.sentences():
            if self._said.get(topic) != sentence:
                self._said[topic] = sentence
                yield f"{facts.elapsed_s:6.1f}s {topic}: {escaped(sentence)}"


@contextmanager
def open_screen(header: Header, stream: TextIO | None = None) -> Iterator[Screen]:
    """Prints the header's notes and export commands, then opens a screen on `stream` (default: stdout). Raises BrokenPipeError."""
    console = _Console(file=stream or sys.stdout)
    for line in (*header.notes, *header.exports):
        # One line even on a narrow terminal, so that it can be copied. Without markup: a path may contain brackets.
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal or console.is_dumb_terminal or console.width < COLUMNS_MIN or console.height < LINES_MIN:
        console.print(*(f"try: {one}" for one in header.commands()), sep="\n", highlight=False, markup=False)
        yield Screen(console, header, None)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield Screen(console, header, live)


def picture(facts: Facts, header: Header, columns: int, lines: int) -> list[Text]:
    """Returns the lines of the screen, none longer than `columns`; at most `lines` - 1 of them."""
    top = [_title(facts, columns), *_table(facts.domains)]
    scenario = [*_services(facts), *_scenario(facts)]
    end = _commands(header, columns)
    room = max(DECISIONS_MIN, min(DECISIONS_MAX, lines - 2 - len(top) - len(scenario) - len(end)))
    decisions = [Text("latest decisions", "bold"), *_decisions(facts, room)]
    blanks = [Text()] if lines > len(top) + len(scenario) + len(decisions) + len(end) + 3 else []
    found = [*top, *blanks, *scenario, *blanks, *decisions, *blanks, *end]
    for line in found:
        line.truncate(columns, overflow="ellipsis")
        line.no_wrap = True
    return found[: lines - 1]


def _title(facts: Facts, columns: int) -> Text:
    left = f"multisched demo   {facts.nodes:,} nodes   {facts.elapsed_s:.0f} s"
    return Text(f"{left}{'Ctrl-C ends it'.rjust(columns - len(left))}", "bold")


def _table(rows: Sequence[DomainProgress]) -> Iterator[Text]:
    yield Text("domain".ljust(_TOPIC) + "".join(name.rjust(width) for name, width in _NUMBERS), "dim")
    for row in rows:
        cells = (
            f"{row.queued:,}",
            f"{row.bound:,}",
            f"{row.binds_per_s:.0f}",
            _duration(row.p50_ms),
            _duration(row.p99_ms),
            f"{row.conflicts_true}/{row.conflicts_false}",
        )
        text = Text(row.domain.ljust(_TOPIC), "bold")
        for cell, (name, width) in zip(cells, _NUMBERS, strict=True):
            is_lively = name == "binds/s" and row.binds_per_s >= 1
            text.append(cell.rjust(width), "green" if is_lively else "not bold")
        yield text


def _services(facts: Facts) -> Iterator[Text]:
    """Yields the services with the highest peaks, chosen so that the peaks are at different hours."""
    if facts.forecast is None:
        return
    for service in _unlike(facts.forecast.services):
        text = Text(service.service.ljust(_TOPIC), _COLOURS["forecast"])
        text.append(service.bars(), _COLOURS["forecast"])
        yield text.append(f"  0 to 24 h, peak {service.cores:.1f} cores at {service.at}", "not bold default")


def _unlike(services: Sequence[ServicePeak]) -> list[ServicePeak]:
    """Returns the first service, and the one whose day differs most from it."""
    if len(services) < SERVICES_SHOWN:
        return list(services)
    first = services[0]
    return [
        first,
        min(
            services[1:],
            key=lambda one: sum(a * b for a, b in zip(first.day, one.day, strict=False)) / max(one.cores, 1e-9),
        ),
    ]


def _scenario(facts: Facts) -> Iterator[Text]:
    for topic, sentence in facts.sentences():
        text = Text(topic.ljust(_TOPIC), _COLOURS[topic])
        yield text.append(escaped(sentence), "default")


def _decisions(facts: Facts, room: int) -> Iterator[Text]:
    shown = facts.decisions[:room]
    for one in shown:
        text = Text(f"  {_cut(one.pod, _NAME).ljust(_NAME)} ")
        text.append(one.node.ljust(_NODE), "bold")
        yield text.append(one.why, "dim")
    for _ in range(room - len(shown)):
        yield Text()


def _commands(header: Header, columns: int) -> list[Text]:
    """Lays out the commands, two per line if they fit, and then the export commands."""
    found: list[Text] = [Text("in another terminal", "bold")]
    waiting = [f"  {one}" for one in header.commands()]
    while waiting:
        line = waiting.pop(0)
        fitting = next((one for one in waiting if len(line) + len(one) <= columns), None)
        if fitting is not None:
            waiting.remove(fitting)
            line += fitting
        found.append(Text(line, "green"))
    return found + [Text(f"  {one}", "green") for one in header.exports]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _line(row: DomainProgress, elapsed_s: float) -> str:
    return (
        f"{elapsed_s:6.1f}s {row.domain}: queued {row.queued}, bound {row.bound}, {row.binds_per_s:.0f} binds/s,"
        f" p50 {_duration(row.p50_ms)}, p99 {_duration(row.p99_ms)}"
    )


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.2f} s"
