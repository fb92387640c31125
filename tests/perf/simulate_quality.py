"""How even policies keep fleets, through `multisched simulate`: `python -m tests.perf.simulate_quality [--fleet DIR ...] [--check]`.

Each directory has `services.csv` (service,replicas,cpu_request,memory_request_gib) and `usage.csv` (timestamp,service,dimension,value
over whole days, per replica); without directories fleets are made (`--kind`, `--seeds`), and are not those of the bars. For each a
scenario is written: nodes whose capacity is such that the fleet's peak in the judged days fills 60 % of it and whose CPU is
requested to 75 %, memory ample; all but the last nine days are known, those are judged. Orders of creation differ from fleet to
fleet. Prints the means over fleets and orders: per dimension the coefficient of variation of the nodes' load in the two busiest
hours of each day (CV), and the highest load of any node (top); `--check` exits 1 when a mean of peak-forecast is beyond its bar.
`--write DIR` keeps the scenarios, to be run by hand.
`--repair 05:00-07:00` adds the policy `repaired`: peak-forecast that learns again as days go by, with repair in that window of the
judged days: MOVES_PER_WINDOW at most in each, 3 moves per 100 replicas in all. Printed are its means, their share of those without,
and its moves; with `--check` its bars of tops are REPAIR_GAIN lower.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from domains.forecast.profile import PROFILE
from multisched.simulate.scenario import CAPACITY_ANNOTATION
from tests.perf.made_fleets import KINDS, write_fleet

JUDGED_DAYS: Final = 9
PEAK_FILLS, REQUESTS_FILL = 0.6, 0.75
RUN_S_MAX: Final = 900.0
CHECKED: Final = "peak-forecast"
REPAIRED: Final = "repaired"
REPAIR_GAIN: Final = 0.05
"""Of the tops' bars."""
MOVES_MAX: Final = 3.0
"""Per 100 replicas."""
MOVES_PER_WINDOW: Final = 4
STEP_S: Final = 900
FORECAST_WEIGHT: Final = next(use.weight for use in PROFILE.plugins if use.name == "PeakForecast")
MOVES: Final = "moves"
BARS: Final = {
    "cpu CV": 0.172, "cpu top": 0.945, "log CV": 0.255, "log top": 1.18, "net CV": 0.222, "net top": 1.04,
}  # fmt: skip

NODE: Final = """\
- name: node-{number}
  count: {count}
  allocatable: {{cpu: {cpu:.0f}m, memory: 1Pi, pods: 1000}}
  capacity: {{{capacity}}}"""
SCENARIO: Final = """\
apiVersion: multisched.io/v1alpha1
kind: Scenario
name: {name}
usage: {{files: [{usage}]}}
services: {{file: {services}}}
nodes:
{nodes}
known: {{until: day {known}}}
judged: {{from: day {judged}, to: day {days}}}
policies:
{policies}
seeds: {seeds}
"""


Nodes = Sequence[tuple[int, float]]
"""How many of which size."""


def scenario_of(fleet: Path, nodes: Nodes, policies: Sequence[str], seeds: Sequence[int]) -> str:
    """The scenario, with the absolute paths of the fleet's files."""
    with (fleet / "services.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    replicas = {row["service"]: int(row["replicas"]) for row in rows}
    asked_milli = 1000 * sum(int(row["replicas"]) * float(row["cpu_request"]) for row in rows)
    used: dict[str, dict[str, float]] = {}
    with (fleet / "usage.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            total = used.setdefault(row["dimension"], {})
            total[row["timestamp"]] = total.get(row["timestamp"], 0.0) + replicas[row["service"]] * float(row["value"])
    times = sorted(next(iter(used.values())))
    days = sorted({time[:10] for time in times})
    judged = {time for time in times if time[:10] in days[-JUDGED_DAYS:]}
    peaks = {name: max(total[time] for time in judged) for name, total in used.items()}
    whole = sum(count * size for count, size in nodes)
    groups = [
        NODE.format(
            number=number,
            count=count,
            cpu=asked_milli * size / whole / REQUESTS_FILL,
            capacity=", ".join(f"{d}: {peak * 1000 * size / whole / PEAK_FILLS:.0f}m" for d, peak in peaks.items()),
        )
        for number, (count, size) in enumerate(nodes)
    ]
    return SCENARIO.format(
        name=f"fleet {fleet.name}",
        usage=json.dumps(str((fleet / "usage.csv").resolve())),
        services=json.dumps(str((fleet / "services.csv").resolve())),
        nodes="\n".join(groups),
        known=len(days) - JUDGED_DAYS,
        judged=len(days) - JUDGED_DAYS + 1,
        days=len(days),
        policies="\n".join(f"- {policy}" for policy in policies),
        seeds=list(seeds),
    )


def repaired(window: str, fleet: Path) -> str:
    """The policy, as a scenario writes it. The usage stands for the sources, so that queries and address are never asked."""
    with (fleet / "usage.csv").open(newline="") as file:
        names = sorted({row["dimension"] for row in csv.DictReader(file)})
    history = {
        "stepSeconds": STEP_S,
        "refreshSeconds": 3_600,
        "sources": [{"type": "prometheus", "url": "http://usage.invalid"}],
        "dimensions": [
            {"name": name, "query": name, "capacity": {"annotation": CAPACITY_ANNOTATION + name}} for name in names
        ],
    }
    plugin = {"name": "PeakForecast", "weight": FORECAST_WEIGHT, "args": {"history": history}}
    opens, closes = window.split("-")
    section = {
        "windows": [{"from": opens, "to": closes}],
        "movesPer100Replicas": MOVES_MAX,
        "movesPerWindow": MOVES_PER_WINDOW,
    }
    profile = {"base": "forecast", "plugins": {"enabled": [plugin]}}
    return json.dumps({"name": REPAIRED, "profile": profile, "repair": section})


def figures_of(scenario: Path, jobs: int) -> dict[str, list[dict[str, float]]]:
    """Per policy and order: the figures by their names in BARS."""
    command = [sys.executable, "-m", "multisched", "simulate", str(scenario), "-o", "json", "--jobs", str(jobs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=RUN_S_MAX)
    found = {}
    for policy in json.loads(done.stdout)["policies"]:
        found[policy["name"]] = [
            {
                f"{name} {what}": value
                for name, one in run["dimensions"].items()
                for what, value in (("CV", one["busiestHours"]["cv"]), ("top", one["worstSlot"]["load"]))
            }
            | {MOVES: policy["mean"]["movesPer100Replicas"]}
            for run in policy["seeds"]
        ]
    return found


def _made(kind: str, seeds: int, folder: Path) -> list[Path]:
    folders = [folder / f"{kind}-{seed}" for seed in range(seeds)]
    for seed, one in enumerate(folders):
        write_fleet(KINDS[kind], seed, one)
    return folders


def main() -> int:
    """Prints the means; 1 if one of CHECKED is beyond its bar and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fleet", type=Path, nargs="+", default=[], help="directories with services.csv and usage.csv")
    parser.add_argument("--kind", choices=list(KINDS), default="online", help="of fleets that are made, and of nodes")
    parser.add_argument("--seeds", type=int, default=10, help="how many fleets are made")
    parser.add_argument("--policies", nargs="+", default=["least-allocated", "realtime", CHECKED])
    parser.add_argument("--orders", type=int, default=1, help="orders of creation per fleet")
    parser.add_argument("--repair", metavar="FROM-TO", help="a window, UTC: also peak-forecast with repair in it")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", type=Path, help="a directory that keeps the scenarios")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        kept = options.write or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        fleets = options.fleet or _made(options.kind, options.seeds, kept)
        for number, fleet in enumerate(fleets):
            path = kept / f"{fleet.name}.yaml"
            seeds = [number + 1_000 * order for order in range(options.orders)]
            policies = [*options.policies, *([repaired(options.repair, fleet)] if options.repair else [])]
            path.write_text(scenario_of(fleet, KINDS[options.kind].nodes, policies, seeds))
            for policy, runs in figures_of(path, options.jobs).items():
                found.setdefault(policy, []).extend(runs)
    names = list(found[options.policies[0]][0])
    means = {
        policy: {name: float(np.mean([run[name] for run in runs])) for name in names} for policy, runs in found.items()
    }
    width = max(map(len, means))
    print(f"{'':>{width}}" + "".join(f"{name:>9}" for name in names))
    if all(name in BARS for name in names if name != MOVES):
        print(f"{'bar':>{width}}" + "".join(f"{BARS[name]:>9.3f}" for name in names if name in BARS))
    for policy, mean in means.items():
        print(f"{policy:>{width}}" + "".join(f"{mean[name]:>9.3f}" for name in names))
    is_missed = any(value > BARS.get(name, np.inf) for name, value in means.get(CHECKED, {}).items())
    if REPAIRED in means and CHECKED in means:
        shares = [means[REPAIRED][name] / means[CHECKED][name] for name in names if name != MOVES]
        print(f"{'share':>{width}}" + "".join(f"{share:>9.3f}" for share in shares))
        tops = [name for name in BARS if name.endswith("top")]
        is_missed |= any(means[REPAIRED].get(name, 0.0) > BARS[name] * (1 - REPAIR_GAIN) for name in tops)
        is_missed |= any(run[MOVES] > MOVES_MAX for run in found[REPAIRED])
    return int(is_missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
