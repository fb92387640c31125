"""Usage from CSV: what becomes of good lines, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multisched.config.document import Problem
from multisched.simulate import usage_table
from multisched.simulate.usage_table import PROBLEMS_MAX, UsageTable, filled, read_usage

HEADER = "timestamp,service,dimension,value"


def read(folder: Path, *texts: str) -> tuple[UsageTable | None, list[str]]:
    """The table and the problems of files with these texts."""
    paths, problems = [], list[Problem]()
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.csv")
        paths[-1].write_text(text)
    table = read_usage(paths, problems)
    return table, [f"{Path(p.file).name}:{p.line} {p.path}: {p.message}" for p in problems]


def hourly(*rows: str, hours: int = 3) -> str:
    """The rows after some good ones of another service, which set the grid."""
    good = [f"2026-01-05T{hour:02}:00:00,other,cpu,1" for hour in range(hours)]
    return "\n".join([HEADER, *good, *rows]) + "\n"


def test_lines_in_any_order_become_one_grid_with_nan_for_gaps(tmp_path: Path) -> None:
    table, problems = read(tmp_path, hourly("2026-01-05T02:00:00,web,log,7", "1767571200,web,log,5.5"))
    assert not problems
    assert table is not None
    assert (table.start_s, table.step_s, table.steps) == (1_767_571_200, 3600, 3)
    assert (table.services, table.pods, table.dimensions) == (("other", "web"), (), ("cpu", "log"))
    np.testing.assert_array_equal(table.values[1, 1], [5.5, np.nan, 7.0])
    assert np.isnan(table.values[1, 0]).all()


def test_columns_may_be_in_any_order_and_rows_mix_pods_and_services(tmp_path: Path) -> None:
    text = "value,pod,unit,dimension,service,timestamp\n"
    text += "".join(f"{hour + 1},web-0,cores,cpu,,2026-01-05T{hour:02}:00Z\n" for hour in range(2))
    text += "".join(f"9,,cores,cpu,web-0,2026-01-05T{hour:02}:00Z\n" for hour in range(2))
    table, problems = read(tmp_path, text)
    assert not problems
    assert table is not None
    assert (table.services, table.pods) == (("web-0",), ("web-0",))
    np.testing.assert_array_equal(table.values[:, 0], [[9, 9], [1, 2]])


def test_several_files_become_one_table(tmp_path: Path) -> None:
    table, problems = read(tmp_path, hourly(), hourly("2026-01-05T00:00:00,web,cpu,2").replace("other", "third"))
    assert not problems
    assert table is not None
    assert table.services == ("other", "third", "web")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            "2026-01-05T01:00:00,web,cpu,250m",
            "0.csv:8 value: '250m' is not a plain number such as 0.25; units are not allowed",
        ),
        ("2026-01-05T01:00:00,web,cpu,nan", "0.csv:8 value: 'nan' is not within 0..1e+15"),
        ("2026-01-05T01:00:00,web,cpu,-1", "0.csv:8 value: '-1' is not within 0..1e+15"),
        ("yesterday,web,cpu,1", "0.csv:8 timestamp: 'yesterday' is not a time; write epoch seconds or ISO 8601"),
        ("1767571200000,web,cpu,1", "0.csv:8 timestamp: '1767571200000' is not a time; write whole epoch seconds"),
        ("2026-01-05T01:00:00,,cpu,1", "0.csv:8 service: is empty"),
        ("2026-01-05T01:00:00,web,,1", "0.csv:8 dimension: is empty"),
        ("2026-01-05T01:00:00,web,cpu", "0.csv:8 : has 3 fields, the header has 4"),
        ("2026-01-05T01:20:00,web,cpu,1", "0.csv:8 timestamp: 2026-01-05 01:20 is off the grid of 3600 s"),
        ("2026-01-05T01:00:00,other,cpu,1", "0.csv:8 timestamp: the same service, dimension and time are in line 3"),
    ],
)
def test_invalid_line_is_reported_with_file_line_column_and_fix(tmp_path: Path, row: str, problem: str) -> None:
    _, problems = read(tmp_path, hourly(row, hours=6))
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_all_invalid_lines_are_reported_together_up_to_a_limit(tmp_path: Path) -> None:
    _, problems = read(tmp_path, hourly(*[f"2026-01-05T01:00:00,web,cpu,{n}x" for n in range(PROBLEMS_MAX + 7)]))
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == "0.csv:1 : 7 more lines are not samples"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "0.csv:1 : no column timestamp, dimension, value; begin the file with timestamp,service,dimension,value"),
        ("timestamp,dimension,value\n", "0.csv:1 : no column service or pod; begin the file with"),
        (f"{HEADER}\n", "0.csv:1 : has no samples"),
        (f"{HEADER}\n2026-01-05T01:00:00,web,cpu,1\n", "0.csv:1 timestamp: one sample only; give samples in steps"),
        (
            f"{HEADER}\n0,web,cpu,1\n7,web,cpu,1\n",
            "0.csv:1 timestamp: samples are 7 s apart, which does not divide a day",
        ),
    ],
)
def test_file_without_a_regular_step_is_refused_with_the_fix(tmp_path: Path, text: str, problem: str) -> None:
    table, problems = read(tmp_path, text)
    assert table is None
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_table_with_too_many_cells_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if most of them would be empty: three hours of two services and two dimensions, of which each service has one."""
    monkeypatch.setattr(usage_table, "CELLS_MAX", 11)
    table, (problem,) = read(tmp_path, hourly("2026-01-05T00:00:00,web,log,7"))
    assert table is None
    assert "give fewer days or coarser samples" in problem


def test_second_unit_of_a_dimension_is_reported(tmp_path: Path) -> None:
    text = "timestamp,service,dimension,value,unit\n0,web,cpu,1,cores\n0,web,log,1,\n3600,web,cpu,900,millicores\n3600,web,log,1,B/s\n"
    _, problems = read(tmp_path, text)
    assert problems == [
        f"0.csv:4 unit: 'millicores', and cpu is in 'cores' in line 2 of {tmp_path}/0.csv; write all of it in one unit"
    ]


def test_missing_file_is_named(tmp_path: Path) -> None:
    problems: list[Problem] = []
    assert read_usage([tmp_path / "none.csv"], problems) is None
    assert [str(p) for p in problems] == [
        f"{tmp_path}/none.csv:1:1: cannot be read: No such file or directory; name a readable CSV file"
    ]


def test_gaps_are_interpolated_and_counted_and_empty_series_stay_empty() -> None:
    values = np.array([[[np.nan, 2.0, np.nan, np.nan, 8.0, np.nan], [np.nan] * 6, [1.0] * 6]])
    closed, made = filled(values)
    np.testing.assert_allclose(closed[0, 0], [2, 2, 4, 6, 8, 8])
    assert np.isnan(closed[0, 1]).all()
    np.testing.assert_array_equal(closed[0, 2], [1.0] * 6)
    assert made == 4
    assert np.isnan(values[0, 0, 0]), "what was given is left as it is"
