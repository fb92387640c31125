"""A pytest plugin that writes down which test executes which lines: `-p tests.mutation.reach`, into the folder MUTATION_REACH.

A test that does not pass is left out: it could not tell a mutant from the program. Each process of xdist writes a file;
`Reach.read` puts them together.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Container, Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

import coverage
import msgspec
import pytest
from mutmut.configuration import config as mutmut_config

FOLDER_VARIABLE: Final = "MUTATION_REACH"


class Part(msgspec.Struct, frozen=True):
    """What one process of pytest has learned."""

    cpu_s: dict[str, float]
    """Test -> CPU time of its call, setup and teardown. Only tests that passed."""
    lines: dict[str, dict[int, list[int]]]
    """File -> line -> tests that executed it, as places in `cpu_s`."""


class Reach:
    """Which tests reach a line. What was learned later about a file of tests is what counts."""

    def __init__(self, runs: Sequence[Sequence[Part]], files: Container[str]) -> None:
        """`files`: those that are still there."""
        self._parts = [(part, list(part.cpu_s)) for run in runs for part in run]
        self._cpu_s: dict[str, float] = {}
        for run in runs:
            anew = {_file_of(test) for part in run for test in part.cpu_s}
            self._cpu_s = {test: seconds for test, seconds in self._cpu_s.items() if _file_of(test) not in anew}
            for part in run:
                self._cpu_s |= {test: seconds for test, seconds in part.cpu_s.items() if _file_of(test) in files}

    @classmethod
    def read(cls, folders: Sequence[Path], files: Container[str]) -> Reach:
        """One folder for each run of the plugin, the oldest first."""
        decoder = msgspec.json.Decoder(Part)
        return cls([[decoder.decode(file.read_bytes()) for file in folder.glob("*.json")] for folder in folders], files)

    def tests_of(self, file: str, lines: range, cpu_max_s: float) -> list[str]:
        """The cheapest first, as many as take so long together; one at least.

        Each file of tests gives one in turn: the many cheap ones of a few files leave room for the others'.
        """
        found = {
            tests[place]
            for part, tests in self._parts
            for line in lines
            for place in part.lines.get(file, {}).get(line, ())
        }
        cheapest = sorted(found & self._cpu_s.keys(), key=lambda test: (self._cpu_s[test], test))
        given = Counter[str]()
        turns: dict[str, int] = {}
        for test in cheapest:
            turns[test] = given[_file_of(test)]
            given[_file_of(test)] += 1
        in_turns = sorted(cheapest, key=turns.__getitem__)
        sums = itertools.accumulate(self._cpu_s[test] for test in in_turns)
        chosen = {
            test for at, (test, sum_s) in enumerate(zip(in_turns, sums, strict=True)) if sum_s <= cpu_max_s or not at
        }
        return [test for test in cheapest if test in chosen]

    def cpu_s(self, tests: Sequence[str]) -> float:
        return sum(self._cpu_s[test] for test in tests)


def _file_of(test: str) -> str:
    return test.partition("::")[0]


class Recorder:
    """Traces the program's lines, test by test."""

    def __init__(self, folder: Path, process: str) -> None:
        self._target = folder / f"{process}.json"
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=list(mutmut_config().only_mutate))
        self._cpu_s: dict[str, float] = {}
        self._failed: set[str] = set()

    def start(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        began = time.process_time()
        done = yield
        self._cpu_s[item.nodeid] = time.process_time() - began
        self._coverage.switch_context("")
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        if not self._cpu_s:
            return
        passed = {test: seconds for test, seconds in self._cpu_s.items() if test not in self._failed}
        part = Part(passed, _lines(self._coverage.get_data(), {test: place for place, test in enumerate(passed)}))
        self._target.write_bytes(msgspec.json.encode(part))


def _lines(data: coverage.CoverageData, places: Mapping[str, int]) -> dict[str, dict[int, list[int]]]:
    """Without what runs while modules are imported, and without tests that failed."""
    found: dict[str, dict[int, list[int]]] = {}
    for file in data.measured_files():
        lines = data.contexts_by_lineno(file).items()
        found[str(Path(file).relative_to(Path.cwd()))] = {
            line: [places[test] for test in tests if test in places] for line, tests in lines
        }
    return found


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ[FOLDER_VARIABLE])
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder, os.environ.get("PYTEST_XDIST_WORKER", "main"))
    config.pluginmanager.register(recorder, "mutation-reach")
    recorder.start()
