"""The workload `jobDay`: small days through the whole command, judged by a replay of the log that shares nothing with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from domains.job.simulation.hidden import fluid_own_work_s
from multisched.cli.commands import app
from multisched.config.document import ConfigError
from multisched.simulate.simulation_file import load_simulation
from tests.unit.domains.job.simulation.day_replay import DayReplay, Event

BEGIN_S = 1_767_571_200.0
HOURS = 4
SLOTS = 20
PRICED = {"hiddenSlots": 10}
SHORT = {"durations": [50, 300, 900], "shares": [0, 0.5, 1], "owners": 10, "every": "1h"}


def scenario(folder: Path, policies: tuple[str, ...] = ("fifo", "deadline"), **section: Any) -> Path:
    day = {"slots": SLOTS, "hours": HOURS, "historyDays": 1, "batch": SHORT, "cron": {"pods": 40, "owners": 5}}
    plain = {
        "apiVersion": "multisched.io/v1alpha1",
        "kind": "Scenario",
        "name": "small",
        "policies": list(policies),
        "jobDay": day | section,
    }
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(plain))
    return path


def simulated(path: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns policy -> figures of its run, and policy -> lines of the log."""
    log = path.with_suffix(".jsonl")
    arguments = ["simulate", str(path), "-o", "json", "--jobs", "1", "--events", str(log)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    figures = {one["name"]: one["runs"][0] for one in json.loads(result.stdout)["policies"]}
    lines: dict[str, list[str]] = {name: [] for name in figures}
    for line in log.read_text().splitlines():
        lines[json.loads(line)["policy"]].append(line)
    return figures, lines


def replayed(lines: list[str], hidden_slots: int = SLOTS) -> DayReplay:
    end_s = BEGIN_S + HOURS * 3_600
    return DayReplay(lines, slots=SLOTS, hidden_slots=hidden_slots, begin_s=BEGIN_S, end_s=end_s)


def test_replay_confirms_the_report_and_deadlines_are_met_where_fifo_misses_them(tmp_path: Path) -> None:
    figures, lines = simulated(scenario(tmp_path))
    for name, found in figures.items():
        replay = replayed(lines[name])
        assert not replay.problems
        for figure, value in replay.figures.items():
            assert found[figure] == (value if value is None else pytest.approx(value, rel=1e-4, abs=2e-3)), figure
    assert figures["fifo"]["missedPercent"] >= 15
    assert figures["deadline"]["missedPercent"] <= 0.5
    assert 0.85 <= figures["deadline"]["p90Coverage"] <= 0.95


def test_a_priced_unit_is_used_only_for_jobs_that_would_be_late(tmp_path: Path) -> None:
    figures, lines = simulated(scenario(tmp_path, ("price", "cheapest"), priced=PRICED))
    for name, found in figures.items():
        replay = replayed(lines[name], SLOTS + PRICED["hiddenSlots"])
        assert not replay.problems
        for figure, value in replay.figures.items():
            assert found[figure] == pytest.approx(value, rel=1e-4, abs=2e-3), figure
    price, cheapest = figures["price"], figures["cheapest"]
    assert price["missedPercent"] <= 2  # of 20 slots; of 100 slots it is below 1
    assert (
        1 <= price["costOverBound"] < 1.6
    )  # the bound divides jobs among slots, which gains most at the end of a short day
    assert price["cost"] < cheapest["cost"] / 2


Spoil = Callable[[Event], Event | None]
"""Changes an event, or returns None to leave it out."""


def without(what: str) -> Spoil:
    return lambda event: None if event["what"] == what else event


def changed(what: str, **by: Any) -> Spoil:
    """Sets fields, or adds to them if they are durations."""
    return lambda event: event | {name: change(event[name]) for name, change in by.items()} if event["what"] == what else event  # fmt: skip


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    _, lines = simulated(scenario(tmp_path_factory.mktemp("day"), ("deadline",)))
    return [json.loads(line) for line in lines["deadline"]]


def test_same_scenario_gives_the_same_log(tmp_path: Path, events: list[Event]) -> None:
    _, lines = simulated(scenario(tmp_path, ("deadline",)))
    assert [json.loads(line) for line in lines["deadline"]] == events


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (without("ended"), "is on a slot in use"),
        (without("bound"), "ends and does not run"),
        (without("created"), "is bound and does not wait"),
        (changed("bound", slot=lambda slot: slot + SLOTS), "is on a slot that does not exist"),
        (changed("created", runSeconds=lambda run_s: run_s - 1), "does not end when it has run"),
        (changed("created", deadline=lambda deadline_s: deadline_s - 7_200), "misses its deadline in the hidden"),
        (changed("created", hiddenStart=lambda start_s: start_s - 7_200), "before its creation in the hidden"),
        (changed("created", hiddenStart=lambda start_s: BEGIN_S + 20_000), "the hidden schedule uses"),
    ],
)  # fmt: skip
def test_replay_finds_what_must_not_happen(events: list[Event], spoil: Spoil, problem: str) -> None:
    spoiled = [json.dumps(new) for event in events if (new := spoil(dict(event))) is not None]
    assert not replayed([json.dumps(event) for event in events]).problems
    assert any(problem in text for text in replayed(spoiled).problems)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"batch": {"durations": [50, 60]}}, "jobDay.batch.shares: 7 shares for 2 durations"),
        ({"batch": {"durations": [60, 50], "shares": [0, 1]}}, "jobDay.batch.durations: they do not rise"),
        ({"batch": {"durations": [50, 60], "shares": [0, 0.5]}}, "jobDay.batch.shares: they do not rise from 0 to 1"),
        ({"cron": {"slackMinutes": [9, 3]}}, "jobDay.cron.slackMinutes: [9, 3] is no range"),
        ({"fullShare": 1.2}, "jobDay.fullShare"),
    ],
)
def test_mistakes_of_the_section_name_field_and_fix(tmp_path: Path, section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_simulation(scenario(tmp_path, **section))
    assert problem in str(raised.value)


def test_a_policy_with_a_priced_unit_needs_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'price' uses a priced unit"):
        load_simulation(scenario(tmp_path, ("price",)))


# -- the bound -------------------------------------------------------------------------------------------------------------

JOB = st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 3))
"""Created, time to the deadline, run time."""


@settings(max_examples=60, deadline=None)
@given(st.lists(JOB, min_size=1, max_size=4), st.integers(1, 2))
def test_no_division_of_jobs_does_more_work_than_the_fluid_bound(jobs: list[tuple[int, int, int]], slots: int) -> None:
    """Every choice of a subset of whole units of time: by Hall's theorem, units that end in each interval fit its capacity."""
    plain = [(float(created), float(created + left), float(run)) for created, left, run in jobs]
    best = max(sum(done) for done in product(*(range(run + 1) for _, _, run in jobs)) if _fits(jobs, done, slots))
    assert fluid_own_work_s(plain, slots) == pytest.approx(best)


def _fits(jobs: list[tuple[int, int, int]], done: tuple[int, ...], slots: int) -> bool:
    for begin, end in product(range(9), range(1, 9)):
        inside = sum(
            work
            for (created, left, _), work in zip(jobs, done, strict=True)
            if begin <= created and created + left <= end
        )
        if inside > slots * max(0, end - begin):
            return False
    return True
