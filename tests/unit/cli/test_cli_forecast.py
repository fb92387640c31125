"""`multisched forecast` on a file of profiles."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from domains.forecast.profiles import Origin, Profiles
from domains.forecast.profiles_file import dumps
from multisched.cli import app

SLOTS = 168
TUESDAY_EVENING = 24 + 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two services; of the second no log is known."""
    peak = np.full((2, 2, SLOTS), 0.5, np.float32)
    peak[0, 0, TUESDAY_EVENING] = 2.0
    peak[1, 1] = np.nan
    origin = np.array([[Origin.SEASONAL, Origin.QUANTILE], [Origin.SLOT_QUANTILE, Origin.NONE]], np.uint8)
    error = np.array([[0.04, np.nan], [0.1, np.nan]], np.float32)
    made = Profiles(3, 1.0, 1.0, ("shop/web", "shop/cart"), ("cpu", "log"), peak, peak, peak, origin, error)
    found = tmp_path / "profiles"
    found.write_bytes(dumps(made))
    return found


def said(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["forecast", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_services_are_listed_with_their_peaks_and_what_they_were_learned_from(file: Path) -> None:
    lines = said("services", "--profiles", file).splitlines()
    assert lines[0].split() == ["SERVICE", "DIMENSION", "FROM", "PEAK", "AT", "MEAN", "ERROR"]
    assert lines[1].split() == ["shop/web", "cpu", "seasonal", "2", "Tue", "20:00", "0.509", "4.0", "%"]
    assert [line.split()[:2] for line in lines[2:]] == [["shop/web", "log"], ["shop/cart", "cpu"]]


def test_a_service_is_plotted_day_by_day(file: Path) -> None:
    lines = said("service", "shop/web", "--profiles", file).splitlines()
    tuesday = next(line for line in lines if line.startswith("  Tue"))
    assert tuesday[7 + 20] == "█"
    assert tuesday.count("█") == 1
    assert "peak 2 at Tue 20:00" in lines[2]


def test_a_moment_shows_who_is_busy_then(file: Path) -> None:
    found = json.loads(said("at", "tue 20:00", "--profiles", file, "-o", "json"))
    assert [(one["service"], one["cpu"], one["log"]) for one in found["services"]] == [
        ("shop/web", pytest.approx(2, rel=0.01), pytest.approx(0.5, rel=0.01)),
        ("shop/cart", pytest.approx(0.5, rel=0.01), None),
    ]
    assert "2" in said("at", "20:00", "--profiles", file).splitlines()[1], "the busiest of all days"


def test_json_has_the_whole_week(file: Path) -> None:
    found = json.loads(said("service", "shop/cart", "--profiles", file, "-o", "json"))
    [cpu] = found["dimensions"]
    assert len(cpu["peak"]) == len(cpu["low"]) == len(cpu["high"]) == SLOTS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("service", "shop/wbe"), "no profile of shop/wbe; did you mean shop/web"),
        (("at", "noonish"), "'noonish' is no slot of these profiles"),
    ],
)
def test_what_is_not_there_is_told(file: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in said(*arguments, "--profiles", file, code=1)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("rubbish")
    assert "other: " in said("services", "--profiles", other, code=2)
