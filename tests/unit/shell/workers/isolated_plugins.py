"""Plugins for the tests of isolation, by import path: a process builds them from `package.module:Class`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Pod

FULL = "node(s) have no room by this plugin's own count"


class Roomy:
    """Refuses rows with `limit` pods or more, prefers those with most CPU; does what a pod's name tells it to do."""

    name = "Roomy"
    depends_on = Dependency.ROW
    traits = Traits(normalizer=ByLargest())
    released = threading.Event()
    """Ends the hangs of a test in this process."""
    meeting = threading.Barrier(9)
    """Where eight calls wait for the test."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        """`hangWhile`: a path; about the pod `victim` it hangs as long as there is such a file.

        `hangs`: a path; the file comes into being when the pod `hang` is asked about.
        """
        self._limit = int(args.get("limit", 2))
        self._hang_while = Path(args.get("hangWhile", ""))
        self._hangs = args.get("hangs")
        self.reasons = ReasonTable(self.name)
        self._full = self.reasons.code(Code.UNSCHEDULABLE, FULL)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        match pod.name:
            case "skip":
                return PreFilterResult(SKIP)
            case "refuse":
                return PreFilterResult(Status.unresolvable("not today"))
            case "narrow":
                return PreFilterResult(SUCCESS, frozenset({"n1"}))
        return PreFilterResult()

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        if pod.name == "hang" and self._hangs:
            Path(self._hangs).touch()
        misbehave(pod.name)
        while pod.name == "victim" and self._hang_while.is_file():
            time.sleep(0.005)
        if pod.name == "wrong-shape":
            return np.zeros(len(rows) + 1, np.uint8)
        if pod.name == "wrong-type":
            return np.zeros(len(rows), np.float64)
        return np.where(cycle.nodes.pod_count[rows] >= self._limit, self._full, 0).astype(np.uint8)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        return SKIP if pod.name == "unscored" else SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        if pod.name == "raise-in-score":
            raise ValueError("no score today")
        return cycle.nodes.allocatable("cpu")[rows]


def misbehave(how: str) -> None:
    if how.startswith("hang"):
        Roomy.released.wait(600)
    elif how == "raise":
        raise RuntimeError("boom")
    elif how == "exit":
        sys.exit(3)
    elif how == "die":
        os._exit(7)
    elif how == "print":
        print("a plugin that prints", flush=True)
    elif how == "meet":
        Roomy.meeting.wait(60)


class NodesOnly:
    """Depends on node objects, and reads pods all the same when asked for `sneaky`."""

    name = "NodesOnly"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        if pod.name == "sneaky":
            return (cycle.nodes.pod_count[rows] > 0).astype(np.uint8)
        return np.zeros(len(rows), np.uint8)


class ScoresOnly:
    """Refuses nobody; does what a pod's name tells it to do."""

    name = "ScoresOnly"
    depends_on = Dependency.NODE

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        misbehave(pod.name)
        return np.zeros(len(rows), np.int64)


class Unbuildable:
    """Builds in the process that configures it, and nowhere else."""

    name = "Unbuildable"
    depends_on = Dependency.NODE

    def __init__(self) -> None:
        if "pytest" not in sys.modules:
            raise OSError("no licence on this machine")
        self.reasons = ReasonTable(self.name)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        return np.zeros(len(rows), np.uint8)


class SlowToBuild(NodesOnly):
    """Its process never gets ready; the one that configures it does at once."""

    name = "SlowToBuild"

    def __init__(self) -> None:
        if "pytest" not in sys.modules:
            time.sleep(600)
        super().__init__()
