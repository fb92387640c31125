"""The demo's screen: redrawn on a terminal, lines of change elsewhere, and never wider or higher than the terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.text import Text

from multisched.demo.facts import Decision, DomainProgress, Facts, Forecast, Gang, Loan, Quota, Refused, ServicePeak
from multisched.demo.screen import Header, open_screen, picture

EXPORT = "export KUBECONFIG=/somewhere/[bold]/kubeconfig"
HEADER = Header(".venv/bin/multisched", "http://127.0.0.1:10260", exports=(EXPORT,))
EVENING = ServicePeak("search", "Sat 20:00", 5.43, (1.0,) * 18 + (3.0, 4.0, 5.4, 4.0, 2.0, 1.0))
NIGHT = ServicePeak("reports", "Mon 05:00", 4.56, (0.5, 1.0, 2.0, 3.0, 4.0, 4.5, 2.0) + (0.1,) * 17)
ALIKE = ServicePeak("web", "Sat 20:00", 4.9, EVENING.day)


def row(bound: int) -> DomainProgress:
    return DomainProgress("job", queued=1000 - bound, bound=bound, binds_per_s=500.0, p50_ms=12.34, p99_ms=1500.0)


def full() -> Facts:
    """A moment with everything, and long."""
    return Facts(
        elapsed_s=12.3,
        nodes=300,
        domains=(DomainProgress("forecast", 1, 400, 0.0, 5.0, 8.0), DomainProgress("gpu", 0, 82, 0, 1, 2), row(990)),
        gang=Gang("default/llm", 8, 8, 8),
        quota=Quota("team-red", "team-blue", 40, 20, 20, 20, 10),
        loan=Loan("images", 60, 240, 5),
        refused=Refused("default/too-big", f"0/212 nodes are available: {'212 Insufficient cpu, ' * 20}", "lower it"),
        forecast=Forecast((EVENING, ALIKE, NIGHT), "work-037", "cpu", "Sun 20:00", 0.531, 0.31, 0.07),
        decisions=tuple(Decision(f"web-{n}-{'x' * 40}", "work-001", "most even week " * 9) for n in range(8)),
    )


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def test_only_changes_are_printed_without_a_terminal() -> None:
    stream = io.StringIO()
    with open_screen(HEADER, stream) as screen:
        for bound in (0, 10, 10, 1000):
            gang = Gang("default/llm", 8, 7, 0)
            screen.update(Facts(elapsed_s=1.5, domains=(row(bound),), gang=gang))
    head, *lines = stream.getvalue().splitlines()
    assert head == EXPORT
    assert [line for line in lines if not line.startswith("try: ")] == [
        "   1.5s job: queued 1000, bound 0, 500 binds/s, p50 12.3 ms, p99 1.50 s",
        "   1.5s gang: default/llm: 7 of 8 members exist; none starts until all can",
        "   1.5s job: queued 990, bound 10, 500 binds/s, p50 12.3 ms, p99 1.50 s",
        "   1.5s job: queued 0, bound 1000, 500 binds/s, p50 12.3 ms, p99 1.50 s",
    ]
    assert "try: .venv/bin/multisched explain pod too-big --fix" in lines


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (70, 23), (132, 50), (80, 200)])
def test_the_screen_fits_the_terminal(columns: int, lines: int) -> None:
    found = plain(picture(full(), HEADER, columns, lines))
    assert len(found) <= lines - 1
    assert max(map(cell_len, found)) <= columns


def test_terminal_of_80_columns_and_24_lines_shows_everything() -> None:
    found = "\n".join(plain(picture(full(), HEADER, 80, 24)))
    for said in (
        "forecast        1     400",
        "▆█▆",
        "peak 5.4 cores at Sat 20:00",
        "peak 4.6 cores at Mon 05:00",
        "fullest: work-037, cpu 53% at Sun 20:00; mean 31%, by requests 7%",
        "all 8 members were bound together",
        "team-blue reclaimed 20 of its 20 CPUs: 10 pods of team-red were evicted",
        "0/212 nodes are available",
        "its fix  lower it",
        "work-001    most even week",
        ".venv/bin/multisched forecast service web",
        "open http://127.0.0.1:10260/ in a browser",
        EXPORT,
    ):
        assert said in found, said


def test_a_higher_terminal_shows_more_decisions() -> None:
    shown = [sum("work-001" in line for line in plain(picture(full(), HEADER, 80, lines))) for lines in (24, 60)]
    assert 2 <= shown[0] < shown[1] == 8


def test_shown_services_peak_at_different_hours() -> None:
    found = "\n".join(plain(picture(full(), HEADER, 80, 24)))
    assert re.search(r"^search .*\nreports ", found, re.M)


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "is_coloured", "is_redrawn"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "xterm", "COLUMNS": "60"}, False, False),
        ({"TERM": "xterm", "LINES": "12"}, False, False),
    ],
)
def test_small_terminals_get_lines_and_colour_can_be_disabled(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_coloured: bool, is_redrawn: bool
) -> None:
    for name, value in ({"COLUMNS": "80", "LINES": "24"} | variables).items():
        monkeypatch.setenv(name, value)
    for name in {"NO_COLOR", "FORCE_COLOR"} - variables.keys():
        monkeypatch.delenv(name, raising=False)
    stream = Terminal()
    with open_screen(HEADER, stream) as screen:
        screen.update(full())
        screen.update(full())
    found = stream.getvalue()
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", found)) == is_coloured
    assert (found.count("latest decisions") > 1) == is_redrawn
    assert found.startswith(EXPORT)


class ClosedPipe(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_closed_output_is_reported_to_the_caller() -> None:
    with pytest.raises(BrokenPipeError), open_screen(HEADER, ClosedPipe()):
        pass
