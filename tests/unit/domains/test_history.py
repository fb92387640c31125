"""History from CSV files: percentiles as numpy computes them, bad lines told and left out, unusable files refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast import history_file
from domains.forecast.history import History, load_history
from domains.forecast.history_file import HistoryError, Samples, Series, history_files, read_history
from domains.forecast.history_profiles import slot_profiles
from domains.forecast.profile_book import ProfileBook
from domains.forecast.profiles import Origin

HEADER = "timestamp,service,resource,value\n"


def write(tmp_path: Path, text: str | bytes, name: str = "history.csv") -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def load(file: str, *, percentile: float = 95, window_days: float = 28) -> History:
    return load_history([file], percentile=percentile, window_days=window_days)


def peak(history: History, namespace: str, service: str) -> dict[str, int] | None:
    """Resource -> milli-units in the fullest slot of the week, of the service that is meant by that name there."""
    profiles = history.profiles
    assert profiles is not None
    source = ProfileBook(profiles, profiles.dimensions).service(namespace, service)
    if not isinstance(source, int):
        return None
    found = zip(profiles.dimensions, profiles.peak[source].max(axis=1).tolist(), strict=True)
    return {name: round(value * 1000) for name, value in found if not np.isnan(value)}


def test_the_peak_is_the_percentile_per_service_and_resource(tmp_path: Path) -> None:
    lines = [f"{1000 + n},web,cpu,{n / 10}\n{1000 + n},web,log,{n}\n{1000 + n},api,cpu,1\n" for n in range(101)]
    history = load(write(tmp_path, HEADER + "".join(lines)))

    assert peak(history, "default", "web") == {"cpu": 9_500, "log": 95_000}
    assert peak(history, "default", "api") == {"cpu": 1_000}
    assert peak(history, "default", "other") is None
    assert (history.sample_count, history.problem_count) == (303, 0)


@given(
    st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=50),
    st.floats(0.1, 100),
)
def test_percentiles_are_numpys(values: list[float], percentile: float) -> None:
    samples = Samples(count=len(values), newest_s=float(len(values) - 1))
    series = samples.series[("web", "cpu")] = Series()
    for second, value in enumerate(values):
        series.seconds.append(second)
        series.values.append(value)

    profiles = slot_profiles(samples, percentile=percentile, window_days=1)

    expected = np.float32(np.percentile(np.array(values), percentile))
    assert (profiles.services, profiles.dimensions) == (("web",), ("cpu",))
    assert profiles.peak.tolist() == [[[expected] * 168]]
    assert profiles.origin.tolist() == [[Origin.QUANTILE]]


def test_the_window_reaches_back_from_the_newest_sample_of_all_files(tmp_path: Path) -> None:
    day = 86_400
    old = write(tmp_path, f"{HEADER}0,web,cpu,9\n0,gone,cpu,9\n{2 * day},web,cpu,1\n", "a.csv")
    new = write(tmp_path, f"{HEADER}{2 * day + 1},api,cpu,2\n", "b.csv")
    history = load_history([old, new], percentile=95, window_days=1)

    assert peak(history, "", "web") == {"cpu": 1_000}
    assert peak(history, "", "gone") is None


def test_a_namespaced_service_goes_before_a_plain_one(tmp_path: Path) -> None:
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
def test_forms_that_tools_write_are_read(tmp_path: Path, text: str) -> None:
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
        ("0,web,,1", "resource", "empty"),
        ("0,web,cpu,much", "value", "'much' is not a number"),
        ("0,web,cpu,", "value", "is not a number"),
        ("0,web,cpu,-1", "value", "within 0.."),
        ("0,web,cpu,nan", "value", "within 0.."),
        ("0,web,cpu,inf", "value", "within 0.."),
        ("0,web,cpu", "", "has 3 fields, the header has 4"),
        ("0,web,cpu,1,2", "", "has 5 fields"),
        ('0,"web,cpu,1', "", "quote"),
        ("0," + "w" * 5000 + ",cpu,1", "", "longer than 4096 bytes"),
    ],
)
def test_a_bad_line_is_told_with_file_line_column_and_fix_and_costs_no_other(
    tmp_path: Path, line: str, column: str, words: str
) -> None:
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


def test_bytes_that_are_no_text_are_one_bad_line(tmp_path: Path) -> None:
    history = load(write(tmp_path, HEADER.encode() + b"0,w\xff\xfeb,cpu,1\n0,api,cpu,2\n"))

    assert peak(history, "", "api") == {"cpu": 2_000}
    assert "UTF-8" in history.problems[0].message


def test_only_the_first_problems_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    samples = read_history([write(tmp_path, HEADER + "bad\n" * 250)])

    assert (len(samples.problems), samples.problem_count) == (100, 250)


@pytest.mark.parametrize(
    ("bound", "limit", "accepted"),
    [("SAMPLES_MAX", 2, {("a", "cpu"), ("b", "cpu")}), ("SERIES_MAX", 1, {("a", "cpu")}), ("RESOURCES_MAX", 1, None)],
)
def test_bounds_keep_what_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, limit: int, accepted: set[tuple[str, str]] | None
) -> None:
    monkeypatch.setattr(history_file, bound, limit)
    samples = read_history([write(tmp_path, f"{HEADER}0,a,cpu,1\n0,b,cpu,1\n0,c,log,1\n")])

    assert set(samples.series) == (accepted or {("a", "cpu"), ("b", "cpu")})
    assert samples.problem_count >= 1
    assert "beyond the" in samples.problems[0].message


@pytest.mark.parametrize("text", ["", "\n", "time,service,resource,value\n0,a,b,1\n", "0,web,cpu,1\n", "x" * 10_000])
def test_a_file_without_its_columns_is_refused_by_name_with_the_header_to_write(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)

    with pytest.raises(HistoryError, match="line 1: no column") as error:
        load(file)
    assert file in str(error.value)
    assert "timestamp,service,resource,value" in str(error.value)


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
