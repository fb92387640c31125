"""`make mutation ARGS="--seed N --sample 100"`: draws defects that nobody chose and shows which of them the tests catch.

mutmut makes the mutants of the folders named in `pyproject.toml` (`tool.mutmut`), finds out which unit and conformance tests
call which function, and runs those against each mutant drawn. What survives them runs through simulated seeds. A survivor is
told with its difference; one that changes no behaviour stands in `equivalents.yaml` with the reason. Exit 1 below the bar.

The first run on a changed tree takes twenty minutes more: mutmut runs all tests to learn what they call.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import msgspec
import yaml

from tests.mutation.tree import ROOT, fresh_copy

BAR: Final = 0.92
SEEDS_TIMEOUT_S: Final = 1800.0
"""A mutant under which the simulation has not come to an end by then has stopped it: caught."""

PROBE: Final = "multisched.state.change_log.*"
"""A few mutants, with which mutmut makes all of them and collects what it needs."""

EQUIVALENTS: Final = Path(__file__).with_name("equivalents.yaml")
_KILLED: Final = frozenset({"killed", "timeout", "suspicious", "segfault"})


class Mutant(msgspec.Struct, frozen=True):
    """One mutant that was drawn, and what became of it."""

    name: str
    caught_by: str
    """`tests`, or what a seed said; empty for one that survived."""
    difference: str = ""

    @property
    def changed(self) -> tuple[str, str]:
        """The lines that went and those that came, by which `equivalents.yaml` knows a mutant: numbers shift."""
        lines = self.difference.splitlines()
        went = " ".join(line[1:].strip() for line in lines if re.match(r"-(?!--)", line))
        came = " ".join(line[1:].strip() for line in lines if re.match(r"\+(?!\+\+)", line))
        return went, came


def mutmut(folder: Path, *args: str) -> str:
    """Runs mutmut there and returns what it printed; its progress goes to `mutmut.log`."""
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [str(Path(sys.executable).with_name("mutmut")), *args]
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = ended.stdout.decode(errors="replace")
    (folder / "mutmut.log").write_text(text)
    if ended.returncode:
        raise SystemExit(f"mutmut {args[0]} failed; {folder / 'mutmut.log'} ends with:\n{text[-2000:]}")
    return text


def verdicts(folder: Path) -> dict[str, str]:
    """Mutant -> mutmut's word on it."""
    found = re.findall(r"^\s+(\S+__mutmut_\d+): (.+)$", mutmut(folder, "results", "--all", "true"), re.MULTILINE)
    return dict(found)


class SeedHunter:
    """Runs the simulation with one mutant in the program; as many copies of the repository as there are jobs."""

    def __init__(self, jobs: int, seeds: int) -> None:
        self._seeds = seeds
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            self._copies.put(fresh_copy(f"seeds-{number}")[0])

    def hunt(self, difference: str) -> str:
        """What the first seed that catches it says; empty if none does."""
        folder = self._copies.get()
        try:
            path = _file_of(difference)
            (folder / path).write_text(_patched((ROOT / path).read_text(), difference))
            return self._simulate(folder)
        finally:
            (folder / path).write_bytes((ROOT / path).read_bytes())
            self._copies.put(folder)

    def _simulate(self, folder: Path) -> str:
        command = [sys.executable, "-m", "tests.mutation.seeds", "--seeds", str(self._seeds)]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, check=False, timeout=SEEDS_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return "the simulation did not end"
        if not ended.returncode:
            return ""
        said = (ended.stdout or ended.stderr).decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit {ended.returncode}"


def _file_of(difference: str) -> Path:
    found = re.search(r"^--- (\S+\.py)", difference, re.MULTILINE)
    if found is None:
        raise SystemExit(f"mutmut shows no file in:\n{difference}")
    return Path(found.group(1))


def _patched(source: str, difference: str) -> str:
    """The file with the one function replaced: mutmut numbers the lines from the function's first one."""
    hunk = [line for line in difference.splitlines() if line[:1] in " -+" and not re.match(r"---|\+\+\+", line)]
    before = "\n".join(line[1:] for line in hunk if line[0] != "+")
    after = "\n".join(line[1:] for line in hunk if line[0] != "-")
    if source.count(before) != 1:
        raise SystemExit(f"a mutant's place is not found once in its file:\n{difference}")
    return source.replace(before, after)


def named_equivalents() -> dict[tuple[str, str, str], str]:
    """(function, what went, what came) -> why nobody could tell the difference."""
    listed: list[Mapping[str, Any]] = yaml.safe_load(EQUIVALENTS.read_text()) or []
    return {(one["function"], one["was"], one["now"]): one["why"] for one in listed}


def function_of(name: str) -> str:
    """`multisched.state.commit.commit` of `multisched.state.commit.x_commit__mutmut_3`."""
    module, _, mangled = name.rpartition(".")
    bare = re.sub(r"__mutmut_\d+$", "", mangled)
    if bare.startswith("xǁ"):
        return f"{module}.{bare[2:].replace('ǁ', '.')}"
    return f"{module}.{bare.removeprefix('x_')}"


def drawn(names: Iterable[str], seed: int, count: int) -> list[str]:
    return random.Random(seed).sample(sorted(names), count)


def examine(folder: Path, sample: Sequence[str], jobs: int, seeds: int) -> list[Mutant]:
    mutmut(folder, "run", "--max-children", str(jobs), *sample)
    words = verdicts(folder)
    hunter = SeedHunter(jobs, seeds)

    def judged(name: str) -> Mutant:
        if words[name] in _KILLED:
            return Mutant(name, "tests")
        difference = mutmut_show(folder, name)
        return Mutant(name, hunter.hunt(difference), difference)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(judged, sample))


def mutmut_show(folder: Path, name: str) -> str:
    command = [str(Path(sys.executable).with_name("mutmut")), "show", name]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout.decode()


def tell(mutants: Sequence[Mutant], as_json: bool) -> bool:
    """Prints the table; True if the bar is met and every survivor is named."""
    equivalents = named_equivalents()
    survived = [one for one in mutants if not one.caught_by]
    unnamed = [one for one in survived if (function_of(one.name), *one.changed) not in equivalents]
    by_tests = sum(one.caught_by == "tests" for one in mutants)
    by_seeds = len(mutants) - by_tests - len(survived)
    rate = (by_tests + by_seeds) / len(mutants)
    if as_json:
        print(json.dumps({"rate": rate, "mutants": msgspec.to_builtins(mutants)}, indent=1))
    for one in unnamed:
        print(f"\nSURVIVED {function_of(one.name)}\n{one.difference.strip()}")
    print(f"\n{len(mutants)} drawn: {by_tests} caught by tests, {by_seeds} by seeds, {len(survived)} survived", end="")
    print(f" ({len(survived) - len(unnamed)} of them named as equivalent): {rate:.1%} caught, bar {BAR:.0%}")
    return rate >= BAR and not unnamed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="which sample is drawn")
    parser.add_argument("--sample", type=int, default=100, help="mutants in it")
    parser.add_argument("--seeds", type=int, default=100, help="simulated seeds a mutant may survive")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder, is_new = fresh_copy("tree")
    if is_new:
        print("a changed tree: mutmut learns which tests call what, twenty minutes", file=sys.stderr)
        mutmut(folder, "run", "--max-children", str(options.jobs), PROBE)
    sample = drawn(verdicts(folder), options.seed, options.sample)
    return 0 if tell(examine(folder, sample, options.jobs, options.seeds), options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
