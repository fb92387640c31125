"""What lending idle CPU gains and costs: `python -m tests.perf.loan_day_bench --fleet DIR ... [--check]`.

Each directory has `services.csv` and `usage.csv` (see `simulate_quality`), and a number as its name, which is the seed. The last nine
days are played on 40 nodes. Prints the figures of each policy and fleet; `--check` exits 1 when a mean of `forecast` is beyond its bar.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, Final

RUN_S_MAX: Final = 3_600.0
CHECKED: Final = "forecast"
AT_LEAST: Final = {"gainOfBound": 0.85, "gainOverDailyPeak": 1.12, "recalls": 100.0}
AT_MOST: Final = {"overPercent": 0.5, "late": 0.0, "failedJobs": 0.0, "lostOverBest": 1.2}
SHOWN: Final = (*AT_LEAST, *AT_MOST, "gain", "lentOfBound", "evicted", "lostPercent", "finishedJobs")
SECTION: Final[dict[str, Any]] = {
    "judgedDays": 9,
    "nodes": {"count": 40, "peakPercent": 60},
    "thresholdPercent": 65,
    "return": {"notice": "30s", "grace": "30s"},
}


def figures_of(fleet: Path, policies: list[str], jobs: int, folder: Path) -> dict[str, dict[str, float]]:
    """Returns policy -> figures."""
    files = {"usage": {"files": [str(fleet / "usage.csv")]}, "services": {"file": str(fleet / "services.csv")}}
    header = {"apiVersion": "multisched.io/v1alpha1", "kind": "Scenario", "policies": policies}
    path = folder / f"{fleet.name}.yaml"
    path.write_text(json.dumps({**header, "seeds": [int(fleet.name)], "loanDay": {**SECTION, **files}}))
    command = [sys.executable, "-m", "multisched", "simulate", str(path), "-o", "json", "--jobs", str(jobs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=RUN_S_MAX)
    return {one["name"]: one["runs"][0] for one in json.loads(done.stdout)["policies"]}


def missed(mean: dict[str, float]) -> list[str]:
    """Returns the bars that the figures do not reach."""
    low = [f"{name} {mean[name]:.4g} < {bar:g}" for name, bar in AT_LEAST.items() if mean[name] < bar]
    return low + [f"{name} {mean[name]:.4g} > {bar:g}" for name, bar in AT_MOST.items() if mean[name] > bar]


def main() -> int:
    """Prints the figures; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--fleet", type=Path, nargs="+", required=True, help="directories with services.csv and usage.csv"
    )
    parser.add_argument("--policies", nargs="+", default=[CHECKED, "daily-peak", "current-use"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    found: list[dict[str, float]] = []
    print(f"{'fleet':>8} {'policy':>12}" + "".join(f"{name:>18}" for name in SHOWN))
    with tempfile.TemporaryDirectory() as folder:
        for fleet in options.fleet:
            for policy, run in figures_of(fleet.resolve(), options.policies, options.jobs, Path(folder)).items():
                cells = "".join("-".rjust(18) if run[name] is None else f"{run[name]:>18.4g}" for name in SHOWN)
                print(f"{fleet.name:>8} {policy:>12}{cells}", flush=True)
                found += [run] if policy == CHECKED else []
    beyond = (
        missed({name: fmean(run[name] for run in found) for name in (*AT_LEAST, *AT_MOST)}) if options.check else []
    )
    print("\n".join(beyond))
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
