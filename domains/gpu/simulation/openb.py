"""Reads a trace in the format of openb (Alibaba, cluster-trace-gpu-v2023): nodes and pods as CSV. Problems name file, line and fix."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from domains.gpu.cards import CARD_MILLI, CARDS_MAX
from domains.gpu.typical_pods import PodShape, Typical, typical_of
from multisched.config.document import Problem

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
NODES_MAX, PODS_MAX = 5_000, 100_000
AMOUNT_MAX: Final = 10**12
PROBLEMS_MAX: Final = 20
"""Problems that are reported of one file."""
MODELS_SEPARATOR: Final = "|"

Row = Mapping[str, str]


class TraceNode(msgspec.Struct, frozen=True):
    """One node of the trace."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(msgspec.Struct, frozen=True):
    """The requests of one pod of the trace."""

    memory_mib: int
    shape: PodShape

    @property
    def gpu_milli(self) -> int:
        """The sum over all its cards."""
        return self.shape.milli * self.shape.count


def read_nodes(path: Path, problems: list[Problem]) -> tuple[TraceNode, ...]:
    """Reads the nodes in file order; adds problems."""
    found: dict[str, TraceNode] = {}
    for line, row in csv_rows(path, NODE_COLUMNS, NODES_MAX, problems):
        report = _Report(path, line, row, problems)
        cpu_milli, memory_mib, gpus = (report.integer(name, most) for name, most in _NODE_AMOUNTS.items())
        if not row["sn"] or row["sn"] in found:
            report.refuse("sn", f"{row['sn'][:40]!r} is empty or listed above; give each node a unique name")
        found[row["sn"]] = TraceNode(row["sn"], cpu_milli, memory_mib, gpus, row["model"])
    if not found and not problems:
        problems.append(Problem(str(path), 1, 1, "", "has no nodes; write one a line"))
    if found and not any(node.gpus for node in found.values()):
        problems.append(Problem(str(path), 1, 1, "gpu", "no node has a GPU; write the number of each node's GPUs"))
    return tuple(found.values())


def read_pods(path: Path, problems: list[Problem]) -> tuple[TracePod, ...]:
    """Reads the pods in file order; adds problems. The column `gpu_spec` may be missing."""
    found = []
    for line, row in csv_rows(path, POD_COLUMNS, PODS_MAX, problems):
        report = _Report(path, line, row, problems)
        cpu_milli, memory_mib, count, milli = (report.integer(name, most) for name, most in _POD_AMOUNTS.items())
        if bool(count) != bool(milli):
            report.refuse("gpu_milli", f"{milli} of each of {count} GPUs; write 0 of both for a pod without GPUs")
        models = tuple(sorted(set(filter(None, row.get("gpu_spec", "").split(MODELS_SEPARATOR)))))
        found.append(TracePod(memory_mib, PodShape(cpu_milli, milli, count, models)))
    if not problems and not any(pod.gpu_milli for pod in found):
        problems.append(
            Problem(str(path), 1, 1, "", "no pod requests a GPU, so no load is ever reached; add some that do")
        )
    return tuple(found)


_NODE_AMOUNTS: Final = {"cpu_milli": AMOUNT_MAX, "memory_mib": AMOUNT_MAX, "gpu": CARDS_MAX}
_POD_AMOUNTS: Final = {
    "cpu_milli": AMOUNT_MAX,
    "memory_mib": AMOUNT_MAX,
    "num_gpu": CARDS_MAX,
    "gpu_milli": CARD_MILLI,
}  # fmt: skip


def typical_pods(pods: Sequence[TracePod]) -> Typical:
    """Returns the typical pods of the trace, those without GPUs included."""
    return typical_of(Counter(pod.shape for pod in pods))


class _Report:
    """Reads the numbers of one line, and reports its problems."""

    def __init__(self, path: Path, line: int, row: Row, problems: list[Problem]) -> None:
        self._path, self._line, self._row, self._problems = path, line, row, problems

    def integer(self, column: str, most: int) -> int:
        """Returns the column's number; 0 after reporting another value."""
        text = self._row[column]
        if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most:
            return int(text)
        self.refuse(column, f"{text[:40]!r} is not a whole number from 0 to {most}")
        return 0

    def refuse(self, column: str, message: str) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(Problem(str(self._path), self._line, 1, column, message))


def csv_rows(path: Path, columns: Sequence[str], most: int, problems: list[Problem]) -> Iterator[tuple[int, Row]]:
    """Yields number and cells of each line; adds a problem for lines with too few or too many."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = list(csv.reader(file))
    except OSError as error:
        problems.append(Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}; name a readable CSV file"))
        return
    except csv.Error as error:
        problems.append(Problem(str(path), 1, 1, "", f"is not CSV: {error}"))
        return
    header = [name.strip() for name in lines[0]] if lines else []
    missing = [name for name in columns if name not in header]
    if missing:
        fix = f"begin the file with {','.join(columns)}"
        problems.append(Problem(str(path), 1, 1, "", f"no column {', '.join(missing)}; {fix}"))
        return
    if len(lines) - 1 > most:
        problems.append(Problem(str(path), most + 2, 1, "", f"beyond the {most} lines that are read; leave some out"))
        return
    for line, cells in enumerate(lines[1:], 2):
        if cells and len(cells) != len(header):
            text = f"has {len(cells)} fields, the header has {len(header)}"
            if len(problems) < PROBLEMS_MAX:
                problems.append(Problem(str(path), line, 1, "", text))
        elif cells:
            yield line, dict(zip(header, (cell.strip() for cell in cells), strict=True))
