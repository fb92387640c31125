"""Nominations: what is promised, told pod by pod and in columns, and when a promise ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.objects import CPU, PODS
from multisched.state.node_table import NodeTable
from multisched.state.nominator import CHANGES_KEPT, Nominator
from multisched.testing.builders import make_node, make_pod

NODES = ("n0", "n1", "n2", "gone")
steps = st.lists(
    st.tuples(
        st.sampled_from(["nominate", "remove", "node"]),
        st.integers(0, 7),
        st.sampled_from(NODES),
        st.sampled_from([0, 5, 9]),
        st.sampled_from([100, 250]),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 7), st.sampled_from([0, 5, 9]))
def test_columns_tell_what_the_pods_themselves_ask_for(story: list[Any], asker: int, priority: int) -> None:
    nominator, table = Nominator(), NodeTable()
    for name in NODES[:3]:
        table.set_node(make_node(name))
    for kind, number, node, level, cpu in story:
        if kind == "nominate":
            nominator.nominate(make_pod(f"p{number}", cpu_milli=cpu, priority=level), node)
        elif kind == "remove":
            nominator.remove(f"uid-p{number}")
        elif node in NODES[:3]:
            if table.row_of(node) is None:
                table.set_node(make_node(node))
            else:
                table.remove_node(node)
        pod = make_pod(f"p{asker}", cpu_milli=1, priority=priority)
        expected = {
            row: (sum(one.requests[CPU] for one in ahead), len(ahead))
            for name, ahead in nominator.ahead_of(pod)
            if (row := table.row_of(name)) is not None
        }
        promised = nominator.requests(pod, table)
        found = {}
        if promised is not None:
            amounts = zip(promised.amounts(CPU).tolist(), promised.amounts(PODS).tolist(), strict=True)
            found = dict(zip(promised.rows.tolist(), amounts, strict=True))
            assert not promised.amounts("nobody/asks").any()
            assert len(np.unique(promised.rows)) == len(promised.rows)
        assert found == expected


def test_a_promise_made_here_outlives_versions_of_the_pod_that_do_not_know_of_it() -> None:
    nominator, before = Nominator(), make_pod("p")
    nominator.nominate(before, "n0")
    nominator.set(make_pod("p", phase="Pending"), before)
    assert nominator.node_of("uid-p") == "n0"
    written = make_pod("p", nominated_node="n0")
    nominator.set(written, before)
    nominator.set(make_pod("p"), written)
    assert (nominator.node_of("uid-p"), len(nominator)) == ("", 0)


def test_what_changed_is_told_as_long_as_it_is_remembered() -> None:
    nominator = Nominator()
    nominator.nominate(make_pod("p"), "n0")
    mark = nominator.sequence
    assert nominator.changed_since(mark) == frozenset()
    nominator.nominate(make_pod("p"), "n1")
    assert nominator.changed_since(mark) == frozenset(("n0", "n1"))
    for _ in range(CHANGES_KEPT):
        nominator.nominate(make_pod("q"), "n2")
    assert nominator.changed_since(mark) is None


def test_nominations_to_nodes_that_are_gone_promise_nothing() -> None:
    nominator, table = Nominator(), NodeTable()
    table.set_node(make_node("n0"))
    nominator.nominate(make_pod("first", cpu_milli=1), "gone")
    assert nominator.requests(make_pod("late", cpu_milli=1), table) is None
    nominator.nominate(make_pod("second", cpu_milli=1), "n0")
    promised = nominator.requests(make_pod("late", cpu_milli=1), table)
    assert promised is not None
    assert promised.rows.tolist() == [0]
    assert nominator.requests(make_pod("second", cpu_milli=1), table) is None, "nobody leaves room for itself"
