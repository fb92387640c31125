"""The profiles file: profiles as compact bytes, for a ConfigMap, a volume or another cluster. Pure; the file holds data only.

    magic "MSPROFIL" · u16 format version · u32 length of the header · header · body         (integers little endian)

Header: MessagePack, deflated. Body, deflated: five float32 arrays over all series (least peak, code size of peak, of
low and of high, error); an array of origins; then 8-bit codes per series and slot, first of the peak, then of low and
of high. Codes of the peak are steps above the least peak, stored as differences from the previous slot and the previous
day (modulo 256). Codes of low and high are signed steps from the peak. NaN is 255 in the peak, -128 in low and high.
Everything except the curves is exact; for the curves see `PEAK_ERROR_MAX` and `BAND_ERROR_MAX`. The header contains the
backtest errors with three digits. They are optional: older programs ignore them, and files without them are accepted.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.profiles import Backtest, Origin, Profiles
from multisched.forecasting.time_units import WEEK_S

MAGIC: Final = b"MSPROFIL"
FORMAT_VERSION: Final = 1
CONFIG_MAP_BYTES: Final = 1_048_576
"""Size limit of a ConfigMap. Larger files need a volume."""
HEADER_BYTES_MAX: Final = 16 * 1_048_576
"""Inflated: 100,000 services with names of 160 bytes."""
VALUES_MAX: Final = 600_000_000
"""Limit of codes in a file: 100,000 services x 11 dimensions x 168 slots x 3 curves."""
PEAK_CODES: Final = 126
PEAK_NAN: Final = 255
BAND_CODES: Final = 15
BAND_NAN: Final = -128
PEAK_ERROR_MAX: Final = 0.5 / PEAK_CODES
"""Largest error of a stored peak, as a share of the range of the series' peak: 0.4 %, plus float32 rounding."""
BAND_ERROR_MAX: Final = 0.5 / BAND_CODES
"""Largest error of a stored low (or high), as a share of its largest distance from the peak: 3.3 %, plus the peak's error."""
SERIES_BYTES: Final = 21
TESTED_BYTES: Final = 7
"""Bytes of backtest errors per series."""
TESTED_MAX: Final = 60_000.0
"""Larger errors are stored as this value, near the maximum of float16."""
DAYS_NAN: Final = 255
_PREFIX: Final = struct.Struct("<8sHI")
_LEVEL: Final = 9
_HELP: Final = "export the profiles again"

Curves = NDArray[np.float64]
Codes = NDArray[np.uint8]
Offsets = NDArray[np.int8]


class ProfilesFileError(ValueError):
    """Invalid or incomplete bytes of a profiles file; the message names the problem and the fix."""


class _Header(msgspec.Struct, frozen=True):
    version: int
    made_s: float
    newest_s: float
    services: tuple[str, ...]
    dimensions: tuple[str, ...]
    zone: str
    slot_s: int
    tested: bytes = b""
    """float16[3, services, dimensions] errors, then uint8[services, dimensions] quarter days (255: NaN). Empty if the
    backtest is unknown, or if the header would become too large."""


def dumps(profiles: Profiles) -> bytes:
    """Encodes profiles. Raises ValueError for curves with infinite values, which cannot be quantized."""
    header = _Header(
        profiles.version,
        profiles.made_s,
        profiles.newest_s,
        profiles.services,
        profiles.dimensions,
        profiles.zone,
        profiles.slot_s,
        _tested_bytes(profiles.tested),
    )
    encoded = msgspec.msgpack.encode(header)
    if len(encoded) > HEADER_BYTES_MAX:
        encoded = msgspec.msgpack.encode(msgspec.structs.replace(header, tested=b""))
    packed = zlib.compress(encoded, _LEVEL)
    return _PREFIX.pack(MAGIC, FORMAT_VERSION, len(packed)) + packed + zlib.compress(_body(profiles), _LEVEL)


def dimensions_of(data: bytes) -> tuple[str, ...]:
    """Returns the dimensions named in the header of a file. Raises ProfilesFileError."""
    if len(data) < _PREFIX.size or not data.startswith(MAGIC):
        raise ProfilesFileError(f"not a profiles file: it does not begin with {MAGIC.decode()}")
    *_, header_bytes = _PREFIX.unpack_from(data)
    return _header(_inflate(data[_PREFIX.size : _PREFIX.size + header_bytes], HEADER_BYTES_MAX, "header")).dimensions


def loads(data: bytes) -> Profiles:
    """Decodes profiles; their arrays are read-only. Raises ProfilesFileError."""
    if len(data) < _PREFIX.size or not data.startswith(MAGIC):
        raise ProfilesFileError(
            f"not a profiles file: it does not begin with {MAGIC.decode()}; is it the profilesFile of PeakForecast?"
        )
    _, format_version, header_bytes = _PREFIX.unpack_from(data)
    if format_version != FORMAT_VERSION:
        raise ProfilesFileError(
            f"format version {format_version}, but this program reads {FORMAT_VERSION}; use a newer program, or {_HELP}"
        )
    body_begin = _PREFIX.size + header_bytes
    header = _header(_inflate(data[_PREFIX.size : body_begin], HEADER_BYTES_MAX, "header"))
    shape = (len(header.services), len(header.dimensions), _slots(header))
    values = 3 * shape[0] * shape[1] * shape[2]
    if values > VALUES_MAX:
        raise ProfilesFileError(f"{values} values, more than {VALUES_MAX}; split the services over several files")
    size = SERIES_BYTES * shape[0] * shape[1] + values
    body = _inflate(data[body_begin:], size, "body")
    if len(body) != size:
        raise ProfilesFileError(f"body: expected {size} bytes, got {len(body)}; {_HELP}")
    return _profiles(header, body, shape)


def _header(data: bytes) -> _Header:
    try:
        header = msgspec.msgpack.decode(data, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProfilesFileError(f"header: {error}; {_HELP}") from error
    try:
        ZoneInfo(header.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ProfilesFileError(f"header: zone {header.zone!r} is not a time zone known here; {_HELP}") from error
    return header


def _tested_bytes(tested: Backtest | None) -> bytes:
    if tested is None:
        return b""
    errors = [
        np.minimum(error, TESTED_MAX) for error in (tested.regression, tested.slot_quantile, tested.flat_quantile)
    ]
    quarters = np.clip(np.rint(tested.holdout_days * 4), 0, 254)
    days = np.where(np.isnan(quarters), DAYS_NAN, np.nan_to_num(quarters)).astype(np.uint8)
    return np.stack(errors).astype("<f2").tobytes() + days.tobytes()


def _tested(data: bytes, shape: tuple[int, ...]) -> Backtest | None:
    series = shape[0] * shape[1]
    if not data:
        return None
    if len(data) != TESTED_BYTES * series:
        raise ProfilesFileError(f"header: expected {TESTED_BYTES * series} bytes of errors, got {len(data)}; {_HELP}")
    errors = np.frombuffer(data, "<f2", 3 * series).reshape(3, *shape).astype(np.float32)
    quarters = np.frombuffer(data, np.uint8, series, 6 * series).reshape(shape)
    days = np.where(quarters == DAYS_NAN, np.float32(np.nan), quarters.astype(np.float32) / 4)
    found = Backtest(errors[0], errors[1], errors[2], days)
    for array in msgspec.structs.astuple(found):
        array.flags.writeable = False
    return found


def _slots(header: _Header) -> int:
    if header.slot_s <= 0 or WEEK_S % header.slot_s:
        raise ProfilesFileError(f"header: slot_s {header.slot_s} does not divide a week; {_HELP}")
    return WEEK_S // header.slot_s


def _inflate(data: bytes, bytes_max: int, part: str) -> bytes:
    """Inflates at most `bytes_max` bytes, so a malicious stream cannot exhaust memory. Raises ProfilesFileError."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise ProfilesFileError(f"{part}: damaged ({error}); {_HELP}") from error
    if len(found) > bytes_max:
        raise ProfilesFileError(f"{part}: more than {bytes_max} bytes; {_HELP}")
    if not stream.eof:
        raise ProfilesFileError(f"{part}: truncated after {len(data)} bytes; copy the whole file, or {_HELP}")
    if stream.unused_data:
        raise ProfilesFileError(f"{part}: {len(stream.unused_data)} bytes too many; {_HELP}")
    return found


def _body(profiles: Profiles) -> bytes:
    series = profiles.origin.size
    peak, low, high = (
        curve.reshape(series, profiles.slots).astype(np.float64)
        for curve in (profiles.peak, profiles.low, profiles.high)
    )
    if np.isinf([peak, low, high]).any():
        raise ValueError("profiles: a curve contains an infinite value")
    least, size, codes = _peak_codes(peak)
    stored = np.where(np.isnan(peak), 0.0, codes.astype(np.float64) * size[:, None] + least[:, None])
    low_size, low_codes = _band_codes(low - stored)
    high_size, high_codes = _band_codes(high - stored)
    numbers = (least, size, low_size, high_size, profiles.error.reshape(series))
    parts = [number.astype("<f4").tobytes() for number in numbers]
    parts += [profiles.origin.tobytes(), _lessened(codes).tobytes(), low_codes.tobytes(), high_codes.tobytes()]
    return b"".join(parts)


def _peak_codes(peak: Curves) -> tuple[NDArray[np.float64], NDArray[np.float64], Codes]:
    """Returns least value and code size of each series, and the codes, uint8[series, slots]."""
    is_known = ~np.isnan(peak)
    has_any = is_known.any(axis=1)
    least = np.where(has_any, np.where(is_known, peak, np.inf).min(axis=1), 0).astype(np.float32).astype(np.float64)
    greatest = np.where(has_any, np.where(is_known, peak, -np.inf).max(axis=1), 0)
    size = ((greatest - least) / PEAK_CODES).astype(np.float32).astype(np.float64)
    steps = (np.where(is_known, peak, 0) - least[:, None]) / np.where(size > 0, size, 1)[:, None]
    codes = np.rint(np.clip(steps, 0, PEAK_CODES)).astype(np.uint8)
    return least, size, np.where(is_known, codes, np.uint8(PEAK_NAN))


def _band_codes(offset: Curves) -> tuple[NDArray[np.float64], Offsets]:
    """Returns the code size of each series, and the codes of the distances from the peak, int8[series, slots]."""
    is_known = ~np.isnan(offset)
    offset = np.where(is_known, offset, 0)
    size = (np.abs(offset).max(axis=1, initial=0) / BAND_CODES).astype(np.float32).astype(np.float64)
    steps = np.rint(offset / np.where(size > 0, size, 1)[:, None])
    codes = np.clip(steps, -BAND_CODES, BAND_CODES).astype(np.int8)
    return size, np.where(is_known, codes, np.int8(BAND_NAN))


def _by_day(codes: Codes) -> Codes:
    """Returns uint8[series, days, slots per day]; if slots do not divide a day, the whole week counts as one day."""
    series, slots = codes.shape
    days = 7 if slots % 7 == 0 else 1
    return codes.reshape(series, days, slots // days)


def _lessened(codes: Codes) -> Codes:
    """Returns differences of codes from the previous slot and the previous day, modulo 256; they deflate to half the size."""
    days = np.diff(_by_day(codes), axis=1, prepend=np.uint8(0))
    return np.diff(days, axis=2, prepend=np.uint8(0)).reshape(codes.shape)


def _restored(lessened: Codes) -> Codes:
    """Inverts `_lessened`."""
    hours = np.cumsum(_by_day(lessened), axis=2, dtype=np.uint8)
    return np.cumsum(hours, axis=1, dtype=np.uint8).reshape(lessened.shape)


def _profiles(header: _Header, body: bytes, shape: tuple[int, int, int]) -> Profiles:
    series, slots = shape[0] * shape[1], shape[2]
    least, size, low_size, high_size, error = (
        np.frombuffer(body, "<f4", 5 * series).reshape(5, series).astype(np.float32)
    )
    if not np.isfinite([least, size, low_size, high_size]).all():
        raise ProfilesFileError(f"body: a series without a finite range; {_HELP}")
    origin = np.frombuffer(body, np.uint8, series, 20 * series)
    if origin.max(initial=0) > max(Origin):
        raise ProfilesFileError(f"body: origin {origin.max()} is unknown to this program; use a newer program")
    coded = np.frombuffer(body, np.uint8, offset=SERIES_BYTES * series).reshape(3, series, slots)
    codes, low_codes, high_codes = _restored(coded[0]), coded[1].view(np.int8), coded[2].view(np.int8)
    base = codes * size[:, None].astype(np.float64) + least[:, None]
    base[codes == PEAK_NAN] = 0
    found = [np.where(codes == PEAK_NAN, np.nan, base)]
    for offsets, step in ((low_codes, low_size), (high_codes, high_size)):
        found.append(np.where(offsets == BAND_NAN, np.nan, base + offsets * step[:, None].astype(np.float64)))
    peak, low, high = (curve.reshape(shape).astype(np.float32) for curve in found)
    arrays = (peak, low, high, origin.reshape(shape[:2]), error.reshape(shape[:2]))
    for array in arrays:
        array.flags.writeable = False
    return Profiles(
        header.version,
        header.made_s,
        header.newest_s,
        header.services,
        header.dimensions,
        *arrays,
        zone=header.zone,
        slot_s=header.slot_s,
        tested=_tested(header.tested, shape[:2]),
    )
