"""History from CSV files: percentiles as numpy computes them, bad lines told and left out, unusable files refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.forecast.csv_lines import HistoryError, history_files
from domains.forecast.curves.quantized_profiles import QuantizedProfiles
from domains.forecast.history import usage_csv
from domains.forecast.learning.from_files import History, load_history
from domains.forecast.settings.args import PeakSettings
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Origin

HEADER = "timestamp,service,resource,value\n"


def write(tmp_path: Path, text: str | bytes, name: str = "history.csv") -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def load(*files: str, **args: object) -> History:
    settings = PeakSettings.from_config(args | {"files": list(files)})
    return load_history(settings.files, fit=settings.fit_of_files(), window_days=settings.window_days)


def peak(history: History, namespace: str, service: str) -> dict[str, int] | None:
    """Resource -> milli-units in the fullest slot of the week, of the service that is meant by that name there."""
    profiles = history.profiles
    assert profiles is not None
    source = QuantizedProfiles(profiles, profiles.dimensions).service(namespace, service)
    if not isinstance(source, int):
        return None
    found = zip(profiles.dimensions, profiles.peak[source].max(axis=1).tolist(), strict=True)
    return {name: round(value * 1000) for name, value in found if not np.isnan(value)}


def test_the_peak_is_the_percentile_per_service_and_resource(tmp_path: Path) -> None:
    lines = [f"{300 * n},web,cpu,{n / 10}\n{300 * n},web,log,{n}\n{300 * n},api,cpu,1\n" for n in range(101)]
    history = load(write(tmp_path, HEADER + "".join(lines)))

    assert peak(history, "default", "web") == {"cpu": 9_500, "log": 95_000}
    assert peak(history, "default", "api") == {"cpu": 1_000}
    assert peak(history, "default", "other") is None
    assert (history.sample_count, history.problem_count) == (303, 0)


@pytest.mark.parametrize("step_s", [300, 900, 3_600, 21_600])
def test_profiles_are_learned_from_samples_of_any_step(tmp_path: Path, step_s: int) -> None:
    """Three weeks that peak at six in the evening; days told, not samples, decide what is learned of them."""
    day = 86_400
    lines = [f"{s},web,cpu,{9 if s % day // 21_600 == 3 else 1}\n" for s in range(4 * day, 25 * day, step_s)]
    profiles = load(write(tmp_path, HEADER + "".join(lines))).profiles

    assert profiles is not None
    assert (profiles.services, profiles.dimensions, profiles.newest_s) == (("web",), ("cpu",), 25 * day - step_s)
    assert profiles.origin.item() in (Origin.SEASONAL, Origin.SLOT_QUANTILE)
    by_hour = profiles.peak.reshape(7, 24)
    assert by_hour[:, 21].min() > 6
    assert by_hour[:, 9].max() < 3


def test_fit_settings_apply_to_files(tmp_path: Path) -> None:
    settings = PeakSettings.from_config({"files": ["a.csv"], "percentile": 100, "fit": {"zone": "Europe/Berlin"}})
    assert settings.fit_of_files() == FitSettings(quantile=0.999, zone="Europe/Berlin", known_hours_min=1e-6)


def test_window_ends_with_the_newest_sample_of_all_files(tmp_path: Path) -> None:
    day = 86_400
    old = write(tmp_path, f"{HEADER}0,web,cpu,9\n0,gone,cpu,9\n{2 * day},web,cpu,1\n", "a.csv")
    new = write(tmp_path, f"{HEADER}{2 * day + 1},api,cpu,2\n", "b.csv")
    history = load(old, new, windowDays=1)

    assert peak(history, "", "web") == {"cpu": 1_000}
    assert peak(history, "", "gone") is None


def test_namespaced_service_takes_precedence_over_a_plain_one(tmp_path: Path) -> None:
    history = load(write(tmp_path, f"{HEADER}0,web,cpu,1\n0,shop/web,cpu,2\n"))

    assert peak(history, "shop", "web") == {"cpu": 2_000}
    assert peak(history, "blog", "web") == {"cpu": 1_000}


@pytest.mark.parametrize(
    "text",
    [
        "value,resource,service,timestamp\n2,cpu,web,0\n",
        "timestamp,service,host,resource,value\n0,web,h1,cpu,2\n",
        '\ufeff"timestamp","service","resource","value"\r\n"2026-01-31T18:00:00Z","web","cpu","2.0"\r\n',
        "timestamp,service,resource,value\n\n2026-01-31 18:00:00, web , cpu , 2e0 \n",
        "timestamp,service,resource,value\n1769882400.5,web,cpu,2",
    ],
)
def test_common_csv_variants_are_read(tmp_path: Path, text: str) -> None:
    history = load(write(tmp_path, text))

    assert peak(history, "", "web") == {"cpu": 2_000}
    assert history.problem_count == 0


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("yesterday,web,cpu,1", "timestamp", "ISO 8601"),
        ("1769882400000,web,cpu,1", "timestamp", "not milliseconds"),
        ("nan,web,cpu,1", "timestamp", "epoch seconds"),
        ("0,,cpu,1", "service", "empty"),
        ("0,web,,1", "dimension", "empty"),
        ("0,web,cpu,much", "value", "'much' is not a number"),
        ("0,web,cpu,", "value", "is not a number"),
        ("0,web,cpu,-1", "value", "within 0.."),
        ("0,web,cpu,nan", "value", "within 0.."),
        ("0,web,cpu,inf", "value", "within 0.."),
        ("0,web,cpu", "", "has 3 fields, the header has 4"),
        ("0,web,cpu,1,2", "", "has 5 fields"),
        ('0,"web,cpu,1', "", "quote"),
        ("0," + "w" * 5000 + ",cpu,1", "", "too long"),
    ],
)
def test_bad_line_is_reported_with_file_line_column_and_fix(tmp_path: Path, line: str, column: str, words: str) -> None:
    file = write(tmp_path, f"{HEADER}0,web,cpu,1\n{line}\n0,api,cpu,2\n")
    history = load(file)

    assert peak(history, "", "web") == {"cpu": 1_000}
    assert peak(history, "", "api") == {"cpu": 2_000}
    assert history.problem_count == 1
    (problem,) = history.problems
    assert (problem.file, problem.line, problem.column) == (file, 3, column)
    assert words in problem.message
    assert f"{file}, line 3" in str(problem)
    assert len(str(problem)) < len(file) + 200


def test_invalid_utf_8_is_one_bad_line(tmp_path: Path) -> None:
    history = load(write(tmp_path, HEADER.encode() + b"0,w\xff\xfeb,cpu,1\n0,api,cpu,2\n"))

    assert peak(history, "", "api") == {"cpu": 2_000}
    assert "UTF-8" in history.problems[0].message


def test_only_the_first_problems_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    history = load(write(tmp_path, f"{HEADER}0,web,cpu,1\n" + "bad\n" * 250))

    assert (len(history.problems), history.problem_count) == (50, 250)


def test_limits_keep_the_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, f"{HEADER}0,a,cpu,1\n0,b,cpu,1\n0,c,log,1\n")
    monkeypatch.setattr(usage_csv, "SAMPLES_MAX", 2)
    history = load(file, windowDays=2)

    assert (history.sample_count, history.problem_count) == (2, 1)
    assert "exceeds the limit" in history.problems[0].message


def test_too_large_history_is_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_csv, "CELLS_MAX", 100)
    file = write(tmp_path, HEADER + "".join(f"{n * 300},a,cpu,1\n" for n in range(101)))
    with pytest.raises(HistoryError, match="101 steps of 300 s of 1 names in 1 dimensions are more than 100"):
        load(file)


@pytest.mark.parametrize("text", ["", "\n", "time,service,resource,value\n0,a,b,1\n", "0,web,cpu,1\n", "x" * 10_000])
def test_file_without_its_columns_is_refused_with_the_expected_header(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)

    with pytest.raises(HistoryError, match="line 1: no column") as error:
        load(file)
    assert file in str(error.value)
    assert "timestamp,service,dimension,value" in str(error.value)


def test_a_missing_file_or_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"none\.csv: No such file"):
        load(str(tmp_path / "none.csv"))
    with pytest.raises(HistoryError, match="historyDir"):
        history_files(str(tmp_path / "none"))


def test_a_directory_gives_its_csv_files_by_name(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "notes.txt"):
        write(tmp_path, HEADER, name)
    (tmp_path / "folder.csv").mkdir()

    assert [Path(file).name for file in history_files(str(tmp_path))] == ["a.csv", "b.csv"]
