"""Speed of the fit of profiles: `python -m tests.perf.fit_bench [--series 2560] [--gaps none|scrapes|hours|own]`.

Series of 14 days at five minutes (4,032 samples), in process CPU time with one thread of linear algebra, backtest included.
The best of RUNS; exits 1 below SERIES_PER_S_MIN. Gaps: single scrapes lost here and there, or a whole hour of its own for
each series, or a tenth of its hours and a beginning of its own (printed, not judged).
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: one core is what is measured

import argparse
import sys
import time

import numpy as np

from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.usage import Samples
from tests.unit.forecasting.weeks import make_series, make_usage

SERIES_PER_S_MIN = 3_000
RUNS = 5


def _with_gaps(values: Samples, gaps: str) -> Samples:
    rng = np.random.default_rng(1)
    if gaps == "scrapes":
        return np.where(rng.random(values.shape) < 0.01, np.float32(np.nan), values)
    if gaps == "hours":
        for row in values:
            for hour in rng.integers(0, len(row) // 12, 4):
                row[hour * 12 : hour * 12 + 12] = np.nan
    if gaps == "own":
        is_lost = rng.random((len(values), values.shape[1] // 12)) < 0.1
        is_lost |= np.arange(is_lost.shape[1]) < rng.integers(0, 120, len(values))[:, None]
        return np.where(np.repeat(is_lost, 12, axis=1), np.float32(np.nan), values)
    return values


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=2_560)
    parser.add_argument("--gaps", choices=("none", "scrapes", "hours", "own"), default="none")
    arguments = parser.parse_args()
    usage = make_usage(_with_gaps(make_series(services=arguments.series), arguments.gaps))
    settings = FitSettings(zone="Europe/Berlin")
    spent = []
    for _ in range(RUNS):
        begin = time.process_time()
        fit(usage, settings, 1, 0.0)
        spent.append(time.process_time() - begin)
    rate = arguments.series / min(spent)
    print(f"fit with backtest {rate:8.0f} series/s   {1e6 / rate:6.0f} us per series")
    return int(arguments.gaps == "none" and rate < SERIES_PER_S_MIN)


if __name__ == "__main__":
    sys.exit(main())
