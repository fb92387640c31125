"""`make sim-coverage`: what 200 seeds execute of the program's core, by lines and branches; and why the rest is not.

`uncovered.yaml` beside this file lists what no seed reaches, with a reason for each. The command fails where less than
PERCENT_MIN is executed, where something is not and has no reason, and where a reason stands for something that is. What is not
executed is named by its text, so that a line may move: a line by itself, a branch as `line -> line it never went to`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from coverage import Coverage

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_name("uncovered.yaml")
PERCENT_MIN = 95.0
SEEDS = 200

FOLDERS = ("state", "cycle", "queueing", "shell", "client", "plugins")
SOCKETS = (
    "transport.py",
    "connection_pool.py",
    "answer_reader.py",
    "line_stream.py",
    "auth.py",
    "prometheus.py",
    "extender_client.py",
    "pod_metrics.py",
)
"""Files of `client` that speak over real sockets: the simulated wire stands in their place."""
THREADS = (
    "plugin_process.py",
    "plugin_processes.py",
    "plugin_threads.py",
    "plugin_workers.py",
    "duty_process.py",
    "duty_processes.py",
    "duty_threads.py",
    "lease_runner.py",
)
"""Files of `shell` that start threads and processes, for which virtual time does not wait: `VirtualThreads` and `VirtualWorkers`
stand there, and leases are renewed on the loop (`LeasesOnLoop`, the ten lines of `lease_runner` that are no thread)."""

CANNOT_RUN = (
    r"if TYPE_CHECKING:",
    r"^\s*\.\.\.$",
    r":\s*\.\.\.$",
    r"raise AssertionError",
    r"raise CacheCorruptedError",
    r"raise QueueInvariantError",
)
"""Not counted: types, protocols, and what is executed only if the program contradicts itself, which is a failure by itself."""


class Gap(NamedTuple):
    """Something that no seed has executed."""

    path: str
    code: str
    """The line, or `line -> line`."""


def measured() -> list[str]:
    """Patterns of the files that count."""
    return [f"{ROOT}/multisched/{folder}/*" for folder in FOLDERS] + [f"{ROOT}/domains/gpu/*"]


def begin(data: Path) -> Coverage:
    """Whoever calls this before importing the program sees its imports, too."""
    omitted = [f"{ROOT}/multisched/client/{name}" for name in SOCKETS]
    omitted += [f"{ROOT}/multisched/shell/{name}" for name in THREADS]
    found = Coverage(str(data), branch=True, include=measured(), omit=omitted, config_file=False, messages=False)
    for pattern in CANNOT_RUN:
        found.exclude(pattern)
    return found


def work(data: Path, seeds: range) -> None:
    """One process of several."""
    found = begin(data)
    found.start()
    from tests.sim.run import attempt, quiet

    quiet()
    for seed in seeds:
        _, report, died = attempt(seed)
        if report is None or report.broken:
            print(f"seed {seed} failed: {died or report.broken if report is not None else died}", flush=True)
    found.stop()
    found.save()


def gather(folder: Path, first: int, count: int, jobs: int) -> Coverage:
    """Runs the seeds in processes of their own."""
    files = [folder / f"part-{job}" for job in range(jobs)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--work", str(file), str(first + job), str(first + count), str(jobs)]
        )
        for job, file in enumerate(files)
    ]
    codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit("a worker failed")
    found = begin(folder / "all")
    found.combine([str(file) for file in files], keep=True)
    return found


def gaps_of(path: str, report: Mapping[str, Any]) -> Iterator[Gap]:
    """What one file's report says is missing. A branch from a line that is missing itself says nothing more."""
    lines = (ROOT / path).read_text().splitlines()
    missing = set(report["missing_lines"])
    for number in sorted(missing):
        yield Gap(path, lines[number - 1].strip())
    for before, after in report["missing_branches"]:
        if before not in missing and after not in missing:
            target = lines[after - 1].strip() if after > 0 else "exit"
            yield Gap(path, f"{lines[before - 1].strip()} -> {target}")


def reasons() -> dict[Gap, str]:
    """What is kept, by gap."""
    kept = yaml.safe_load(KEPT.read_text()) if KEPT.exists() else {}
    return {
        Gap(path, code): entry["reason"]
        for path, entries in kept.items()
        for entry in entries
        for code in entry["code"]
    }


def tell(found: Coverage, folder: Path, *, is_write: bool) -> int:
    """The verdict; with `is_write`, gaps that are new are added to the kept file, to be given a reason."""
    import json

    out = folder / "report.json"
    percent = found.json_report(outfile=str(out), ignore_errors=True)
    report = json.loads(out.read_text())["files"]
    gaps = {gap for path, one in report.items() for gap in gaps_of(path, one)}
    known = reasons()
    unexplained, stale = sorted(gaps - known.keys()), sorted(known.keys() - gaps)
    unexplained += sorted(gap for gap in gaps & known.keys() if not known[gap])
    for path, one in sorted(report.items(), key=lambda item: item[1]["summary"]["percent_covered"]):
        print(f"{one['summary']['percent_covered']:6.1f} %  {path}")
    if is_write:
        write({gap: known.get(gap, "") for gap in gaps})
    for gap in unexplained:
        print(f"not executed, and no reason is kept: {gap.path}: {gap.code}")
    for gap in stale:
        print(f"executed after all: {gap.path}: {gap.code}")
    print(
        f"{percent:.2f} % of lines and branches; {len(gaps)} gaps, {len(unexplained)} without a reason, {len(stale)} stale"
    )
    return 1 if unexplained or stale or percent < PERCENT_MIN else 0


def write(kept: Mapping[Gap, str]) -> None:
    """By file, then by reason."""
    document: dict[str, list[dict[str, Any]]] = {}
    for path in sorted({gap.path for gap in kept}):
        by_reason: dict[str, list[str]] = {}
        for gap in sorted(kept):
            if gap.path == path:
                by_reason.setdefault(kept[gap], []).append(gap.code)
        document[path] = [{"reason": reason, "code": code} for reason, code in sorted(by_reason.items())]
    KEPT.write_text(yaml.safe_dump(document, sort_keys=False, width=130, allow_unicode=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep what is not executed in uncovered.yaml")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        data, first, end, step = options.work
        work(Path(data), range(int(first), int(end), int(step)))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = gather(Path(folder), options.first, options.seeds, options.jobs)
        status = tell(found, Path(folder), is_write=options.write)
    print(f"{time.monotonic() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
