"""`multisched forecast` on a file of profiles."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from domains.forecast.commands.tables import amount, week
from domains.forecast.curves.profiles_file import dumps
from multisched.cli.commands import app
from multisched.forecasting.profiles import Origin, Profiles
from multisched.testing.builders import node_document
from tests.unit.whatif.clusters import small_pod

NOBODY = "http://127.0.0.1:1"
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


def output_of(*arguments: object, code: int | None = 0) -> str:
    """`code`: None where any will do."""
    result = CliRunner().invoke(app, ["forecast", *map(str, arguments)])
    assert code in (None, result.exit_code), result.output
    return result.output


def test_services_are_listed_with_peaks_and_origin(file: Path) -> None:
    lines = output_of("services", "--profiles", file).splitlines()
    assert lines[0].split() == ["SERVICE", "DIMENSION", "FROM", "PEAK", "AT", "MEAN", "ERROR"]
    assert lines[1].split() == ["shop/web", "cpu", "seasonal", "2", "Tue", "20:00", "0.509", "4.0", "%"]
    assert [line.split()[:2] for line in lines[2:]] == [["shop/web", "log"], ["shop/cart", "cpu"]]


def test_a_service_is_plotted_day_by_day(file: Path) -> None:
    lines = output_of("service", "shop/web", "--profiles", file).splitlines()
    tuesday = next(line for line in lines if line.startswith("  Tue"))
    assert tuesday[7 + 20] == "█"
    assert tuesday.count("█") == 1
    assert "peak 2 at Tue 20:00" in lines[2]


def test_time_option_shows_the_busiest_services_then(file: Path) -> None:
    found = json.loads(output_of("at", "tue 20:00", "--profiles", file, "-o", "json"))
    assert [(one["service"], one["cpu"], one["log"]) for one in found["services"]] == [
        ("shop/web", pytest.approx(2, rel=0.01), pytest.approx(0.5, rel=0.01)),
        ("shop/cart", pytest.approx(0.5, rel=0.01), None),
    ]
    assert "2" in output_of("at", "20:00", "--profiles", file).splitlines()[1], "the busiest of all days"


def test_json_has_the_whole_week(file: Path) -> None:
    found = json.loads(output_of("service", "shop/cart", "--profiles", file, "-o", "json"))
    [cpu] = found["dimensions"]
    assert len(cpu["peak"]) == len(cpu["low"]) == len(cpu["high"]) == SLOTS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("service", "shop/wbe"), "no profile of shop/wbe; did you mean shop/web"),
        (("at", "noonish"), "'noonish' is not a time of the week"),
    ],
)
def test_missing_names_are_reported(file: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in output_of(*arguments, "--profiles", file, code=2)


@pytest.mark.parametrize("arguments", [("nodes",), ("node", "n1")])
def test_node_commands_need_more_than_profiles(file: Path, arguments: tuple[str, ...]) -> None:
    assert "use a running multisched (--server) or a dump" in output_of(*arguments, "--profiles", file, code=2)


def test_profiles_cannot_be_combined_with_a_dump(file: Path) -> None:
    assert "--profiles cannot be combined" in output_of("nodes", "--profiles", file, "--snapshot", "-", code=2)


def test_profiles_cannot_be_combined_with_a_server(file: Path) -> None:
    assert "--profiles cannot be combined with --server" in output_of(
        "services", "--profiles", file, "--server", NOBODY, code=2
    )


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        ((), "shop/web"),
        (("--server", NOBODY), NOBODY),
        (("--snapshot", "/none.json"), "/none.json cannot be read"),
    ],
)
def test_command_line_takes_precedence_over_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...], asked: str
) -> None:
    monkeypatch.setenv("MULTISCHED_PROFILES", str(file))
    assert asked in output_of("services", *named, code=None)


def test_file_on_the_command_line_takes_precedence_over_an_environment_server(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTISCHED_SERVER", NOBODY)
    assert "shop/web" in output_of("services", "--profiles", file)


def test_dump_without_a_configuration_is_refused_with_the_option_to_use(tmp_path: Path) -> None:
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"kind": "List", "items": [node_document("n1", cpu="4")]}))
    told = output_of("nodes", "--snapshot", dump, code=1)
    assert "no profiles are active yet: there is no history; name historyDir, files, history or profilesFile" in told
    assert "; give the configuration with --config: the default one has no history" in told


def test_old_profiles_have_no_backtest_results(file: Path) -> None:
    assert "contain no backtest results" in output_of("backtest", "--profiles", file, code=2)


def test_profiles_file_suffices_for_a_page_of_services(file: Path) -> None:
    page = output_of("report", "--profiles", file)
    assert page.startswith("<!doctype html>")
    assert "shop/cart" in page
    assert json.loads(output_of("report", "--profiles", file, "-o", "json"))["nodes"] is None


def test_dump_with_a_profiles_file_shows_nodes(file: Path, tmp_path: Path) -> None:
    configuration, dump = tmp_path / "config.yaml", tmp_path / "dump.json"
    args = {"profilesFile": str(file), "dimensions": ["cpu"]}
    plugins = {"enabled": [{"name": "PeakForecast", "args": args}]}
    domain = {
        "name": "all",
        "schedulerNames": ["default-scheduler"],
        "nodes": {"rule": "rest"},
        "profile": {"plugins": plugins},
    }
    head = {"apiVersion": "multisched.io/v1", "kind": "MultischedConfiguration"}
    configuration.write_text(json.dumps({**head, "domains": [domain]}))
    labels = {"multisched.io/service": "web"}
    web = small_pod("web-1", node="n1", labels=labels)
    web["metadata"]["namespace"] = "shop"
    dump.write_text(json.dumps({"kind": "List", "items": [node_document("n1", cpu="4"), node_document("n2"), web]}))

    lines = output_of("nodes", "--snapshot", dump, "--config", configuration).splitlines()
    assert lines[1].split()[:7] == ["n1", "1", "0", "cpu", "Tue", "20:00", "50"]
    assert lines[2].split()[:3] == ["n2", "0", "0"]
    assert "shop/web-1" in output_of("node", "n1", "--snapshot", dump, "--config", configuration)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (999.4, "999"),
        (999.9, "1k"),
        (1_500, "1.5k"),
        (2**31, "2.15G"),
        (None, "-"),
        (5e17, "500P"),
    ],
)
def test_amounts_have_three_digits(value: float | None, told: str) -> None:
    assert amount(value) == told


def test_hidden_characters_in_names_are_escaped() -> None:
    assert "\x1b" not in week("cpu\x1b[2J", 1.0, [0.5] * 168)


def test_plot_has_one_character_per_hour_and_shows_gaps() -> None:
    by_quarter = week("head", 1.0, [1.0 if slot % 96 == 80 else 0.0 for slot in range(7 * 96)]).splitlines()
    assert by_quarter[1][7 + 20] == "█"
    by_half_day = week("head", 1.0, [None, 1.0] * 7).splitlines()
    assert by_half_day[1][7:].startswith("·" * 12 + "█" * 12)


def test_invalid_profiles_file_is_reported(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("rubbish")
    assert "other: " in output_of("services", "--profiles", other, code=2)
