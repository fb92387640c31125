"""Trials: whatever goes, comes or fails within the block, afterwards everything is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.ledger import Choices
from multisched.framework.runner import PluginFailure
from multisched.model.objects import CPU, Pod
from multisched.state.cluster_cache import ClusterCache, PlacedPod
from multisched.state.ledgers import LedgerRegistry
from multisched.state.nominator import Nominator
from multisched.state.transaction import assume
from multisched.state.trial import Trial
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import (
    FlakyTickets,
    NamespaceRoom,
    Tickets,
    choose_nothing,
    make_pod,
    make_spec,
)
from tests.unit.state.test_views_agree import ROWS, seen

NODES = tuple(f"n{number}" for number in ROWS.tolist())


class Town:
    """Six nodes with two ledgers, pods that are bound, on their way or stray, and nominated ones."""

    def __init__(self, tickets: Tickets | None = None) -> None:
        ledgers = LedgerRegistry()
        self.tickets = tickets or Tickets(per_row=3)
        self.room = NamespaceRoom(12_000)
        ledgers.register(self.tickets)
        ledgers.register(self.room)
        self.cache = ClusterCache(ledgers)
        self.nominator = Nominator()
        for name in NODES:
            self.cache.set_node(make_node(name, cpu_milli=8000, pods=20, labels={"zone": name}))

    def fill(self, pods: list[tuple[int, int, bool, bool]]) -> None:
        """(node or none, CPU, with a ticket, on its way)."""
        taken: dict[int, int] = {}
        for number, (at, cpu, has_ticket, is_assumed) in enumerate(pods):
            annotations = {"tickets": "1"} if has_ticket else {}
            port = 80 if number % 5 == 0 else 0
            if is_assumed and at < len(NODES):
                pod = make_pod(f"p{number}", make_spec(cpu, port=port), annotations=annotations)
                assume(self.cache, pod, at, choose_nothing)
                continue
            if has_ticket:
                number_of_ticket = taken[at] = taken.get(at, 9) + 1
                annotations["ticket"] = str(number_of_ticket)
            node = NODES[at] if at < len(NODES) else "unknown"
            spec = make_spec(cpu, port=port)
            self.cache.place(make_pod(f"p{number}", spec, node=node, annotations=annotations, started_s=float(cpu)))

    def state(self) -> Mapping[str, Any]:
        nodes, standing = self.cache.nodes, self.cache.pods_by_priority
        self.cache.validate()
        return {
            "rows": seen(nodes),
            "orders": [[pod.uid for pod in nodes.pods_on(row)] for row in ROWS.tolist()],
            "columns": [
                [[pod.uid for pod in pods.order(i)] for i in range(len(pods.rows))] for pods in standing.blocks(ROWS)
            ],
            "held": [dict(ledger.held()) for ledger in self.cache.ledgers],
            "sums": self.room.sums(),
            "broken": dict(self.cache.ledgers.broken),
            "entries": {e.pod.uid: (e.row, e.state, e.pod, e.annotations) for e in self.cache},
            "pod_changes": self.cache.pod_changes.end,
            "nominations": {
                pod.uid: (pod.nominated_node, self.nominator.rank_of(pod)) for pod in self.nominator.pods()
            },
        }


pods = st.lists(
    st.tuples(st.integers(0, len(NODES)), st.sampled_from([500, 1000]), st.booleans(), st.booleans()), max_size=14
)
steps = st.lists(
    st.tuples(st.sampled_from(["away", "back", "stand", "leave", "nominated"]), st.integers(0, 20), st.integers(0, 5)),
    max_size=25,
)


class StopError(Exception):
    """Ends a block on the way."""


def act(
    town: Town, trial: Trial, what: str, number: int, row: int, gone: dict[str, PlacedPod], come: list[str]
) -> None:
    there = [entry for entry in town.cache if entry.pod.uid not in gone]
    match what:
        case "away" if there:
            entry = there[number % len(there)]
            trial.remove([entry])
            gone[entry.pod.uid] = entry
        case "back" if gone:
            trial.restore([gone.pop(sorted(gone)[number % len(gone)])])
        case "stand":
            pod = make_pod(f"new{number}", make_spec(1000), annotations={"tickets": "1"} if number % 2 else {})
            if pod.uid not in come and trial.place(pod, row, choose_nothing) is not None:
                come.append(pod.uid)
        case "leave" if come:
            stand = trial.unplace(come.pop(number % len(come)))
            assert trial.place(stand.pod, stand.row, choose_nothing) is not None, "its place is still free"
            come.append(stand.pod.uid)
        case "nominated":
            trial.ignore_nominations([make_pod(f"wants{number % 3}")])


@given(pods, steps, st.booleans())
def test_trial_leaves_no_trace(
    standing: list[tuple[int, int, bool, bool]], story: list[tuple[str, int, int]], stops: bool
) -> None:
    town = Town()
    town.fill(standing)
    for number in range(3):
        town.nominator.nominate(make_pod(f"wants{number}"), NODES[number], 50 if number else None)
    before = town.state()
    gone: dict[str, PlacedPod] = {}
    come: list[str] = []
    with suppress(StopError), Trial(town.cache, town.nominator) as trial:
        for what, number, row in story:
            act(town, trial, what, number, row, gone, come)
        if stops:
            raise StopError
    assert town.state() == before


def test_removed_pods_use_nothing_inside_a_trial() -> None:
    town = Town()
    town.fill([(0, 1000, True, False), (0, 1000, True, True), (6, 1000, False, False)])
    with Trial(town.cache, town.nominator) as trial:
        trial.remove(list(town.cache))
        assert town.cache.nodes.requested(CPU)[0] == 0
        assert town.room.sums() == {}, "nor does the one whose node is unknown"
        assert list(town.tickets.held()) == ["p1"], "which ticket a pod on its way got, nobody else knows"


def test_trial_places_a_pod_where_no_ledger_refuses() -> None:
    town = Town(Tickets(per_row=1))
    town.room.max_milli = 2000
    wanting = [make_pod(f"w{number}", annotations={"tickets": "1"}) for number in range(3)]
    with Trial(town.cache, town.nominator) as trial:
        assert trial.place(wanting[0], 0, choose_nothing) is not None
        assert trial.place(wanting[1], 0, choose_nothing) is None, "it has no ticket left"
        assert trial.place(wanting[1], 1, choose_nothing) is not None
        assert trial.place(wanting[2], 2, choose_nothing) is None, "the namespace has no room left"
        assert town.cache.nodes.requested(CPU)[:3].tolist() == [1000, 1000, 0]


@pytest.mark.parametrize("what", ["fits", "take"])
def test_trial_with_a_raising_ledger_leaves_no_trace(what: str) -> None:
    tickets = FlakyTickets()
    town = Town(tickets)
    town.fill([(0, 1000, True, False), (1, 1000, False, True)])
    before = town.state()

    def fail() -> None:
        with Trial(town.cache, town.nominator) as trial:
            trial.remove(list(town.cache))
            tickets.raises = what
            trial.place(make_pod("new", annotations={"tickets": "1"}), 0, choose_nothing)

    with pytest.raises(PluginFailure):
        fail()
    tickets.raises = ""
    assert town.state() == before


def test_trial_placement_keeps_the_choices_of_ledgers() -> None:
    town, asked = Town(), list[str]()

    def choose(pod: Pod, row: int) -> Choices:
        asked.append(f"{pod.uid} on {row}")
        return {}

    with Trial(town.cache, town.nominator) as trial:
        stand = trial.place(make_pod("new"), 2, choose)
        assert stand is not None
        assert (stand.pod.uid, stand.row, stand.choices, asked) == ("new", 2, {}, ["new on 2"])
        assert np.flatnonzero(town.cache.nodes.pod_count[ROWS]).tolist() == [2]
