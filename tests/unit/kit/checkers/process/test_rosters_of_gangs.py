"""Violations of a gang roster whose counters differ from its members."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from multisched.model.gang import ACK_MIN, ACK_NAME, KOORDINATOR
from multisched.model.objects import Pod
from multisched.state.gang_roster import GangRoster
from tests.kit.checkers.process.gang_roster import RosterChecker


class Process:
    """A roster with its checker, and the caches with which it is compared."""

    def __init__(self) -> None:
        self.roster = GangRoster()
        self.placed: dict[str, Any] = {}
        self.cache: Any = SimpleNamespace(gangs=self.roster, placed=self.placed.get)
        program: Any = SimpleNamespace(cache=self.cache)
        self.faults: list[str] = []
        RosterChecker(program, self.faults.append)

    def member(self, name: str, least: int = 2) -> Pod:
        pod = Pod("team", name, f"uid-{name}", 1, labels={ACK_NAME: "g", ACK_MIN: str(least)})
        self.roster.set(pod)
        return pod

    def member_of(self, gang: str) -> None:
        """Returns a member of one of two gangs that start together."""
        terms = {"name": gang, "min-available": "1", "groups": '["one", "other"]'}
        annotations = {f"{KOORDINATOR}{key}": value for key, value in terms.items()}
        self.roster.set(Pod("team", f"{gang}-0", f"uid-{gang}", 1, annotations=annotations))


def _count_deleted(process: Process) -> None:
    process.member("a")
    process.roster.gang("team/g").bound += 1  # type: ignore[union-attr]
    process.member("b")


def _forget_a_victim(process: Process) -> None:
    pod = process.member("a")
    process.placed[pod.uid] = SimpleNamespace(pod=SimpleNamespace(is_victim=True))
    process.member("a")


@pytest.mark.parametrize(
    ("goes_wrong", "fault"),
    [
        (_count_deleted, "I13: gang team/g counts 1 as bound, and its members make 0"),
        (_forget_a_victim, "I13: team/a of gang team/g counts as one that stays, and is about to be evicted"),
    ],
)
def test_wrong_count_is_found_when_the_gang_is_written(goes_wrong: Callable[[Process], None], fault: str) -> None:
    process = Process()
    goes_wrong(process)
    assert process.faults == [fault]


def test_gang_that_starts_with_a_changed_one_must_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    for gang in ("one", "other"):
        process.member_of(gang)
    process.faults.clear()
    monkeypatch.setattr(GangRoster, "_changed", lambda self, key: self.on_change(key))
    process.roster.set_member_node("uid-one", "n1", is_bound=True)
    assert process.faults == [
        "I13: gang team/other depends on gang team/one, which changed, and its members were not looked at"
    ]


def test_right_roster_has_no_fault() -> None:
    process = Process()
    for name in ("a", "b", "c"):
        process.member(name)
    process.roster.set_member_node("uid-a", "n1", is_tentative=True)
    process.roster.set_member_node("uid-a", "n1", is_bound=True)
    process.roster.set_member_node("uid-b", "n1", is_bound=True)
    process.roster.remove("uid-b")
    assert not process.faults
