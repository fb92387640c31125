"""`python -m tests.mutation.seeds --seeds 100`: simulates until a seed fails; exit 1 with what it said, 0 if none does.

Runs in a copy of the repository that holds a mutant, so that a mutant which no longer starts counts as caught too.
"""

from __future__ import annotations

import argparse
import sys

from multisched.testing.scenario import run_seed
from tests.sim.run import quiet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True)
    options = parser.parse_args()
    quiet()
    for seed in range(options.seeds):
        try:
            broken = run_seed(seed, is_hasty=True).broken
        except Exception as died:  # noqa: BLE001 - a run that dies has caught the mutant too
            broken = (f"{type(died).__name__}: {died}",)
        if broken:
            print(f"seed {seed}: {broken[0][:160]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
