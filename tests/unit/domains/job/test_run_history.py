"""Run times: what is learned, predicted, forgotten and kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.job.runtimes.history import (
    RUNS_MAX,
    WORKLOADS_MAX,
    MalformedHistoryError,
    Origin,
    RunHistory,
    RunKey,
    read_history,
)
from domains.job.runtimes.kept_history import KeptHistory
from domains.job.runtimes.pod_run import PodRun
from domains.job.runtimes.quantiles import bound_of, quantile_of, weights_of

KEY = RunKey("ns", "CronJob/settle", "images")
SECONDS = st.floats(0, 1e6).map(lambda value: round(value, 1))


def run(duration_s: float, ended_s: float = 1e6, start_up_s: float = 2.0) -> PodRun:
    began_s = ended_s - duration_s
    return PodRun(began_s - start_up_s, began_s, ended_s)


def learned(*durations_s: float, key: RunKey = KEY) -> RunHistory:
    history = RunHistory()
    for number, duration_s in enumerate(durations_s):
        history.add(key, run(duration_s, 1e7 + 1e6 * number))
    return history


@given(st.integers(1, RUNS_MAX))
def test_weights_add_up_and_the_last_two_have_one_half(count: int) -> None:
    weights = weights_of(count)
    assert sum(weights) == pytest.approx(1.0)
    assert sum(weights[-2:]) == pytest.approx(max(0.5, 2 / count) if count > 1 else 1.0)


@given(st.lists(SECONDS, min_size=1, max_size=RUNS_MAX), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_quantiles_are_runs_and_rise_with_the_share(values: list[float], one: float, other: float) -> None:
    low, high = quantile_of(values, min(one, other)), quantile_of(values, max(one, other))
    assert low in values
    assert high in values
    assert low is not None
    assert high is not None
    assert low <= high


def test_two_recent_runs_outweigh_thirty_old_ones() -> None:
    prediction = learned(*[10.0] * 30, 100.0, 100.0).predict(KEY)
    assert (prediction.median_s, prediction.p90_s, prediction.runs) == (10.0, 100.0, 32)
    assert learned(*[100.0] * 30, 10.0, 10.0).predict(KEY).median_s == 10.0


@given(st.lists(SECONDS, min_size=1, max_size=80))
def test_only_the_last_runs_count(durations_s: list[float]) -> None:
    assert learned(*durations_s).predict(KEY) == learned(*durations_s[-RUNS_MAX:]).predict(KEY)


@given(st.lists(SECONDS, min_size=1, max_size=RUNS_MAX), st.floats(0, 1e6))
def test_time_left_is_that_of_a_longer_run(durations_s: list[float], age_s: float) -> None:
    left_s = learned(*durations_s).residual_s(KEY, age_s)
    longer = [one - age_s for one in durations_s if one > age_s]
    assert left_s in longer if longer else left_s == age_s


def test_an_unknown_workload_has_the_runs_of_its_namespace_then_of_all() -> None:
    history = learned(50.0)
    assert history.predict(KEY).origin is Origin.WORKLOAD
    assert history.predict(RunKey("ns", "Job/other")).origin is Origin.NAMESPACE
    assert history.predict(RunKey("elsewhere", "Job/other")).origin is Origin.ALL
    assert history.predict(RunKey("elsewhere")).p90_s == 50.0
    assert RunHistory().predict(KEY).origin is Origin.NONE
    assert RunHistory().residual_s(KEY, 5.0) is None


def test_coverage_judges_by_what_was_predicted_before_a_run_began() -> None:
    history = RunHistory()
    history.add(KEY, run(10.0, ended_s=1_000.0))
    history.add(KEY, run(500.0, ended_s=1_100.0))  # began at 600, before anything was known: not judged
    history.add(KEY, run(300.0, ended_s=1_350.0))  # began at 1050, when 10 was predicted
    history.add(KEY, run(400.0, ended_s=1_800.0))  # began at 1400, when 500 was
    runs = history.runs[KEY]
    assert (runs.judged, runs.covered, runs.coverage) == (2, 1, 0.5)


def test_workloads_are_bounded_and_the_one_idle_longest_is_forgotten() -> None:
    history = RunHistory()
    for number in range(WORKLOADS_MAX + 50):
        history.add(RunKey("ns", f"Job/{number}"), run(5.0, ended_s=1_000.0 + number))
    assert len(history.runs) == WORKLOADS_MAX
    assert RunKey("ns", "Job/0") not in history.runs
    assert RunKey("ns", f"Job/{WORKLOADS_MAX + 49}") in history.runs
    assert RunKey("") in history.runs
    assert len(history.document()) < 900_000


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=60), st.integers(0, 60))
def test_a_restart_knows_the_same_and_learns_no_run_twice(ends: list[tuple[float, float]], cut: int) -> None:
    runs = sorted(
        (run(duration_s, ended_s=1e7 + ended_s) for ended_s, duration_s in dict(ends).items()),
        key=lambda one: one.ended_s,
    )
    whole, before = RunHistory(), RunHistory()
    for one in runs:
        whole.add(KEY, one)
    for one in runs[:cut]:
        before.add(KEY, one)
    after = read_history(before.document(), [(KEY, one) for one in reversed(runs)])
    assert after.document() == whole.document()


@pytest.mark.parametrize(
    "document",
    [
        b"[",
        b"\xff",
        b'{"runs": [["ns", "o", "i", {"durations_s": [-1.0], "start_ups_s": [0.0]}]]}',
        b'{"runs": [["ns", "o", "i", {"durations_s": [1.0], "start_ups_s": []}]]}',
        b'{"runs": [["ns", "o", "i", {"durations_s": [1.0], "start_ups_s": [1.0], "judged": 1, "covered": 2}]]}',
    ],
)
def test_a_malformed_document_is_refused(document: bytes) -> None:
    with pytest.raises(MalformedHistoryError):
        read_history(document)


def test_a_pod_that_a_relist_shows_again_is_learned_once() -> None:
    kept = KeptHistory()
    for _ in range(2):
        kept.learn("uid", KEY, run(10.0))
    assert kept.history.predict(KEY).runs == 1


@pytest.mark.parametrize("runs", [12, 20, RUNS_MAX])
def test_p90_covers_about_nine_of_ten_runs_of_one_distribution(runs: int) -> None:
    """The weighted quantile alone covers 0.84 with 32 runs."""
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(3_000):
        *known, following = rng.lognormal(6.0, 0.4, runs + 1).tolist()
        covered += following <= (bound_of(known, 0.9) or 0.0)
    assert 0.88 <= covered / 3_000 <= 0.95


def test_a_prediction_follows_each_run() -> None:
    history = learned(*[10.0] * 12)
    assert history.predict(KEY).p90_s == 10.0
    history.add(KEY, run(70.0, 9e7))
    assert (history.predict(KEY).p90_s, history.predict(KEY).runs) == (70.0, 13)


def test_a_pod_in_time_has_a_tenth_of_its_p90_to_spare() -> None:
    assert learned(*[98.0] * 12).predict(KEY).finish_s == pytest.approx(1.1 * 100.0)  # start-ups last 2 s
