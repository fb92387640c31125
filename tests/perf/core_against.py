"""`core_bench --against REV`: this tree and another commit decide the same pods, lot by lot in turn.

Each tree has a process of its own (`core_lots.py`). The machine may be loaded: CPU seconds are compared, of lots that
follow one another, and the median of the ratios counts. Both trees must choose the same nodes, unless decisions were
changed on purpose between the two commits; a difference is shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import orjson

from tests.perf import gpu_fractions, shapes, workload
from tests.perf.other_tree import HERE, checked_out

WARM_UP: Final = 200
STEPS: Final = ("admit", "decide", "confirm", "all")
SCRIPT: Final = Path(__file__).with_name("core_lots.py")


@dataclass(frozen=True, slots=True)
class Lot:
    """CPU seconds of one lot of pods in one tree, by step, and the hash of the nodes it chose."""

    seconds: Mapping[str, float]
    choice: str


class TreeProcess:
    """The process of one tree."""

    def __init__(self, tree: Path, inputs: Path, profile: str) -> None:
        # The same hash seed: the order of sets differs between processes otherwise, and with it the cost of lookups.
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-P", str(SCRIPT), str(inputs), profile]
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def play(self, count: int) -> Lot:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"%d\n" % count)
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise RuntimeError(f"the process of the other side ended with {self._process.wait()}")
        *seconds, choice = orjson.loads(reply)
        return Lot(dict(zip(STEPS, (*seconds, sum(seconds)), strict=True)), choice)

    def close(self) -> None:
        self._process.communicate()


def shape_inputs(name: str, nodes: int, count: int) -> tuple[Iterable[bytes], Iterable[bytes], Iterable[bytes]]:
    """Nodes, running pods and pending pods of a shape of `kube_bench`, as the API server returns them."""
    pods = shapes.BY_NAME[name].pods(count, "forecast-scheduler")
    return (
        (_with_uid(node, f"n-{index}") for index, node in enumerate(workload.work_nodes(nodes))),
        (),
        (_with_uid(pod, f"p-{index}", namespace=workload.NAMESPACE) for index, pod in enumerate(pods)),
    )


def fraction_inputs(nodes: int, count: int) -> tuple[Iterable[bytes], Iterable[bytes], Iterable[bytes]]:
    """The same of the parts of GPUs of `gpu_fractions`."""
    return (
        (_with_uid(node, f"n-{index}") for index, node in enumerate(gpu_fractions.nodes(nodes))),
        (),
        (
            _with_uid(pod, f"p-{index}", namespace=workload.NAMESPACE)
            for index, pod in enumerate(gpu_fractions.pods(count))
        ),
    )


def _with_uid(found: dict[str, Any], uid: str, **more: str) -> bytes:
    found["metadata"] |= {"uid": uid, **more}
    return orjson.dumps(found)


def compare(
    inputs: tuple[Iterable[bytes], Iterable[bytes], Iterable[bytes]],
    revision: Path,
    profile: str,
    rounds: int,
    lot: int,
) -> list[tuple[Lot, Lot]]:
    """Plays the rounds: lots of this tree and of the other, in turn; the order alternates."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="core-inputs-")))
        (folder / "inputs").write_bytes(b"\n\n".join(b"\n".join(part) for part in inputs))
        here, there = (TreeProcess(tree, folder / "inputs", profile) for tree in (HERE, revision))
        stack.callback(here.close)
        stack.callback(there.close)
        for side in (here, there):
            side.play(WARM_UP)
        return list(_rounds(here, there, rounds, lot))


def _rounds(here: TreeProcess, there: TreeProcess, rounds: int, lot: int) -> Iterator[tuple[Lot, Lot]]:
    for number in range(rounds):
        if number % 2:
            other = there.play(lot)
            yield here.play(lot), other
        else:
            own = here.play(lot)
            yield own, there.play(lot)


def report(name: str, pairs: Sequence[tuple[Lot, Lot]], lot: int) -> str:
    """One line per step: median ratio of CPU (below 1: this tree needs less), and microseconds per pod of each round."""
    lines = []
    for step in STEPS:
        ratios = [here.seconds[step] / there.seconds[step] for here, there in pairs]
        each = " ".join(f"{_us(here, step, lot)}/{_us(there, step, lot)}" for here, there in pairs)
        lines.append(f"{name:>14} {step:>8} {median(ratios):>6.3f}  {each}")
    different = sum(here.choice != there.choice for here, there in pairs)
    if different:
        lines.append(f"{name:>14} DIFFERENT NODES were chosen in {different} of {len(pairs)} rounds")
    return "\n".join(lines)


def _us(one: Lot, step: str, lot: int) -> str:
    return f"{one.seconds[step] / lot * 1e6:.0f}"


def main(revision: str, named: Mapping[str, Any], profile: str, nodes: int, rounds: int, lot: int) -> None:
    """`named`: name of a workload -> function of (nodes, pods) that makes its inputs."""
    print(f"{'pods':>14} {'step':>8} {'ratio':>6}  µs of CPU per pod, here/{revision}, each round")
    with checked_out(revision) as tree:
        for name, make in named.items():
            pairs = compare(make(nodes, rounds * lot + WARM_UP), tree, profile, rounds, lot)
            print(report(name, pairs, lot), flush=True)
