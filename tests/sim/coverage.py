"""`make sim-coverage`: the lines and branches of the program that the simulated seeds execute, per folder.

Fails if a folder is below its floor (`FLOORS`). A floor moves up when the figure has improved, and down only with a reason
in the commit. Files that no run can execute, such as threads and sockets, are left out (`LEFT_OUT`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coverage import Coverage

ROOT: Final = Path(__file__).parents[2]

FLOORS: Final[Mapping[str, float]] = {
    "multisched/state": 92.0,
    "multisched/cycle": 92.0,
    "multisched/queueing": 92.0,
    "multisched/shell": 90.0,
    "multisched/whatif": 64.0,
    "multisched/client": 87.0,
    "multisched/plugins": 90.0,
    "domains/gpu": 91.0,
}
"""Folder -> percent of its lines and branches, as 24 seeds execute them."""

_SOCKETS: Final = "It speaks over real sockets, which virtual time does not wait for; tests/unit/client has a server."
_THREADS: Final = "Threads and processes, which virtual time does not wait for; tests/unit/shell starts them."
LEFT_OUT: Final[Mapping[str, str]] = {
    "multisched/client/answer_reader.py": _SOCKETS,
    "multisched/client/auth.py": _SOCKETS,
    "multisched/client/connection_pool.py": _SOCKETS,
    "multisched/client/extender_client.py": _SOCKETS,
    "multisched/client/line_stream.py": _SOCKETS,
    "multisched/client/pod_metrics.py": "Only forecasts that learn read the metrics API; no usage is measured in a simulated cluster.",
    "multisched/client/port_forward.py": _SOCKETS,
    "multisched/client/prometheus.py": _SOCKETS,
    "multisched/client/tls_trust.py": "It makes TLS contexts; the simulated connection has none.",
    "multisched/client/transport.py": _SOCKETS,
    "multisched/shell/leadership/leaders.py": "Simulated users ask each process directly; no request is sent on to the leader.",
    "multisched/shell/leadership/lease_runner.py": _THREADS,
    "multisched/shell/workers/background_process.py": _THREADS,
    "multisched/shell/workers/background_processes.py": _THREADS,
    "multisched/shell/workers/background_threads.py": _THREADS,
    "multisched/shell/workers/child_pipes.py": _THREADS,
    "multisched/shell/workers/child_process.py": _THREADS,
    "multisched/shell/workers/plugin_process.py": _THREADS,
    "multisched/shell/workers/plugin_processes.py": _THREADS,
    "multisched/shell/workers/plugin_threads.py": _THREADS,
    "multisched/shell/workers/plugin_workers.py": _THREADS,
}
"""File -> why no run can execute it."""

CANNOT_RUN: Final = (
    r"if TYPE_CHECKING:",
    r"^\s*\.\.\.$",
    r":\s*\.\.\.$",
    r"raise AssertionError",
    r"raise CacheCorruptedError",
    r"raise QueueInvariantError",
)
"""Not counted: types, protocols, and what is executed only if the program contradicts itself, which is a failure anyway."""


def measured() -> list[str]:
    """Returns the files that count, relative to ROOT, whether a run imports them or not."""
    found = (str(path.relative_to(ROOT)) for folder in FLOORS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if path not in LEFT_OUT)


def coverage_in(file: Path) -> Coverage:
    """`file`: where the data goes. Imports are measured if it starts before the program is imported."""
    include = [str(ROOT / path) for path in measured()]
    found = Coverage(str(file), branch=True, include=include, config_file=False)
    for pattern in CANNOT_RUN:
        found.exclude(pattern)
    return found


def work(file: Path, seeds: Iterable[int]) -> None:
    """Plays the seeds in this process, one after the other."""
    found = coverage_in(file)
    found.start()
    from tests.sim.run import attempt, quiet

    quiet()
    for seed in seeds:
        _, report, died = attempt(seed)
        if report is None or report.broken:
            print(f"seed {seed} failed: {died if report is None else report.broken}", flush=True)
    found.stop()
    found.save()


def files_of(folder: Path, seeds: Sequence[int], jobs: int) -> Mapping[str, Any]:
    """Plays the seeds in several processes. Returns coverage's JSON report by file, relative to ROOT."""
    parts = [folder / f"part-{job}" for job in range(jobs)]
    shares = [",".join(map(str, seeds[job::jobs])) for job in range(jobs)]
    commands = [
        [sys.executable, "-m", __spec__.name, "--work", str(part), share]
        for part, share in zip(parts, shares, strict=True)
    ]
    workers = [subprocess.Popen(command) for command in commands]
    codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit("a worker failed")
    found, out = coverage_in(folder / "all"), folder / "report.json"
    found.combine(list(map(str, parts)))
    found.get_data().touch_files([str(ROOT / path) for path in measured()])
    found.json_report(outfile=str(out))
    files = json.loads(out.read_text())["files"]
    return {str((Path.cwd() / path).relative_to(ROOT)): one["summary"] for path, one in files.items()}


def percent_of(summaries: Iterable[Mapping[str, Any]]) -> float:
    """Returns the percent of all lines and branches."""
    known = list(summaries)
    there = sum(one["num_statements"] + one["num_branches"] for one in known)
    executed = sum(one["covered_lines"] + one["covered_branches"] for one in known)
    return float(100 * executed / max(there, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        file, seeds = options.work
        work(Path(file), map(int, seeds.split(",")))
        return 0
    from tests.sim.run import played  # not at the top: a worker measures the program's imports, too

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(Path(folder), played(options.seeds), options.jobs)
    for path, one in sorted(files.items(), key=lambda item: float(item[1]["percent_covered"])):
        print(f"{one['percent_covered']:6.1f} %  {path}")
    is_low = False
    for name, floor in FLOORS.items():
        percent = percent_of(one for path, one in files.items() if path.startswith(f"{name}/"))
        print(f"{percent:6.1f} %  {name}, floor {floor}{'' if percent >= floor else ': BELOW'}")
        is_low |= percent < floor
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if is_low else 0


if __name__ == "__main__":
    sys.exit(main())
