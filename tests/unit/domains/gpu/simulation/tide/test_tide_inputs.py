"""What a simulated tide plays: the shape of inference, and jobs of a file or drawn like philly's."""

from __future__ import annotations

import numpy as np
import pytest

from domains.gpu.simulation.tide.curve import BEGIN_S, Curve, CurveForecast, shape_curve
from domains.gpu.simulation.tide.jobs import Job, drawn, played
from domains.gpu.simulation.tide.section import CurveShape, ForecastError

DAY_S = 86_400.0


def test_shape_has_its_mean_its_rise_and_its_peak() -> None:
    curve = shape_curve(CurveShape(noise=0.0), 600, days=2, history_days=1, seed=0)
    minutes = curve.sampled(np.arange(BEGIN_S, BEGIN_S + DAY_S, 60.0))
    assert minutes.mean() / 600 == pytest.approx(0.335, abs=0.005)
    assert (minutes[30:] - minutes[:-30]).max() / 600 == pytest.approx(0.3, abs=0.01)
    assert minutes.max() == pytest.approx(600, rel=0.01)
    assert minutes.min() == pytest.approx(30, rel=0.05)
    assert curve.at_s[0] == BEGIN_S - DAY_S


def test_seed_decides_the_noise() -> None:
    first, again, other = (shape_curve(CurveShape(), 600, 1, 0, seed).cards for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    calm = shape_curve(CurveShape(noise=0.0), 600, 1, 0, 1).cards
    assert np.std(first - calm) == pytest.approx(6, rel=0.4)


def test_declared_error_scales_and_delays_the_forecast() -> None:
    curve = shape_curve(CurveShape(noise=0.0), 600, days=1, history_days=0, seed=0)
    right = CurveForecast(curve, BEGIN_S, 90.0, ForecastError())
    wrong = CurveForecast(curve, BEGIN_S, 90.0, ForecastError(1.3, 60.0))
    assert not right.is_learned
    at_s = BEGIN_S + 9 * 3_600
    assert right.at(at_s).expected(at_s) == pytest.approx(float(curve.sampled(np.array([at_s]))[0]), abs=5)
    assert wrong.at(at_s).expected(at_s + 3_600) == pytest.approx(1.3 * right.at(at_s).expected(at_s))
    learned = CurveForecast(shape_curve(CurveShape(), 600, 1, 7, 0), BEGIN_S, 90.0, ForecastError(0.7, 60.0))
    assert learned.is_learned
    assert learned.at(at_s).expected(at_s + 3_600) == pytest.approx(0.7 * right.at(at_s).expected(at_s), rel=0.1)


def test_jobs_of_a_file_begin_at_a_moment_with_those_that_run_then() -> None:
    jobs = [Job(0.0, 100.0, 1), Job(10.0, 1_000.0, 2), Job(500.0, 50.0, 4), Job(90_000.0, 50.0, 8)]
    found = played(jobs, 300.0, BEGIN_S, DAY_S, None, 1.0)
    assert found == (Job(BEGIN_S, 710.0, 2), Job(BEGIN_S + 200.0, 50.0, 4))


def test_load_repeats_jobs_of_a_file() -> None:
    jobs = [Job(3_600.0 * hour, 600.0, 4) for hour in range(24)]
    found = played(jobs, 0.0, BEGIN_S, DAY_S, 1.5, 96_000.0)
    assert sum(job.card_s for job in found) == pytest.approx(1.5 * 96_000, rel=0.05)
    assert all(BEGIN_S <= job.arrives_s < BEGIN_S + DAY_S for job in found)


def test_drawn_jobs_have_the_shares_of_philly() -> None:
    jobs = drawn(BEGIN_S, 7 * DAY_S, 1.5, 665 * 7 * DAY_S, 1_000, seed=0)
    there = [job for job in jobs if job.arrives_s == BEGIN_S]
    assert sum(job.cards for job in there) == pytest.approx(1_500, abs=32)
    assert sum(job.card_s for job in jobs if job.arrives_s > BEGIN_S) == pytest.approx(1.5 * 665 * 7 * DAY_S, rel=0.1)
    many = [
        job
        for seed in range(20)
        for job in drawn(BEGIN_S, 7 * DAY_S, 1.5, 665 * 7 * DAY_S, 1_000, seed)
        if job.arrives_s > BEGIN_S
    ]
    total = sum(job.card_s for job in many)
    assert sum(job.card_s for job in many if job.cards == 8) / total == pytest.approx(0.48, abs=0.08)
    assert sum(job.work_s <= 3_600 for job in many) / len(many) > 0.7
    assert sum(job.card_s for job in many if job.work_s <= 3_600) / total == pytest.approx(0.019, abs=0.01)


def test_curve_is_linear_between_its_samples() -> None:
    curve = Curve(np.array([0.0, 100.0]), np.array([10.0, 20.0]))
    assert curve.sampled(np.array([50.0])) == pytest.approx([15.0])
