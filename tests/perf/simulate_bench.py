"""How long `multisched simulate` takes: `python -m tests.perf.simulate_bench [--vms 500] [--days 30] [--orders 20]`.

VMs are services of one replica, each with use of its own in two dimensions at 15 minutes (day and week cycles, noise), on as many
nodes as leave a third free. Days but the last ten are known, the last ten are judged; every order is run under each policy.
Exits 1 when the whole command takes longer than the limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

LIMIT_S = 180.0
STEPS_PER_DAY = 96
DIMENSIONS = ("cpu", "log")
JUDGED_DAYS = 10
VMS_PER_NODE = 12.5

SCENARIO = """\
apiVersion: multisched.io/v1alpha1
kind: Scenario
name: bench
usage: {{files: [usage.csv]}}
services: {{file: services.csv}}
nodes:
- {{name: node, count: {nodes}, allocatable: {{cpu: "32", memory: 128Gi}}, capacity: {{cpu: 16, log: 12}}}}
known: {{until: day {known}}}
judged: {{from: day {judged}, to: day {days}}}
policies: [{policies}]
seeds: {orders}
"""


def write(folder: Path, vms: int, days: int, orders: int, policies: str) -> Path:
    """The scenario with its files."""
    rng = np.random.default_rng(7)
    steps = np.arange(days * STEPS_PER_DAY)
    begin = datetime(2026, 1, 5)
    times = [(begin + timedelta(minutes=15 * int(step))).isoformat() for step in steps]
    with (folder / "usage.csv").open("w") as usage, (folder / "services.csv").open("w") as services:
        usage.write("timestamp,service,dimension,value\n")
        services.write("service,replicas,cpu_request,memory_request_gib\n")
        for vm in range(vms):
            services.write(f"vm-{vm},1,{rng.choice([1, 2, 4])},{rng.choice([2, 4, 8])}\n")
            day = 1 + np.cos(2 * np.pi * (steps / STEPS_PER_DAY - rng.choice([0.2, 0.55, 0.85])))
            for dimension in DIMENSIONS:
                noise = 1 + 0.1 * rng.standard_normal(len(steps))
                values = np.maximum(rng.lognormal(-1, 0.7) * (0.1 + day) * noise, 0).round(4).tolist()
                usage.writelines(f"{t},vm-{vm},{dimension},{v}\n" for t, v in zip(times, values, strict=True))
    known = days - JUDGED_DAYS
    text = SCENARIO.format(
        nodes=round(vms / VMS_PER_NODE), known=known, judged=known + 1, days=days, orders=orders, policies=policies
    )
    (folder / "scenario.yaml").write_text(text)
    return folder / "scenario.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vms", type=int, default=500)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--policies", default="least-allocated, realtime, peak-forecast")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scenario = write(Path(folder), options.vms, options.days, options.orders, options.policies)
        began = time.monotonic()
        command = [sys.executable, "-m", "multisched", "simulate", str(scenario), "--jobs", str(options.jobs)]
        code = subprocess.run(command, check=False, timeout=4 * LIMIT_S).returncode
        seconds = time.monotonic() - began
    print(f"{options.vms} VMs, {options.days} days, {options.orders} orders of {options.policies}: {seconds:.1f} s")
    return code or int(seconds > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
