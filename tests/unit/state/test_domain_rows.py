"""The rows of a domain against a plain telling: who is in, since when, and who waits to be let in."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.objects import Node
from multisched.state.domain_rows import DomainRows
from multisched.testing.builders import make_node

ROWS = (0, 1, 2, 5, 63, 64, 200)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(ROWS), st.sampled_from(("ours", "theirs", "odd", "slow", "gone"))),
        st.tuples(st.just("withhold"), st.sampled_from(ROWS), st.integers(1, 3)),
        st.tuples(st.just("admit"), st.sampled_from(ROWS), st.integers(1, 3)),
        st.tuples(st.just("listed"), st.integers(1, 3)),
    ),
    max_size=30,
)


def node(kind: str, version: int = 1) -> Node:
    return make_node("n", labels={"kind": kind}, malformed="odd" if kind == "odd" else "", version=version)


class Telling:
    """Row -> generation at which it joined, and rows that wait."""

    def __init__(self) -> None:
        self.joined: dict[int, int] = {}
        self.waiting: dict[int, object] = {}
        self.unreadable: set[int] = set()
        self.generation = 0

    def put(self, row: int, *, is_in: bool) -> None:
        if is_in != (row in self.joined):
            self.generation += 1
            self.joined.pop(row, None)
            if is_in:
                self.joined[row] = self.generation

    def wait(self, row: int, version: object | None) -> None:
        self.generation += (version is not None) != (row in self.waiting)
        self.waiting.pop(row, None)
        if version is not None:
            self.waiting[row] = version

    def take(self, step: tuple[Any, ...]) -> None:
        if step[0] == "set":
            is_unreadable = step[2] == "odd"
            self.generation += is_unreadable != (step[1] in self.unreadable)
            self.unreadable = self.unreadable - {step[1]} | ({step[1]} if is_unreadable else set())
        match step:
            case ("set", row, "ours" | "slow" as kind):
                if row not in self.joined and row not in self.waiting:
                    if kind == "ours":
                        self.put(row, is_in=True)
                    else:
                        self.wait(row, 1)
            case ("set", row, _):
                self.wait(row, None)
                self.put(row, is_in=False)
            case ("withhold", row, version):
                self.put(row, is_in=False)
                self.wait(row, version)
            case ("admit", row, version):
                if self.waiting.get(row) == version:
                    self.wait(row, None)
                    self.put(row, is_in=True)
            case ("listed", version):
                self.waiting = dict.fromkeys(self.waiting, version)


@given(steps)
def test_domain_rows_follow_withhold_and_admit(story: list[tuple[Any, ...]]) -> None:
    rows, told = DomainRows("ours", lambda one: one.labels["kind"] in ("ours", "slow", "odd")), Telling()
    rows.may_join = lambda one: one.labels["kind"] != "slow"
    for row in ROWS:  # a table knows its rows before anything is said of them
        rows.set_node(row, None)
    generations = [0]
    for step in story:
        match step:
            case ("set", row, kind):
                rows.set_node(row, None if kind == "gone" else node(kind))
            case ("withhold", row, version):
                rows.withhold(row, node("ours", version))
            case ("admit", row, version):
                rows.admit(row, version)
            case ("listed", version):
                rows.listed(version)
        told.take(step)
        members = sorted(told.joined)
        assert rows.generation == told.generation, "it moves when the set does, and not otherwise"
        assert rows.withheld == told.waiting
        assert rows.rows.tolist() == members
        assert rows.places.tolist() == sorted({*members, *told.waiting, *told.unreadable})
        assert rows.are_first is (members == list(range(len(members))))
        assert np.flatnonzero(rows.members()).tolist() == members
        positions = rows.position.tolist()
        assert [positions[row] for row in members] == list(range(len(members)))
        assert all(positions[row] == -1 for row in ROWS if row not in members and row < len(positions))
        generations.append(told.generation)
        since = generations[len(generations) // 2]
        stayed = [told.joined.get(row, since + 1) <= since for row in ROWS]
        assert [rows.has(row) for row in ROWS] == [row in told.joined for row in ROWS]
        assert [rows.has_stayed(row, since) for row in ROWS] == stayed
        assert rows.stayed_since(np.array(ROWS, np.intp), since).tolist() == stayed
    assert not rows.has(10**6)


def test_row_that_becomes_sliced_or_ceases_to_be_has_left_and_joined() -> None:
    rows = DomainRows("ours", lambda one: True, is_sliced=lambda one: one.labels["kind"] == "lent")
    rows.may_join = lambda one: False
    rows.set_node(0, node("lent"))
    assert rows.has(0), "nothing of it is usable before it is offered"
    rows.withhold(0, node("lent"))
    assert rows.has(0)
    before = rows.generation
    rows.set_node(0, node("ours", 2))
    assert not rows.has(0)
    assert rows.withheld == {0: 2}, "its former user may still be binding"
    rows.admit(0, 2)
    assert rows.has(0)
    assert not rows.has_stayed(0, before)
    before = rows.generation
    rows.set_node(0, node("lent", 3))
    assert rows.has(0)
    assert not rows.has_stayed(0, before), "what was decided by its own room is void"
