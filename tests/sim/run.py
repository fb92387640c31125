"""`python -m tests.sim.run --seeds 200 --jobs 2`: whole-program simulations; `--seed N` replays one.

The seeds are of each kind in turn; with `--first` they are consecutive.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count as numbers
from itertools import cycle, islice

from multisched.shell.garbage import set_gc_thresholds
from tests.kit.disruptions.catalog import BY_NAME
from tests.kit.run.report import Report
from tests.kit.run.seeded_run import run_seed
from tests.kit.settings.setting import (
    CONTESTED_FROM,
    EDITED_FROM,
    ELASTIC_FROM,
    LENT_FROM,
    LINKED_FROM,
    OWNED_FROM,
    RARE_FROM,
    RELOADED_FROM,
    SERVERLESS_FROM,
    TEAMED_FROM,
    TIDED_FROM,
)
from tests.kit.world.gang_plans import PACKED_FROM

KINDS = (
    0,
    TEAMED_FROM,
    RELOADED_FROM,
    OWNED_FROM,
    LINKED_FROM,
    EDITED_FROM,
    TIDED_FROM,
    CONTESTED_FROM,
    SERVERLESS_FROM,
    ELASTIC_FROM,
    RARE_FROM,
    LENT_FROM,
)
"""The first seed of each kind of run."""
TESTED = (
    1,
    TEAMED_FROM,
    PACKED_FROM,
    PACKED_FROM + 2,
    RELOADED_FROM + 1,
    OWNED_FROM,
    LINKED_FROM,
    EDITED_FROM,
    TIDED_FROM + 1,
    TIDED_FROM + 2,
    CONTESTED_FROM,
    SERVERLESS_FROM,
    SERVERLESS_FROM + 1,
    ELASTIC_FROM,
    RARE_FROM,
    LENT_FROM,
    LENT_FROM + 1,
)
"""Seeds that `test_sim` plays: one of each kind, and both halves of the scenarios of tides, of jobs and of loans. Those
with an even number run the default configuration. In seed 202, a class is rebuilt while a run of its pods is taken back.
"""
SLOW = frozenset(TESTED) - {1, PACKED_FROM, PACKED_FROM + 2, SERVERLESS_FROM + 1}
"""Those of them that are played with `--slow` only, as CI does: each takes some ten seconds of CPU."""
FAULTS_MIN = 10
"""Minimum number of faults in every run."""


def played(count: int) -> list[int]:
    """Returns `count` seeds, of each kind in turn."""
    kinds = [numbers(start) for start in KINDS]
    return [next(kind) for kind in islice(cycle(kinds), count)]


def attempt(seed: int, kinds: Sequence[str] | None = None) -> tuple[int, Report | None, str]:
    """Returns the seed, its report, and the traceback if the run raised."""
    try:
        return seed, run_seed(seed, kinds=kinds), ""
    except Exception:  # noqa: BLE001 - a run ends here; its seed is what matters
        return seed, None, traceback.format_exc()


def quiet() -> None:
    """Disables logging, since the program logs thousands of faults, and sets the program's thresholds of garbage collection, which
    would take a tenth of a run.
    """
    logging.disable(logging.CRITICAL)
    set_gc_thresholds()


class Summary:
    """The results of all runs of one command."""

    def __init__(self) -> None:
        self.failed = 0
        self._runs = 0
        self._bound = self._true = self._false = self._repaired = self._quarantined = 0
        self._faults: Counter[str] = Counter()
        self._fewest: Report | None = None
        self._slowest: Report | None = None

    def take(self, seed: int, report: Report | None, died: str) -> None:
        self._runs += 1
        broken = report.broken if report is not None else (died,)
        if report is not None:
            if report.fault_count < FAULTS_MIN:
                broken += (f"only {report.fault_count} faults struck",)
            self._add(report)
        if broken:
            self.failed += 1
            print(f"seed {seed} failed; replay with: python -m tests.sim.run --seed {seed}")
            print("\n".join(f"  {sentence}" for sentence in broken), flush=True)

    def _add(self, report: Report) -> None:
        self._bound += report.bound
        self._true += report.conflicts_true
        self._false += report.conflicts_false
        self._repaired += report.repaired
        self._quarantined += report.quarantines
        self._faults.update(report.faults)
        if self._fewest is None or report.fault_count < self._fewest.fault_count:
            self._fewest = report
        if self._slowest is None or report.quiet_s > self._slowest.quiet_s:
            self._slowest = report

    def show(self, seconds: float, *, is_of_all_kinds: bool) -> None:
        for kind, count in sorted(self._faults.items(), key=lambda item: (-item[1], item[0])):
            print(f"{count:8} {kind}")
        if self._fewest is not None and self._slowest is not None:
            print(f"fewest faults in a run: {self._fewest.fault_count} (seed {self._fewest.seed})")
            print(f"longest from the last fault to rest: {self._slowest.quiet_s:.0f} s (seed {self._slowest.seed})")
        print(f"{self._repaired} lost watch events found by the audit")
        print(f"{self._quarantined} times a pod that the API server always refuses was set aside")
        print(f"{self._bound} pods bound, {sum(self._faults.values())} faults, {seconds:.0f} s")
        print(f"{self._true} true conflicts, {self._false} false ones")
        if is_of_all_kinds and self._runs >= 10 and not (self._true and self._false):
            self.failed += 1
            print("no conflicts: the cycles did not meet")
        print(f"{self._runs - self.failed} passed, {self.failed} failed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument(
        "--first", type=int, default=None, help="of consecutive seeds; without it they are of all kinds"
    )
    parser.add_argument("--untested", action="store_true", help="leave out the seeds that `make test` plays")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="replay one run and print its report")
    parser.add_argument(
        "--kinds", nargs="*", choices=sorted(BY_NAME), metavar="KIND", help="of these disruptions alone"
    )
    options = parser.parse_args()
    summary = Summary()
    began = time.monotonic()
    if options.seed is not None:
        seed, report, died = attempt(options.seed, options.kinds)
        summary.take(seed, report, died)
        print(report)
        return 1 if summary.failed else 0
    first, count = options.first, options.seeds
    seeds = played(count) if first is None else list(range(first, first + count))
    if options.untested:
        seeds = [seed for seed in seeds if seed not in TESTED]
    with ProcessPoolExecutor(max_workers=options.jobs, initializer=quiet) as pool:
        for seed, report, died in pool.map(partial(attempt, kinds=options.kinds), seeds):
            summary.take(seed, report, died)
    summary.show(time.monotonic() - began, is_of_all_kinds=first is None)
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
