"""`python -m tests.sim.run --seeds 200 --jobs 2`: whole-program simulations; `--seed N` replays one."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor

from multisched.testing.scenario import Report, run_seed

FAULTS_MIN = 10


def attempt(seed: int) -> tuple[int, Report | None, str]:
    """A report, or what the run died of."""
    try:
        return seed, run_seed(seed), ""
    except Exception:  # noqa: BLE001 - a run ends here; its seed is what matters
        return seed, None, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else list(range(options.first, options.first + options.seeds))
    began = time.monotonic()
    failed = bound = faults = conflicts = 0
    with ProcessPoolExecutor(max_workers=options.jobs) as pool:
        for seed, report, died in pool.map(attempt, seeds):
            broken = report.broken if report is not None else (died,)
            if report is not None:
                bound, faults = bound + report.bound, faults + report.fault_count
                conflicts += report.conflicts_true
                if report.fault_count < FAULTS_MIN:
                    broken += (f"only {report.fault_count} faults",)
                if options.seed is not None:
                    print(report)
            if broken:
                failed += 1
                print(f"seed {seed} failed; replay with: python -m tests.sim.run --seed {seed}")
                print("\n".join(f"  {sentence}" for sentence in broken))
    seconds = time.monotonic() - began
    print(f"{bound} pods bound, {faults} faults, {conflicts} true conflicts, {seconds:.0f} s")
    print(f"{len(seeds) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
