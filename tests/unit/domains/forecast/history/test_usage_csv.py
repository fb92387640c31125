"""CSV files as usage: in any order, with what is wrong told by file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.forecast.history import usage_csv
from domains.forecast.history.source import Reading, SourceError
from domains.forecast.history.usage_csv import CsvSource
from domains.forecast.settings.sources import Aggregation, CsvSettings, Dimension
from multisched.framework.measures import Grid
from tests.unit.domains.forecast.history.prometheus_kit import in_thread

FIRST = 1_000
GRID = Grid(900 * 300.0, 300.0, 4)
"""It ends long after the files do."""
CPU, LOG = Dimension("cpu", unit="cores"), Dimension("log")


async def read(tmp_path: Path, *texts: str, dimensions: tuple[Dimension, ...] = (CPU, LOG)) -> Reading:
    files = []
    for number, text in enumerate(texts):
        files.append(str(tmp_path / f"{number}.csv"))
        (tmp_path / f"{number}.csv").write_text(text)
    return await CsvSource(CsvSettings(tuple(files)), dimensions).read(GRID, in_thread)


def at(step: int) -> float:
    return (FIRST + step) * 300.0


def of(reading: Reading, service: str, dimension: str = "cpu") -> list[float | None]:
    usage = reading.usage
    row = usage.values[usage.services.index(service), usage.dimensions.index(dimension)]
    return [None if np.isnan(value) else float(value) for value in row]


async def test_lines_in_any_order_fill_a_window_that_ends_with_the_newest(tmp_path: Path) -> None:
    text = f"""timestamp,service,dimension,value
{at(3)},shop/web,cpu,3
{at(0)},shop/web,cpu,1
{at(0) + 60},shop/web,cpu,2
{at(-1)},shop/web,cpu,9
{at(1)},shop/web,log,100
{at(3)},db,log,7
"""
    reading = await read(tmp_path, text)
    assert reading.usage.start_s == at(0)
    assert of(reading, "shop/web") == [1.5, None, None, 3]
    assert of(reading, "shop/web", "log") == [None, 100, None, None]
    assert of(reading, "db", "log") == [None, None, None, 7]
    assert reading.notes == ()


async def test_maximum_of_a_step_counts_if_configured(tmp_path: Path) -> None:
    text = f"timestamp,service,dimension,value\n{at(0)},web,cpu,1\n{at(0) + 60},web,cpu,2\n"
    highest = Dimension("cpu", aggregation=Aggregation.MAX)
    assert of(await read(tmp_path, text, dimensions=(highest,)), "web") == [None, None, None, 2]


async def test_pod_lines_count_for_their_services_and_are_noted(tmp_path: Path) -> None:
    text = f"""timestamp,pod,dimension,value
{at(0)},shop/web-6d4cf56db6-x7k2p,cpu,1
{at(0)},shop/web-6d4cf56db6-zzzz2,cpu,3
{at(3)},shop/web-6d4cf56db6-zzzz2,cpu,4
"""
    reading = await read(tmp_path, text)
    assert of(reading, "shop/web") == [2, None, None, 4]
    assert reading.notes == ("the files name pods; their services are guessed from their names",)


async def test_duplicate_line_counts_once_and_is_reported(tmp_path: Path) -> None:
    first = f"timestamp,service,dimension,value\n{at(0)},web,cpu,1\n{at(0)},web,cpu,5\n"
    second = f"timestamp,service,dimension,value\n{at(0)},web,cpu,7\n"
    reading = await read(tmp_path, first, second)
    assert of(reading, "web")[3] == 1
    assert reading.notes == tuple(
        f"{tmp_path}/{file}.csv, line {line}: repeats an earlier line; the first counts"
        for file, line in ((0, 3), (1, 2))
    )


async def test_mixed_units_are_reported_with_file_and_line(tmp_path: Path) -> None:
    text = f"""timestamp,service,dimension,value,unit
{at(0)},web,cpu,1,cores
{at(1)},web,cpu,900,millicores
{at(2)},web,cpu,250m,cores
{at(2)},web,log,1,bytes/s
{at(3)},web,log,1,kB/s
{at(3)},web,cpu,1,
"""
    reading = await read(tmp_path, text)
    assert of(reading, "web") == [1, None, None, 1]
    assert reading.notes == (
        f"{tmp_path}/0.csv, line 3, column unit: is millicores, and cpu is in cores; write all of it in one unit",
        f"{tmp_path}/0.csv, line 4, column value: '250m' is not a number; write a plain one such as 0.25",
        f"{tmp_path}/0.csv, line 6, column unit: is kB/s, and log is in bytes/s; write all of it in one unit",
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("yesterday,web,cpu,1", "column timestamp: 'yesterday' is not a time"),
        ("1767225600000,web,cpu,1", "write epoch seconds, not milliseconds"),
        ("300000,web,cpu,-1", "column value: '-1' is not within"),
        ("300000,web,cpu,NaN", "column value: 'NaN' is not within"),
        ("300000,,cpu,1", "column service: is empty; name it"),
        ("300000,web,,1", "column dimension: is empty; name it"),
        ("300000,web,cpu", "has 3 fields, the header has 4"),
        ("300000," + "w" * 5_000 + ",cpu,1", "is too long; each line has one sample"),
        ("300000,web,gpu,1", "dimensions gpu are in the files and not configured; they are skipped"),
    ],
)
async def test_bad_line_is_skipped_and_reported(tmp_path: Path, line: str, told: str) -> None:
    reading = await read(tmp_path, f"timestamp,service,dimension,value\n{line}\n{at(3)},web,cpu,2\n")
    assert of(reading, "web")[3] == 2
    assert told in reading.notes[0]
    assert len(reading.notes) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1: no column timestamp, service or pod, dimension or resource, value; begin the file with"),
        ("timestamp,service,value\n", "no column dimension or resource"),
        ("timestamp,service,dimension,value\n", "has no sample"),
        ("timestamp,service,dimension,value\nx,y,z,1\n", "has no sample; the first bad line: "),
    ],
)
async def test_unusable_file_is_refused_with_its_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SourceError) as caught:
        await read(tmp_path, text)
    assert told in str(caught.value)
    assert f"{tmp_path}/0.csv" in str(caught.value)


async def test_missing_file_is_refused(tmp_path: Path) -> None:
    source = CsvSource(CsvSettings((str(tmp_path / "none.csv"),)), (CPU,))
    with pytest.raises(SourceError, match=r"none\.csv: No such file or directory; name a readable CSV file"):
        await source.read(GRID, in_thread)


async def test_number_of_kept_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_csv, "SAMPLES_MAX", 2)
    lines = "".join(f"{at(step)},web,cpu,1\n" for step in range(4))
    reading = await read(tmp_path, f"timestamp,service,dimension,value\n{lines}")
    assert of(reading, "web") == [None, None, 1, 1]
    assert "exceeds the limit of 2 samples" in reading.notes[0]
