"""Violations of a queue that does not retry a gang, and of barriers that wait for undone members."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from multisched.model.gang import ACK_MIN, ACK_NAME
from multisched.model.objects import Pod
from multisched.plugins.gang.gang_scheduling import GangScheduling
from multisched.queueing.entry import Failure
from multisched.queueing.gang_entries import GangEntries
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.readmission import Readmission
from multisched.shell.binding.gang_barrier import GangBarriers
from multisched.state.gang_roster import GangRoster
from multisched.testing.builders import make_context
from tests.kit.checkers.process.gang_barriers import BarrierChecker
from tests.kit.checkers.process.gang_waits import GangWaits
from tests.unit.queueing.builders import BySortOfPriority

REFUSED = Failure(rejectors=frozenset({GangScheduling.name}), message="gang team/g: 1 of 2")


class Domain:
    """A queue with its checker, and a roster as ingest and cache would keep it."""

    def __init__(self) -> None:
        self.roster = GangRoster()
        gang = GangScheduling(replace(make_context(), gangs=self.roster))
        self.queue = PodQueue(BySortOfPriority(), [gang], [gang], on_error=_raise, gangs=self.roster)
        self.roster.on_change = self.queue.gang_changed
        self.faults: list[str] = []
        plugins: Any = SimpleNamespace(pre_enqueue=[gang])
        worker: Any = SimpleNamespace(queue=self.queue, plugins=plugins, is_leading=True)
        GangWaits(worker, self.roster, self.faults.append, lambda: False)

    def refuse(self) -> None:
        """Refuses both members of a gang of two, which are then parked."""
        for name in ("a", "b"):
            self.add(name)
        self.queue.regroup(0.0)
        assert self.queue.pop(0.0) is not None
        for name in ("a", "b"):
            self.queue.fail(f"uid-{name}", REFUSED, 0.0)

    def add(self, name: str) -> None:
        pod = Pod("team", name, f"uid-{name}", 1, labels={ACK_NAME: "g", ACK_MIN: "2"})
        self.roster.set(pod)
        self.queue.add(pod, 0.0)

    def bind_elsewhere(self) -> None:
        """Binds one of the members as another program."""
        self.roster.set_member_node("uid-b", "n1", is_bound=True)
        self.queue.remove("uid-b")
        self.add("c")
        self.queue.regroup(0.0)


def _raise(plugin: str, point: str, error: BaseException | str) -> None:
    raise AssertionError(f"{plugin} {point}: {error}")


def test_member_that_wakes_its_gang_is_no_fault() -> None:
    domain = Domain()
    domain.refuse()
    domain.add("c")
    domain.bind_elsewhere()
    assert not domain.faults


def test_parked_gang_must_be_tried_when_a_member_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Readmission, "_came", lambda *args: None)
    domain = Domain()
    domain.refuse()
    domain.add("c")
    assert domain.faults == ["I3: team/c follows team/a, which is parked and was not woken by it"]


def test_parked_gang_must_be_tried_when_it_lacks_fewer_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GangEntries, "have_requirements_changed", lambda self, key: False)
    domain = Domain()
    domain.refuse()
    domain.roster.set_member_node("uid-b", "n1", is_bound=True)
    domain.queue.regroup(0.0)
    assert domain.faults == ["I3: team/a is parked, and its gang asks for something else than when it was tried"]


def test_undone_members_must_not_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = GangBarriers.leave

    def leave(self: GangBarriers, barrier: Any, uid: str) -> str:
        key = genuine(self, barrier, uid)
        barrier.missing[key] += 1
        return key

    monkeypatch.setattr(GangBarriers, "leave", leave)
    domain, barriers = Domain(), GangBarriers(GangRoster())
    worker: Any = SimpleNamespace(binding=SimpleNamespace(_barriers=barriers))
    BarrierChecker(worker, domain.roster, domain.faults.append)
    barriers.expect({"uid-a": "team/g", "uid-b": "team/g", "uid-c": "team/g"})
    barrier = barriers.begin("uid-a")
    assert barrier is not None
    assert not domain.faults
    barriers.leave(barrier, "uid-a")
    assert domain.faults == ["I5: 3 members of gang team/g are waited for before it is bound, and 2 have not arrived"]
