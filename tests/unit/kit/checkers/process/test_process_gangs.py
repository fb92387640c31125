"""Violations of a process that holds capacity for a part of a gang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import msgspec
import orjson
import pytest

from multisched.testing.builders import pod_document
from multisched.testing.sim_loop import SimLoop, simulate
from multisched.verify.gang_objects import GROUP_LABEL
from multisched.verify.gangs import GangJudge
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.process.gangs import ProcessGangs
from tests.kit.checkers.process.watches import WatchChecker
from tests.kit.world.store_view import Reader


def member(name: str, node: str = "", *, version: int = 1, phase: str = "Pending") -> msgspec.Raw:
    metadata = {"resourceVersion": str(version)}
    pod = pod_document(name, node=node, labels={GROUP_LABEL: "g"}, metadata=metadata, status={"phase": phase})
    return msgspec.Raw(orjson.dumps(pod))


class Process:
    """The deliveries and assumptions of one process, for a gang with a minimum of two."""

    def __init__(self) -> None:
        self.delivered = DeliveredState(Reader(), lambda domain: lambda node: True, {}, gangs=GangJudge())
        assert self.delivered.gangs is not None
        self.delivered.gangs.add("PodGroup", {"metadata": {"name": "g"}, "spec": {"minMember": 2}})
        self.gangs = ProcessGangs(self.delivered, lambda key: False)
        self.faults: list[str] = []
        self.pods, self.finished = _ingest(), _ingest()
        program: Any = SimpleNamespace(pods=self.pods, nodes=_ingest(), ended_pods=self.finished, audit=None)
        program.audit = SimpleNamespace(statistics=lambda: SimpleNamespace(lost=0))
        policies: Any = SimpleNamespace(on_pod_delivered=_nothing)
        WatchChecker(program, self.delivered, policies, "process-1", self.faults.append, _nothing)

    def start(self) -> None:
        """Delivers two running members, and the deletion of one of them."""
        for name in ("lost", "done"):
            self.pods.upsert(f"default/{name}", member(name, "n1"))
        self.pods.delete("default/lost", None)

    def succeed(self) -> None:
        self.finished.upsert("default/done", member("done", "n1", version=2, phase="Succeeded"))

    async def assume_replacement(self) -> list[str]:
        """Assumes the replacement of the deleted member. Returns the violations."""
        self.pods.upsert("default/new", member("new"))
        self.delivered.assumed("uid-new", "n1")
        self.gangs.assumed(self.delivered.pods["uid-new"])
        await asyncio.sleep(1.0)
        return self.faults + self.gangs.broken


def _ingest() -> Any:
    return SimpleNamespace(upsert=_nothing, delete=_nothing, drop=_nothing)


def _nothing(*_: object) -> None:
    """Does nothing."""


IN_VAIN = ["I13: room is held for 1 of 2 members of gang default/g, which does not run"]


@pytest.mark.parametrize(
    ("steps", "faults"),
    [
        (["gone", "succeeded"], []),
        (["succeeded", "gone"], []),
        (["succeeded", "late line", "gone"], []),
        (["gone"], IN_VAIN),
        (["gone", "succeeded", "deleted"], IN_VAIN),
        (["succeeded", "deleted", "gone"], IN_VAIN),
    ],
    ids=", ".join,
)
def test_succeeded_member_counts_for_its_gang_until_its_deletion_is_delivered(
    steps: list[str], faults: list[str]
) -> None:
    process = Process()
    process.start()
    what: dict[str, Callable[[], object]] = {
        "gone": lambda: process.pods.delete("default/done", None),
        "late line": lambda: process.pods.upsert("default/done", member("done", "n1", version=2, phase="Running")),
        "succeeded": process.succeed,
        "deleted": lambda: process.finished.delete("default/done", None),
    }
    for step in steps:
        what[step]()
    with closing(SimLoop(seed=1)) as loop:
        assert simulate(process.assume_replacement(), loop) == faults
