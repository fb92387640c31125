"""Weights from node totals become curves only where nothing better is known."""

from __future__ import annotations

import numpy as np
import pytest

from domains.forecast.learning.attributed import with_attribution
from domains.forecast.learning.attribution import AttributionSettings, attribute
from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Origin
from multisched.forecasting.usage import Usage
from tests.unit.domains.forecast.learning.placements import END_S, totals_of, wandering_intervals
from tests.unit.domains.forecast.profiles import no_profiles
from tests.unit.forecasting.weeks import MONDAY_S, make_series

WEIGHT = np.array([1.0, 0.5, 2.0, 0.8])
TOTALS = totals_of(wandering_intervals([10, 10, 10, 1], nodes=8, replicas=3), WEIGHT, nodes=8, noise=0.1, cycle=0.5)
FOUND = attribute(TOTALS, AttributionSettings())


def test_attributed_weight_scales_the_shared_shape_and_undetermined_services_stay_unknown() -> None:
    profiles = with_attribution(no_profiles(("cpu",)), FOUND)

    assert profiles.services == ("s000", "s001", "s002", "s003")
    assert profiles.dimensions == ("cpu", "log")
    assert profiles.origin[:, 1].tolist() == [Origin.ATTRIBUTED] * 3 + [Origin.NONE]
    assert (profiles.origin[:, 0] == Origin.NONE).all()
    assert np.isnan(profiles.peak[3]).all()
    mean, evening = profiles.peak[2, 1].mean(), profiles.peak[2, 1, 20]
    assert 2.0 * 1.05 < mean < 2.0 * 1.4
    assert evening == pytest.approx(1.5 * mean, rel=0.1)
    assert (profiles.low[:3, 1] <= profiles.peak[:3, 1]).all()
    assert (profiles.peak[:3, 1] <= profiles.high[:3, 1]).all()
    assert profiles.newest_s == END_S - 300


def test_attributed_profile_has_the_error_of_its_weight_and_a_band() -> None:
    profiles = with_attribution(no_profiles(("cpu",)), FOUND)

    relative = FOUND.standard_error[:3, 0] / WEIGHT[:3]
    np.testing.assert_allclose(profiles.error[:3, 1], relative, rtol=0.1)
    assert (profiles.error[:3, 1] > 0).all()
    assert np.isnan(profiles.error[3]).all(), "what is not determined has none"
    assert np.isnan(profiles.error[:, 0]).all()
    width = (profiles.high - profiles.peak)[:3, 1].mean(axis=1) / profiles.peak[:3, 1].mean(axis=1)
    np.testing.assert_allclose(width, 2 * profiles.error[:3, 1], rtol=1e-3)
    assert (profiles.low[:3, 1] < profiles.peak[:3, 1]).all()


def test_profiles_measured_per_replica_are_kept() -> None:
    usage = Usage(MONDAY_S, 300, ("s001", "other"), ("log",), make_series(services=2)[:, None])
    measured = fit(usage, FitSettings(), 3, 0)

    profiles = with_attribution(measured, FOUND)

    assert profiles.services == ("s001", "other", "s000", "s002", "s003")
    np.testing.assert_array_equal(profiles.peak[:2], measured.peak)
    np.testing.assert_array_equal(profiles.error[:2], measured.error)
    assert profiles.origin[2:, 0].tolist() == [Origin.ATTRIBUTED, Origin.ATTRIBUTED, Origin.NONE]
    assert profiles.version == 3


def test_slots_of_other_lengths_use_the_shape_of_their_hour() -> None:
    quarter = with_attribution(no_profiles(slot_s=900), FOUND)
    hour = with_attribution(no_profiles(slot_s=3_600), FOUND)

    np.testing.assert_array_equal(quarter.peak[0, 0], np.repeat(hour.peak[0, 0], 4))


def test_two_time_zones_are_refused() -> None:
    berlin = attribute(TOTALS, AttributionSettings(zone="Europe/Berlin"))

    with pytest.raises(ValueError, match=r"zone: profiles have UTC, the attribution has Europe/Berlin"):
        with_attribution(no_profiles(), berlin)
