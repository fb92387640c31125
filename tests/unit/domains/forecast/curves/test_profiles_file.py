"""The profiles file: what is read is what was written, within the stated error; anything else is refused with its reason."""

from __future__ import annotations

import struct
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.curves.profiles_file import (
    BAND_ERROR_MAX,
    CONFIG_MAP_BYTES,
    HEADER_BYTES_MAX,
    MAGIC,
    PEAK_ERROR_MAX,
    ProfilesFileError,
    dumps,
    loads,
)
from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Origin, Profiles
from multisched.forecasting.usage import Usage
from tests.unit.domains.forecast.profiles import no_profiles
from tests.unit.forecasting.weeks import MONDAY_S, make_series

ROUNDING = 1e-6
"""Of the largest value: float32's own."""


def make_profiles(
    seed: int, *, services: int = 3, dimensions: int = 2, slot_s: int = 14_400, unit: float = 1.0
) -> Profiles:
    rng = np.random.default_rng(seed)
    shape = (services, dimensions, 7 * 86_400 // slot_s)
    peak = (unit * rng.lognormal(0, 2, shape[:2])[..., None] * rng.random(shape)).astype(np.float32)
    low, high = peak * rng.random(shape).astype(np.float32), peak * np.float32(1.5)
    origin = rng.integers(0, 5, shape[:2]).astype(np.uint8)
    for curve in (peak, low, high):
        curve[origin == Origin.NONE] = np.nan
    return Profiles(
        version=seed,
        made_s=1.5e9 + seed / 3,
        newest_s=1.4e9,
        services=tuple(f"shop/größe-{number}" for number in range(services)),
        dimensions=tuple(f"d{number}" for number in range(dimensions)),
        peak=peak,
        low=low,
        high=high,
        origin=origin,
        error=rng.random(shape[:2]).astype(np.float32),
        zone="Europe/Berlin",
        slot_s=slot_s,
    )


@given(
    st.integers(0, 10_000),
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from((3_600, 14_400, 25_200, 604_800)),
    st.sampled_from((1e-9, 1.0, 1e12)),
)
def test_profiles_read_back_within_the_stated_error(
    seed: int, services: int, dimensions: int, slot_s: int, unit: float
) -> None:
    kept = make_profiles(seed, services=services, dimensions=dimensions, slot_s=slot_s, unit=unit)

    found = loads(dumps(kept))

    for name in ("version", "made_s", "newest_s", "services", "dimensions", "zone", "slot_s"):
        assert getattr(found, name) == getattr(kept, name)
    np.testing.assert_array_equal(found.origin, kept.origin)
    np.testing.assert_array_equal(found.error, kept.error)
    top = np.nan_to_num(kept.high).max(axis=2, initial=0)
    range_of_peak = np.ptp(np.nan_to_num(kept.peak), axis=2) if kept.peak.size else top
    peak_error = PEAK_ERROR_MAX * range_of_peak + ROUNDING * top
    assert (np.abs(np.nan_to_num(found.peak - kept.peak)).max(axis=2, initial=0) <= peak_error).all()
    for name in ("low", "high"):
        curve, true = getattr(found, name), getattr(kept, name)
        reach = np.abs(np.nan_to_num(true - kept.peak)).max(axis=2, initial=0)
        band_error = 2 * peak_error + BAND_ERROR_MAX * reach
        assert (np.abs(np.nan_to_num(curve - true)).max(axis=2, initial=0) <= band_error).all()
    for name in ("peak", "low", "high"):
        np.testing.assert_array_equal(np.isnan(getattr(found, name)), np.isnan(getattr(kept, name)))
        assert not getattr(found, name).flags.writeable


def test_single_slots_without_a_value_read_back_so() -> None:
    profiles = make_profiles(1)
    profiles.peak[0, 0, :3] = np.nan
    profiles.low[0, 0, 5] = np.nan

    found = loads(dumps(profiles))

    np.testing.assert_array_equal(np.isnan(found.peak), np.isnan(profiles.peak))
    np.testing.assert_array_equal(np.isnan(found.low), np.isnan(profiles.low))


def test_flat_curve_reads_back_equal() -> None:
    profiles = make_profiles(2)
    flat = msgspec.structs.replace(
        profiles, **{name: np.full_like(profiles.peak, 7.3) for name in ("peak", "low", "high")}
    )

    found = loads(dumps(flat))

    for name in ("peak", "low", "high"):
        np.testing.assert_array_equal(getattr(found, name), getattr(flat, name))


def test_empty_profiles_can_be_written_and_read() -> None:
    assert loads(dumps(no_profiles(("cpu",)))).services == ()


def test_a_thousand_services_in_five_dimensions_fit_into_a_config_map() -> None:
    """A tenth of them takes a tenth of the bytes."""
    services = 100
    values = make_series(services=services * 5, step_s=3_600).reshape(services, 5, -1)
    names = tuple(f"namespace-{number % 20}/service-{number}-backend" for number in range(services))
    profiles = fit(Usage(MONDAY_S, 3_600, names, tuple("abcde"), values), FitSettings(), 1, 0)

    assert len(dumps(profiles)) < 0.9 * CONFIG_MAP_BYTES / 10


def test_backtest_results_are_kept_and_old_files_have_none() -> None:
    values = make_series(services=4, step_s=3_600, days=14).reshape(2, 2, -1)
    values[1, 1, : 13 * 24] = np.nan
    profiles = fit(Usage(MONDAY_S, 3_600, ("a", "b"), ("cpu", "log"), values), FitSettings(), 1, 0)
    assert profiles.tested is not None

    found = loads(dumps(profiles)).tested

    assert found is not None
    for name in ("regression", "slot_quantile", "flat_quantile", "holdout_days"):
        np.testing.assert_allclose(getattr(found, name), getattr(profiles.tested, name), rtol=1e-3)
    assert found.holdout_days[0].tolist() == [7, 7]
    assert np.isnan(found.holdout_days[1, 1])
    assert loads(dumps(make_profiles(1))).tested is None


@given(st.data())
def test_file_truncated_anywhere_is_refused(data: st.DataObject) -> None:
    whole = dumps(make_profiles(3))
    end = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(ProfilesFileError, match=r"truncated|not a profiles file"):
        loads(whole[:end])


@given(st.data())
def test_damaged_byte_anywhere_is_detected(data: st.DataObject) -> None:
    damaged = bytearray(dumps(make_profiles(4)))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))

    with pytest.raises(ProfilesFileError):
        loads(bytes(damaged))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProfilesFileError, match="not a profiles file"):
        loads(data)


def test_a_newer_file_is_refused_by_its_version() -> None:
    newer = bytearray(dumps(make_profiles(5)))
    newer[8] = 2

    with pytest.raises(ProfilesFileError, match="format version 2, but this program reads 1; use a newer program"):
        loads(bytes(newer))


def packed(header: bytes, body: bytes) -> bytes:
    return struct.pack("<8sHI", MAGIC, 1, len(header)) + header + body


def test_header_that_decompresses_beyond_the_limit_is_refused() -> None:
    bomb = zlib.compress(bytes(4 * HEADER_BYTES_MAX), 9)

    with pytest.raises(ProfilesFileError, match=f"header: more than {HEADER_BYTES_MAX} bytes"):
        loads(packed(bomb, b""))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"version": 1}, "missing required field"),
        ([], "header: Expected `object`"),
        ({"services": ["s"] * 2_000_000}, "values, more than"),
        ({"slot_s": 0}, "slot_s 0 does not divide a week"),
        ({"services": ["s"] * 3}, "body: .* bytes, got"),
        ({"services": []}, "body: more than 0 bytes"),
        ({"services": "no"}, "header: Expected `array`"),
        ({"zone": "Mars/Phobos"}, "header: zone 'Mars/Phobos'"),
        ({"tested": b"short"}, "header: expected 7 bytes of errors, got 5"),
    ],
)
def test_impossible_header_is_refused(header: dict[str, object] | list[object], message: str) -> None:
    whole = {
        "version": 1,
        "made_s": 0,
        "newest_s": 0,
        "services": ["s"],
        "dimensions": ["cpu"],
        "zone": "UTC",
        "slot_s": 3_600,
    }
    sent = whole | header if isinstance(header, dict) and header != {"version": 1} else header
    body = zlib.compress(bytes(21 + 3 * 168))

    with pytest.raises(ProfilesFileError, match=message):
        loads(packed(zlib.compress(msgspec.msgpack.encode(sent)), body))


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(ProfilesFileError, match="body: 3 bytes too many"):
        loads(dumps(make_profiles(6)) + b"abc")


def test_an_origin_of_a_newer_program_is_refused() -> None:
    profiles = make_profiles(7)
    profiles.origin[0, 0] = 9

    with pytest.raises(ProfilesFileError, match="origin 9"):
        loads(dumps(profiles))


def test_infinite_values_are_refused_on_writing() -> None:
    profiles = make_profiles(8)
    profiles.high[0, 0, 0] = np.inf

    with pytest.raises(ValueError, match="infinite"):
        dumps(profiles)
