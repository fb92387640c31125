"""`make sim-coverage`: what 200 seeds execute of the program's core, by lines and branches; and why the rest is not.

`uncovered.yaml` beside this file lists what no seed reaches, with a reason for each. The command fails where less than
PERCENT_MIN is executed, where something is not and has no reason, and where a reason stands for something that is. All files of
the folders count, whether a run imports them or not, but for those that have a reason as a whole (`WHOLE`): what no run can
execute by its nature, such as threads and sockets. The figure with these is told, too.

What is not executed is named by its function and its text, so that it may move: `Class.method: line` for a line, and
`Class.method: line -> line` for a branch from the first that never went to the second. A reason for a line that fewer than
FEW_SEEDS reach is kept whether they reach it or not: what else is drawn in a run may change that. `--write` forgets what is
gone or executed, keeps the reasons of the rest, and adds what is new without a reason, which has to be written then.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from coverage import Coverage

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_name("uncovered.yaml")
PERCENT_MIN = 95.0
SEEDS = 200
FEW_SEEDS = 5

FOLDERS = (
    *(f"multisched/{name}" for name in ("state", "cycle", "queueing", "shell", "whatif", "client", "plugins")),
    "domains/gpu",
)
TRANSPORT = ("transport.py", "connection_pool.py", "answer_reader.py", "line_stream.py", "auth.py", "port_forward.py")
"""Files of `client` that do not count: they speak over real sockets, and the simulated wire stands in their place."""
WHOLE = "the whole file"
"""In place of the lines of a file that does not count."""

CANNOT_RUN = (
    r"if TYPE_CHECKING:",
    r"^\s*\.\.\.$",
    r":\s*\.\.\.$",
    r"raise AssertionError",
    r"raise CacheCorruptedError",
    r"raise QueueInvariantError",
)
"""Not counted: types, protocols, and what is executed only if the program contradicts itself, which is a failure by itself."""

Arc = tuple[int, int]
"""Two lines, one executed after the other; a negative number is a beginning or an end."""


class Gap(NamedTuple):
    """Something that no seed has executed."""

    path: str
    code: str
    """Its function, and the line or `line -> line`; or WHOLE."""


class Met(NamedTuple):
    """How many seeds have executed each arc and each line of one file."""

    arcs: Counter[Arc]
    lines: Counter[int]


def measured() -> list[str]:
    """The files that count, below ROOT."""
    found = (path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path) for path in found if str(path.parent) != "multisched/client" or path.name not in TRANSPORT)


def begin() -> Coverage:
    """Whoever starts it before importing the program sees its imports, too."""
    found = Coverage(None, branch=True, include=[f"{ROOT}/{path}" for path in measured()], config_file=False)
    for pattern in CANNOT_RUN:
        found.exclude(pattern)
    return found


# -- measuring -------------------------------------------------------------------------------------------------------


def work(out: Path, seeds: Iterable[int]) -> None:
    """One process of several: a seed after the other, each measured by itself."""
    met: dict[str, Met] = {}
    _measure(met, _begin_program, FEW_SEEDS)  # what is executed once in each process is not seldom
    for seed in seeds:
        _measure(met, partial(run, seed), 1)
    out.write_text(json.dumps({path: [[*one.arcs.items()], [*one.lines.items()]] for path, one in met.items()}))


def _measure(met: dict[str, Met], act: Callable[[], None], weight: int) -> None:
    found = begin()
    found.start()
    act()
    found.stop()
    data = found.get_data()
    for name in data.measured_files():
        arcs = set(data.arcs(name) or ())
        one = met.setdefault(str(Path(name).relative_to(ROOT)), Met(Counter(), Counter()))
        one.arcs.update(dict.fromkeys(arcs, weight))
        one.lines.update(dict.fromkeys((line for arc in arcs for line in arc if line > 0), weight))


def _begin_program() -> None:
    from tests.sim.run import quiet

    quiet()


def run(seed: int) -> None:
    """One simulation; what broke is told, and measured all the same."""
    from tests.sim.run import attempt

    _, report, died = attempt(seed)
    if report is None or report.broken:
        print(f"seed {seed} failed: {died if report is None else report.broken}", flush=True)


def gather(folder: Path, first: int, count: int, jobs: int) -> Mapping[str, Met]:
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
    met = {path: Met(Counter(), Counter()) for path in measured()}
    for file in files:
        for path, (arcs, lines) in json.loads(file.read_text()).items():
            met[path].arcs.update({(before, after): seeds for (before, after), seeds in arcs})
            met[path].lines.update(dict(lines))
    return met


def report_of(met: Mapping[str, Met], folder: Path) -> Mapping[str, Any]:
    """What is told of each file."""
    found, out = begin(), folder / "report.json"
    data = found.get_data()
    data.add_arcs({f"{ROOT}/{path}": set(one.arcs) for path, one in met.items()})
    data.touch_files([f"{ROOT}/{path}" for path in met])
    found.json_report(outfile=str(out))
    files = json.loads(out.read_text())["files"]
    return {str((Path.cwd() / path).relative_to(ROOT)): one for path, one in files.items()}


def percent_of(reports: Iterable[Mapping[str, Any]]) -> float:
    """Of all lines and branches."""
    sums = [one["summary"] for one in reports]
    there = sum(one["num_statements"] + one["num_branches"] for one in sums)
    executed = sum(one["covered_lines"] + one["covered_branches"] for one in sums)
    return float(100 * executed / max(there, 1))


# -- naming ----------------------------------------------------------------------------------------------------------


@cache
def named_lines(path: str) -> tuple[str, ...]:
    """Each line of a file, stripped, behind the function or class that it is in."""
    text = (ROOT / path).read_text()
    lines = [line.strip() for line in text.splitlines()]
    names = [""] * len(lines)
    for name, first, last in _scopes(ast.parse(text), ""):
        names[first - 1 : last] = [name] * (last - first + 1)
    return tuple(f"{name}: {line}" if name else line for name, line in zip(names, lines, strict=True))


def _scopes(tree: ast.AST, within: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, last line) of each body, inner ones after the outer."""
    for node in ast.iter_child_nodes(tree):
        name = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{node.name}".lstrip(".")
            yield name, node.body[0].lineno, node.end_lineno or node.body[0].lineno
        yield from _scopes(node, name)


def named_arc(path: str, arc: Arc) -> str:
    lines = (ROOT / path).read_text().splitlines()
    return f"{named_lines(path)[arc[0] - 1]} -> {lines[arc[1] - 1].strip() if arc[1] > 0 else 'exit'}"


def gaps_of(path: str, report: Mapping[str, Any]) -> Iterator[Gap]:
    """What one file's report says is missing. A branch from a line that is missing itself says nothing more."""
    missing = set(report["missing_lines"])
    for number in sorted(missing):
        yield Gap(path, named_lines(path)[number - 1])
    for before, after in report["missing_branches"]:
        if before not in missing and after not in missing:
            yield Gap(path, named_arc(path, (before, after)))


def seldom(path: str, one: Met, report: Mapping[str, Any]) -> Iterator[Gap]:
    """What fewer than FEW_SEEDS have executed."""
    for number in report["executed_lines"]:
        if one.lines[number] < FEW_SEEDS:
            yield Gap(path, named_lines(path)[number - 1])
    for before, after in report["executed_branches"]:
        if one.arcs[before, after] < FEW_SEEDS:
            yield Gap(path, named_arc(path, (before, after)))


# -- judging ---------------------------------------------------------------------------------------------------------


def reasons() -> dict[Gap, str]:
    """What is kept, by gap."""
    kept = yaml.safe_load(KEPT.read_text()) if KEPT.exists() else {}
    return {
        Gap(path, code): entry["reason"]
        for path, entries in kept.items()
        for entry in entries
        for code in entry["code"]
    }


def judge(met: Mapping[str, Met], folder: Path, *, is_write: bool) -> int:
    """The verdict; with `is_write` the kept file becomes what is so now."""
    every, known = report_of(met, folder), reasons()
    whole = {gap for gap in known if gap.code == WHOLE and gap.path in every}
    report = {path: one for path, one in every.items() if Gap(path, WHOLE) not in whole}
    percent = percent_of(report.values())
    gaps = {gap for path, one in report.items() for gap in gaps_of(path, one)} | whole
    few = {gap for path, one in report.items() for gap in seldom(path, met[path], one)}
    needless = sorted(gap for gap in known.keys() - gaps if gap not in few)
    if is_write:
        write({gap: known.get(gap, "") for gap in gaps | (known.keys() & few)})
        known, needless = reasons(), []
    unexplained = sorted(gap for gap in gaps if not known.get(gap))
    for path, one in sorted(report.items(), key=lambda item: item[1]["summary"]["percent_covered"]):
        print(f"{one['summary']['percent_covered']:6.1f} %  {path}")
    for gap in unexplained:
        print(f"not executed, and no reason is kept: {gap.path}: {gap.code}")
    for gap in needless:
        print(f"a reason is kept for what is executed, or is gone: {gap.path}: {gap.code}")
    print(
        f"{percent:.2f} % of lines and branches; {len(gaps)} gaps, {len(unexplained)} without a reason;"
        f" {len(needless)} reasons too many; {percent_of(every.values()):.2f} % with {len(whole)} files left out as a whole"
    )
    return 1 if unexplained or needless or percent < PERCENT_MIN else 0


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
        out, first, end, step = options.work
        work(Path(out), range(int(first), int(end), int(step)))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        met = gather(Path(folder), options.first, options.seeds, options.jobs)
        status = judge(met, Path(folder), is_write=options.write)
    print(f"{time.monotonic() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
