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
def test_nominated_request_columns_equal_the_sums_of_pods(story: list[Any], asker: int, priority: int) -> None:
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


def test_nomination_survives_pod_versions_without_it() -> None:
    nominator, before = Nominator(), make_pod("p")
    nominator.nominate(before, "n0")
    nominator.set(make_pod("p", phase="Pending"), before)
    assert nominator.node_of("uid-p") == "n0"
    written = make_pod("p", nominated_node="n0")
    nominator.set(written, before)
    nominator.set(make_pod("p"), written)
    assert (nominator.node_of("uid-p"), len(nominator)) == ("", 0)


def test_changed_since_returns_changes_still_in_the_log() -> None:
    nominator = Nominator()
    nominator.nominate(make_pod("p"), "n0")
    mark = nominator.sequence
    assert nominator.changed_since(mark) == frozenset()
    nominator.nominate(make_pod("p"), "n1")
    assert nominator.changed_since(mark) == frozenset(("n0", "n1"))
    for _ in range(CHANGES_KEPT):
        nominator.nominate(make_pod("q"), "n2")
    assert nominator.changed_since(mark) is None


def test_nominations_to_deleted_nodes_reserve_nothing() -> None:
    nominator, table = Nominator(), NodeTable()
    table.set_node(make_node("n0"))
    nominator.nominate(make_pod("first", cpu_milli=1), "gone")
    assert nominator.requests(make_pod("late", cpu_milli=1), table) is None
    nominator.nominate(make_pod("second", cpu_milli=1), "n0")
    promised = nominator.requests(make_pod("late", cpu_milli=1), table)
    assert promised is not None
    assert promised.rows.tolist() == [0]
    assert nominator.requests(make_pod("second", cpu_milli=1), table) is None, "nobody leaves room for itself"


def test_nomination_rank_decides_which_pods_yield() -> None:
    nominator, table = Nominator(), NodeTable()
    table.set_node(make_node("n0"))
    reclaims = make_pod("reclaims", cpu_milli=100, priority=0)
    nominator.nominate(reclaims, "n0", rank=50)

    urgent, more_urgent = make_pod("urgent", priority=50), make_pod("more-urgent", priority=51)
    assert nominator.rank_of(reclaims) == 50
    assert [pod.name for pod in nominator.ahead_on("n0", urgent)] == ["reclaims"]
    assert nominator.ahead_on("n0", more_urgent) == []
    promised = nominator.requests(urgent, table)
    assert promised is not None
    assert promised.amounts(CPU).tolist() == [100]
    assert nominator.requests(more_urgent, table) is None
    assert nominator.requests(reclaims, table) is None, "its own place is no hindrance to it"


def test_nomination_rank_lasts_while_the_node_is_the_same() -> None:
    nominator, pod = Nominator(), make_pod("reclaims", priority=0)
    nominator.nominate(pod, "n0", rank=50)
    nominator.nominate(pod, "n0")
    assert nominator.rank_of(pod) == 50
    nominator.nominate(pod, "n1")
    assert nominator.rank_of(pod) == 0
    nominator.nominate(pod, "n1", rank=50)
    nominator.remove(pod.uid)
    assert (nominator.rank_of(pod), len(nominator)) == (0, 0)
