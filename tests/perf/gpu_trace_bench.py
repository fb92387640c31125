"""CPU time of a decision on a GPU trace: `python -m tests.perf.gpu_trace_bench SCENARIO [--policies random fragmentation] [--check]`.

Plays one seed of a scenario with `gpuTrace` (domains/gpu/README.md) on the core, for example openb at 130 % load. Times queue, cycle and
commit. Pods are decoded before. The best quarter of the lots counts, and the mean is given, too: what else the machine does only adds.
`--check` exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from domains.gpu.simulation.contribution import TraceSimulation
from domains.gpu.simulation.trace_run import arrived_pods, core_of
from multisched.shell.garbage import disable_gc
from multisched.simulate.scenario import Policy
from multisched.simulate.simulation_file import load_simulation

BARS_US: Final = {"fragmentation": 350.0, "random": 200.0}
LOT: Final = 250


def lots_us(simulation: TraceSimulation, policy: Policy, seed: int) -> list[float]:
    """Returns the CPU time of a decision in each lot, in order."""
    rng = np.random.default_rng(seed)
    core = core_of(simulation.trace, policy, seed, rng)
    pods = [pod for _, pod in arrived_pods(simulation.trace, policy, core, rng)]
    disable_gc()
    found = []
    for start in range(0, len(pods), LOT):
        lot = pods[start : start + LOT]
        began = time.process_time()
        for pod in lot:
            core.place(pod)
        found.append((time.process_time() - began) / len(lot) * 1e6)
    assert not core.failures(), core.failures()
    return found


def main() -> int:
    """Prints a line per policy; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--policies", nargs="+", default=list(BARS_US))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    simulation = load_simulation(options.scenario)
    assert isinstance(simulation, TraceSimulation), "the scenario has no gpuTrace"
    is_missed = False
    print(f"{'policy':>14} {'decisions':>10} {'us, mean':>9} {'us, best quarter':>17} {'bar':>5}")
    for policy in simulation.policies:
        if policy.name not in options.policies:
            continue
        lots = lots_us(simulation, policy, options.seed)
        best, bar = float(np.mean(sorted(lots)[: len(lots) // 4])), BARS_US.get(policy.name)
        is_missed |= bar is not None and best > bar
        print(
            f"{policy.name:>14} {LOT * len(lots):>10} {np.mean(lots):>9.0f} {best:>17.0f} {bar or 0:>5.0f}", flush=True
        )
    return 1 if is_missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
