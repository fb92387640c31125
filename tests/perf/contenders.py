"""The schedulers that the benchmark compares, each started the way its user would, as a process of its own."""

from __future__ import annotations

import compileall
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.perf import workload
from tests.perf.bare_binder import SCHEDULER
from tests.perf.other_tree import HERE, PACKAGES
from tests.real.control_plane import ControlPlane
from tests.real.program import Program

KUBE_SCHEDULER: Final = "kube-scheduler"
MULTISCHED: Final = "multisched"
CEILING: Final = "ceiling"
BARE: Final = "bare binder"
ECHO: Final = "echo"
BARE_NODES: Final = 100
DEFAULTS: Final = Path(__file__).with_name("any_port.yaml")


@dataclass(frozen=True, slots=True)
class Contender:
    """`plain_name` is the schedulerName that plain pods carry to be its."""

    name: str
    plain_name: str
    start: Callable[[ControlPlane], Awaitable[Program]]


def kube_scheduler(qps: int) -> Contender:
    """Default profile; `qps` lifts the client limit (50 as shipped) that would otherwise be all one measures."""
    return Contender(KUBE_SCHEDULER, "default-scheduler", lambda plane: plane.start_scheduler(qps=qps, burst=qps))


def multisched(config: Path | None, tree: Path = HERE, name: str = MULTISCHED) -> Contender:
    """`multisched run` of the sources in `tree`; without a configuration it serves its three domains as shipped."""
    # As an installation from a package is: else, where Python may not write bytecode, each start would compile its sources.
    for package in PACKAGES:
        compileall.compile_dir(tree / package, quiet=1)
    environment = os.environ | {"PYTHONPATH": str(tree)}
    python = [sys.executable, "-P", "-m", "multisched"]

    async def start(plane: ControlPlane) -> Program:
        command = [*python, "run", "--kubeconfig", str(plane.kubeconfig), "--config", str(config or DEFAULTS)]
        return await Program.start(name, command, plane.folder / f"{name}.log", environment)

    return Contender(name, "forecast-scheduler", start)


def bare_binder(nodes: Sequence[str] = (), name: str = BARE) -> Contender:
    """Binds whatever comes to the next of these nodes and decides nothing: what the API server itself takes.

    Without nodes, to those of `workload.work_nodes`.
    """

    async def start(plane: ControlPlane) -> Program:
        names = nodes or [str(node["metadata"]["name"]) for node in workload.work_nodes(BARE_NODES)]
        command = [
            sys.executable,
            "-m",
            "tests.perf.bare_binder",
            plane.url,
            plane.token,
            str(plane.certificates.ca),
            *names,
        ]
        return await Program.start(name, command, plane.folder / "bare-binder.log")

    return Contender(name, SCHEDULER, start)
