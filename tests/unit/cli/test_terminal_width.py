"""On a terminal what is shown fits its width, and nothing is cut; into a pipe nothing is even wrapped."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.cli.queue import render
from multisched.observe.queue_view import STATES, encode_queue
from multisched.observe.tables import TERMINAL_COLUMNS_MIN, as_table, fitted
from tests.unit.cli.test_cli import VIEW, answering

ROOT = Path(__file__).parents[3]
WHY = "0/212 nodes are available: 212 Insufficient cpu, 3 node(s) had untolerated taint {dedicated: batch}."
POD = replace(
    VIEW.pods[0], name="checkout-ktd6gv2gxm-6vqwm", plugins=("NodeResourcesFit", "TaintToleration"), message=WHY
)
BUSY = replace(
    VIEW, domains=tuple(replace(VIEW.domains[0], domain=f"d{n}", counts=dict.fromkeys(STATES, 12)) for n in range(3))
)
LINES = ("  PreFilter   NodeAffinity, NodePorts: passes", "Pod default/a", "      kubectl set resources deployment a")


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("width", [80, 100])
def test_queue_table_fits_the_terminal_with_complete_messages(width: int) -> None:
    view = replace(BUSY, pods=(POD,) * 3)
    text = render(view, width=width)
    assert widest(text) <= width
    assert text.count("default/checkout-ktd6gv2gxm-6vqwm") == 3
    assert " ".join(text.split()).count(f"NodeResourcesFit, TaintToleration: {WHY} (retry in 4s)") == 3


def test_wide_terminal_and_pipe_get_every_column() -> None:
    assert render(VIEW, width=300) == render(VIEW)
    assert "REFUSED BY" in render(VIEW)


@given(
    st.lists(st.lists(st.text("ab c", max_size=40), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(TERMINAL_COLUMNS_MIN, 200),
)
def test_last_column_is_wrapped_without_losing_words(rows: list[list[str]], width: int) -> None:
    said = as_table(("one", "two", "text"), rows, width=width)
    for row in rows:
        for cell in row:
            assert all(word in said for word in cell.split())


def test_text_without_room_is_printed_below_the_row() -> None:
    table = as_table(("pod", "node", "why"), [("p" * 30, "n" * 30, "one two " * 10)], width=80)
    assert table.splitlines() == [
        f"POD{' ' * 30}NODE",
        f"{'p' * 30}   {'n' * 30}",
        f"  {('one two ' * 9).strip()} one",
        "  two",
    ]


def test_numbers_in_the_last_column_are_not_wrapped() -> None:
    assert widest(as_table(("a", "b"), [("x" * 79, 12)], width=80)) > 80


def test_continuation_lines_are_indented_and_commands_kept_whole() -> None:
    text = "\n".join(f"{line}{' and so on' * 10}" for line in LINES)
    told = fitted(text, 60).split("\n")
    assert all(len(line) <= 60 for line in told if "kubectl" not in line)
    assert told[1].startswith(" " * 14 + "so on")
    assert told[-1] == text.splitlines()[-1]
    assert fitted(text) == text


def test_terminal_shows_one_screen_of_the_queue_and_the_rest_as_a_count() -> None:
    with answering(200, encode_queue(replace(VIEW, pods=(POD,), left_out=7))) as (url, _):
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        command = [sys.executable, "-m", "multisched", "queue", "--server", url]
        with subprocess.Popen(command, stdout=follower, stdin=follower, cwd=ROOT, env=environment) as process:
            os.close(follower)
            written = b""
            try:
                while chunk := os.read(leader, 65_536):
                    written += chunk
            except OSError:  # the other side is closed
                pass
            assert process.wait() == 0
        os.close(leader)
    text = written.decode().replace("\r\n", "\n")
    assert widest(text) <= 80
    assert "… and 7 more (--limit shows up to 5000)" in text
