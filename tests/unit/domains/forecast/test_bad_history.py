"""History that is short of something: each shortcoming is told in words with its fallback, in the state and once in the log.

Through `PeakForecast` as it is configured, on CSV files; queries are in tests/real/test_bad_queries.py.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import numpy as np
import pytest

from domains.forecast.forecast import Forecast
from domains.forecast.history.coverage import weight_notes
from domains.forecast.history.source import Reading
from domains.forecast.learning.attributed import with_attribution
from domains.forecast.learning.attribution import AttributionSettings, attribute
from domains.forecast.peak_forecast import peak_forecast
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Origin, Profiles
from multisched.forecasting.usage import Usage
from multisched.framework.context import PluginContext
from multisched.state.cluster_cache import ClusterCache
from tests.unit.domains.forecast.history.prometheus_kit import ports_at
from tests.unit.domains.forecast.learning.placements import totals_of, wandering_intervals
from tests.unit.forecasting.weeks import DAY_S, MONDAY_S

HEADER = "timestamp,service,dimension,value"


def lines(days: float, *, step_s: int = 300, dimension: str = "cpu", service: str = "shop/web") -> list[str]:
    """So many days before MONDAY_S."""
    steps = round(days * DAY_S / step_s)
    return [f"{MONDAY_S - (steps - n) * step_s:.0f},{service},{dimension},1" for n in range(steps)]


def plugin(folder: Path, rows: list[str], *, dimensions: tuple[str, ...] = ("cpu",), header: str = HEADER) -> Forecast:
    (folder / "use.csv").write_text("\n".join([header, *rows]) + "\n")
    history = {
        "windowDays": 14,
        "sources": [{"type": "csv", "files": [str(folder / "use.csv")]}],
        "dimensions": [{"name": name} for name in dimensions],
    }
    cache = ClusterCache()
    context = PluginContext("test", cache.nodes, WaitingPodTable(), cache.ledgers, cache.objects)
    return peak_forecast({"history": history}, context)


async def notes_of(made: Forecast) -> tuple[str, ...]:
    assert made._refit is not None
    assert await made._refit.once(ports_at(MONDAY_S)), made._refit.state().last_error
    return made._refit.state().notes


WHOLE = lines(14)
FLAT = "cpu: 1 of 1 services has too few days of samples, and one quantile is used for the whole week: shop/web"


@pytest.mark.parametrize(
    ("rows", "dimensions", "told"),
    [
        (WHOLE, ("cpu",), []),
        (WHOLE[::-1], ("cpu",), []),
        (WHOLE[:1_000] + WHOLE[1_100:], ("cpu",), []),
        (lines(7), ("cpu",), ["cpu: 7.0 days of samples, 14.0 were requested (windowDays)"]),
        (
            lines(1),
            ("cpu",),
            [
                "cpu: 1.0 days of samples, 14.0 were requested (windowDays)",
                FLAT,
            ],
        ),
        (
            lines(14, step_s=3_600) + lines(14, service="shop/api", dimension="log"),
            ("cpu", "log"),
            [
                "cpu: samples are 3600 s apart, so 11 of 12 steps are gaps; set stepSeconds: 3600",
                FLAT,
            ],
        ),
        (
            WHOLE,
            ("cpu", "log"),
            ["log: no sample in the whole window; the use of pods is unknown and counts as zero"],
        ),
        ([*WHOLE, WHOLE[5]], ("cpu",), ["{file}, line 4034: repeats an earlier line; the first counts"]),
        ([*WHOLE, "now,shop/web,cpu,1"], ("cpu",), ["{file}, line 4034, column timestamp: 'now' is not a time; write"]),
        (
            [*WHOLE, *lines(1, dimension="gpu")],
            ("cpu",),
            ["dimensions gpu are in the files and not configured; they are skipped"],
        ),
    ],
    ids=["whole", "unsorted", "a gap", "a week", "a day", "hourly", "no log", "twice", "no time", "stranger"],
)
async def test_missing_history_is_reported(
    tmp_path: Path, rows: list[str], dimensions: tuple[str, ...], told: list[str]
) -> None:
    found = await notes_of(plugin(tmp_path, rows, dimensions=dimensions))
    assert len(found) == len(told)
    for note, start in zip(found, told, strict=True):
        assert note.startswith(start.format(file=tmp_path / "use.csv"))


async def test_mixed_units_are_reported_with_file_and_line_and_skipped(tmp_path: Path) -> None:
    rows = [f"{line},cores" for line in WHOLE]
    rows[7] = rows[7].replace(",1,cores", ",900,millicores")
    made = plugin(tmp_path, rows, header=f"{HEADER},unit")
    (note,) = await notes_of(made)
    assert (
        note
        == f"{tmp_path}/use.csv, line 9, column unit: is millicores, and cpu is in cores; write all of it in one unit"
    )
    quantized = made._ledger.predictor.quantized
    assert quantized is not None
    assert quantized.profiles.peak.max() == pytest.approx(1, rel=0.05)


async def test_note_is_logged_only_when_it_is_new(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = plugin(tmp_path, lines(7))
    for _ in range(2):
        await notes_of(made)
    told = [record for record in caplog.records if record.msg == "history is incomplete"]
    assert [vars(record)["note"] for record in told] == ["cpu: 7.0 days of samples, 14.0 were requested (windowDays)"]
    assert told[0].levelno == logging.WARNING


def test_empty_history_directory_is_reported_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = ClusterCache()
    context = PluginContext("test", cache.nodes, WaitingPodTable(), cache.ledgers, cache.objects)
    peak_forecast({"historyDir": str(tmp_path)}, context)
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert (record.msg, vars(record)["note"]) == (
        "no history; the predicted use of a pod is its requests",
        f"historyDir {tmp_path} contains no *.csv file",
    )


# -- clocks that change ------------------------------------------------------------------------------------------------

SPRING_S, AUTUMN_S = 1_774_746_000.0, 1_792_890_000.0
"""The last Sundays of March and October 2026, 01:00 UTC: clocks in Berlin go from 02:00 to 03:00, and from 03:00 to 02:00."""


@pytest.mark.parametrize("change_s", [SPRING_S, AUTUMN_S])
def test_wall_clock_peak_keeps_its_hour_when_clocks_change(change_s: float) -> None:
    """Two weeks on each side: in UTC the evening peak moves by an hour, and would be smeared over two slots."""
    start_s = change_s - change_s % DAY_S - 14 * DAY_S
    at_s = start_s + 300.0 * np.arange(28 * 288)
    offset_s = np.where((at_s >= change_s) == (change_s == SPRING_S), 7_200, 3_600)
    hour = (at_s + offset_s) // 3_600 % 24
    values = np.where(hour == 20, 5.0, 1.0).astype(np.float32)[None, None, :]
    usage = Usage(start_s, 300.0, ("shop/web",), ("cpu",), values)

    def evening(zone: str) -> np.ndarray:
        made: Profiles = fit(usage, FitSettings(zone=zone), 1, 0.0)
        assert made.origin[0, 0] in (Origin.SEASONAL, Origin.SLOT_QUANTILE)
        week: np.ndarray = made.peak[0, 0].reshape(7, 24)
        return week

    local = evening("Europe/Berlin")
    assert (local[:, 20] > 4).all()
    assert (local[:, 18] < 2).all()
    assert (local[:, 22] < 2).all()


def test_services_without_a_weight_are_reported() -> None:
    """Two moved together; one never did."""
    alone = wandering_intervals([10, 10, 10, 0], nodes=12, replicas=3)
    twin = tuple(msgspec.structs.replace(interval, service="twin") for interval in alone if interval.service == "s001")
    totals = totals_of(tuple(s for s in alone if s.service != "twin"), np.ones(4), nodes=12, noise=0.05)
    totals = msgspec.structs.replace(totals, placement_intervals=alone + twin)
    usage = Usage(totals.start_s, totals.step_s, (), (), np.zeros((0, 0, totals.values.shape[2]), np.float32))
    profiles = with_attribution(fit(usage, FitSettings(), 1, 0.0), attribute(totals, AttributionSettings()))
    assert list(weight_notes(Reading(usage, totals), profiles)) == [
        "log: past placements do not determine the weight of 3 of 5 services, and their use counts as zero: s001, s003, twin"
    ]
    assert list(weight_notes(Reading(usage), profiles)) == []
