"""`make mutation ARGS="--seed N --sample 100"`: draws defects that nobody chose and shows which of them the tests catch.

mutmut's operators make the mutants of the folders named in `pyproject.toml` (`tool.mutmut`). A mutant has to fail a unit or
conformance test that executes its line, else one of the simulated seeds. Survivors are printed with their differences; some
change no behaviour, which the bar leaves room for. Exit 1 below the bar, 2 if a test fails without a mutant, too.

On two cores that others use too: seven minutes to learn which test executes what, once for a state of the program; two to
make all mutants; five for a hundred of them by tests; then up to five for each survivor, by seeds (`--seeds 0`: none).
What runs in another process keeps its own code: `test_child_mains.py` runs what children do in the process of the test.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import pytest

from tests.kit.run.seeded_run import run_seed
from tests.mutation.children import Task, in_children
from tests.mutation.learn import PROFILE, TESTS, learned
from tests.mutation.mutants import ROOT, Mutant, all_places
from tests.mutation.reach import Reach
from tests.sim.run import quiet

BAR: Final = 0.92
HERE: Final = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Of pytest in this process, which has imported the program before it."""
TEST_MAX_S: Final = 120
"""Wall time after which a single test under a mutant is said to hang; the slowest takes seconds."""
TESTS_CPU_MAX_S: Final = 40.0
"""Of CPU time that a mutant's tests may have taken without it: a hot line is executed by a thousand."""
CPU_MIN_S: Final = 60.0
CPU_FACTOR: Final = 5.0
"""How much more CPU time than without it a mutant may take."""
SEED_CPU_S: Final = 30.0
"""What a simulated seed takes at most, many times over: a mutant that takes more has stopped the simulation."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of a mutant."""

    name: str
    difference: str
    test: str = ""
    """The test that failed."""
    seed: str = ""
    """What a seed said."""

    @property
    def is_caught(self) -> bool:
        return bool(self.test or self.seed)


class FirstFailure:
    """A plugin of pytest that keeps the first test to fail."""

    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid


def failed_test(tests: Sequence[str], mutant: Mutant | None) -> str:
    """The first of the tests that fails with the mutant in the program; empty if none does."""
    if mutant is not None:
        mutant.put_in()
    first = FirstFailure()
    options = ["-x", "-q", *HERE, f"--hypothesis-profile={PROFILE}", f"--timeout={TEST_MAX_S}"]
    try:
        code = pytest.main([*options, *tests], plugins=[first])
    except Exception as error:  # noqa: BLE001 - a thread that the mutant has broken may end pytest itself
        return first.test or f"pytest: {type(error).__name__}: {error}"
    if code == pytest.ExitCode.OK:
        return ""
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise LookupError(f"pytest finds none of {tests[:3]}")
    return first.test or f"pytest: {pytest.ExitCode(code).name}"


def failed_seed(seeds: int, mutant: Mutant) -> str:
    """What the first seed says that catches the mutant; empty if none does."""
    mutant.put_in()
    quiet()
    for seed in range(seeds):
        try:
            broken = run_seed(seed, stops_at_first=True).broken
        except Exception as died:  # noqa: BLE001 - a run that dies has caught the mutant too
            broken = (f"{type(died).__name__}: {died}",)
        if broken:
            return f"seed {seed}: {broken[0][:200]}"
    return ""


class Examination:
    """Puts one mutant after the other before the tests, and those that survive before the seeds."""

    def __init__(self, reach: Reach, jobs: int, seeds: int) -> None:
        self._reach, self._jobs, self._seeds = reach, jobs, seeds

    def judge(self, sample: Sequence[Mutant]) -> list[Verdict]:
        tests = [self._tests_of(mutant) for mutant in sample]
        reached = [number for number, found in enumerate(tests) if found]
        by_test = self._each(reached, lambda number: self._testing(sample[number], tests[number]), sample)
        left = [number for number in range(len(sample)) if not by_test.get(number)]
        by_seed = self._each(left if self._seeds else [], lambda number: self._simulating(sample[number]), sample)
        return [
            Verdict(mutant.name, mutant.difference, by_test.get(number, ""), by_seed.get(number, ""))
            for number, mutant in enumerate(sample)
        ]

    def innocent(self, verdicts: Sequence[Verdict]) -> str:
        """A test that convicted a mutant and fails without any too; empty if all of them pass."""
        tests = sorted({verdict.test for verdict in verdicts if "::" in verdict.test})
        if not tests:
            return ""
        task = Task(partial(failed_test, tests, None), CPU_MIN_S + CPU_FACTOR * self._reach.cpu_s(tests))
        return next(in_children([task], 1)).said

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Those that were seen to execute the change; with the time that is left, those that execute its coroutine."""
        surely = self._reach.tests_of(mutant.file, mutant.lines, TESTS_CPU_MAX_S)
        left_s = TESTS_CPU_MAX_S - self._reach.cpu_s(surely)
        return list(dict.fromkeys([*surely, *self._reach.tests_of(mutant.file, mutant.coroutine, left_s)]))

    def _testing(self, mutant: Mutant, tests: Sequence[str]) -> Task:
        return Task(partial(failed_test, tests, mutant), CPU_MIN_S + CPU_FACTOR * self._reach.cpu_s(tests))

    def _simulating(self, mutant: Mutant) -> Task:
        return Task(partial(failed_seed, self._seeds, mutant), CPU_MIN_S + SEED_CPU_S * self._seeds)

    def _each(self, numbers: Sequence[int], task: Callable[[int], Task], sample: Sequence[Mutant]) -> dict[int, str]:
        """Number of a mutant -> what caught it."""
        caught: dict[int, str] = {}
        for done, ended in enumerate(in_children([task(number) for number in numbers], self._jobs), 1):
            number = numbers[ended.number]
            caught[number] = f"ended by signal {ended.signal}" if ended.signal else ended.said
            print(f"{done}/{len(numbers)} {sample[number].name}: {caught[number] or 'survived'}", file=sys.stderr)
        return caught


def tell(verdicts: Sequence[Verdict], as_json: bool) -> bool:
    """Prints the table. Returns whether the bar is met."""
    survived = [verdict for verdict in verdicts if not verdict.is_caught]
    by_test = sum(bool(verdict.test) for verdict in verdicts)
    by_seed = len(verdicts) - by_test - len(survived)
    rate = (by_test + by_seed) / len(verdicts)
    if as_json:
        print(json.dumps({"rate": rate, "mutants": msgspec.to_builtins(verdicts)}, indent=1))
        return rate >= BAR
    for verdict in survived:
        print(f"\nSURVIVED {verdict.name}\n{verdict.difference}")
    print(f"\n{len(verdicts)} drawn: {by_test} caught by tests, {by_seed} by seeds, {len(survived)} survived", end="")
    print(f": {rate:.1%} caught, bar {BAR:.0%}")
    return rate >= BAR


def chosen(options: argparse.Namespace) -> list[Mutant]:
    places = list(all_places())
    print(f"{len(places)} mutants in all", file=sys.stderr)
    if options.mutant:
        by_name = {place.name: place for place in places}
        return [by_name[name].mutant() for name in options.mutant]
    return [place.mutant() for place in random.Random(options.seed).sample(places, options.sample)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="which sample is drawn")
    parser.add_argument("--sample", type=int, default=100, help="mutants in it")
    parser.add_argument("--mutant", action="append", help="this one instead of a sample, as a survivor is called")
    parser.add_argument(
        "--seeds", type=int, default=100, help="simulated seeds that a mutant may survive; 0 for tests alone"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.chdir(ROOT)
    examination = Examination(learned(options.jobs), options.jobs, options.seeds)
    sample = chosen(options)
    # What all tests import is imported once, before the forks.
    with contextlib.redirect_stdout(sys.stderr):
        if pytest.main(["--collect-only", "-qqq", *HERE, *TESTS]):
            raise SystemExit("pytest cannot collect the tests")
    gc.collect()
    gc.freeze()  # a child that looks for cycles does not copy what it shares with its parent
    verdicts = examination.judge(sample)
    liar = examination.innocent(verdicts)
    if liar:
        print(f"no verdict: {liar} fails without a mutant too", file=sys.stderr)
        return 2
    return 0 if tell(verdicts, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
