"""Overlay: changes in thought show in the view, leave the table as it is, and are undone without a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.node_view import NodeView
from multisched.model.objects import CPU, MEMORY, Pod
from multisched.state.change_log import CHANGES_KEPT, ChangeLog
from multisched.state.node_table import NodeTable
from multisched.state.nominator import Nominator
from multisched.state.overlay import Overlay
from multisched.testing.builders import GPU, make_node
from tests.unit.state.state_kit import make_pod, make_spec

SPECS = [make_spec(500), make_spec(200, gpu=1), make_spec(100, port=80)]


def make_table() -> NodeTable:
    table = NodeTable()
    for number in range(3):
        table.set_node(make_node(f"n{number}", extra={GPU: 2}))
    for number, spec in enumerate(SPECS):
        table.add_pod(number, make_pod(f"base{number}", spec))
    return table


def seen(view: NodeView) -> Any:
    """Everything that pods can change, as plain values."""
    return [
        [view.requested(name).tolist() for name in (CPU, MEMORY, GPU)],
        [view.scoring_requested(name).tolist() for name in (CPU, MEMORY, GPU)],
        view.pod_count.tolist(),
        [sorted(pod.uid for pod in view.pods_on(row)) for row in range(3)],
        {row: dict(ips) for row, ips in view.port_users("TCP", 80).items() if ips},
    ]


changes = st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 4), st.sampled_from(SPECS)), max_size=12)


@given(changes)
def test_overlay_equals_a_changed_table_and_leaves_the_base_untouched(
    drawn: list[tuple[bool, int, int, Any]],
) -> None:
    base, changed = make_table(), make_table()
    before, versions = seen(base), [base.version(row) for row in range(3)]
    overlay = Overlay(base)
    undo: list[tuple[bool, int, Pod]] = []
    for is_added, row, number, spec in drawn:
        on_row = [pod.uid for pod in changed.pods_on(row)]
        if is_added and f"p{number}" not in [pod.uid for at in range(3) for pod in changed.pods_on(at)]:
            pod = make_pod(f"p{number}", spec)
            overlay.add_pod(row, pod)
            changed.add_pod(row, pod)
            undo.append((True, row, pod))
        elif not is_added and on_row:
            uid = on_row[number % len(on_row)]
            gone = overlay.remove_pod(row, uid)
            assert changed.remove_pod(row, uid).uid == gone.uid
            undo.append((False, row, gone))
        assert seen(overlay) == seen(changed)
    for was_added, row, pod in reversed(undo):
        if was_added:
            overlay.remove_pod(row, pod.uid)
        else:
            overlay.add_pod(row, pod)
    assert seen(overlay) == before == seen(base)
    assert [base.version(row) for row in range(3)] == versions


def test_fields_that_pods_cannot_change_are_read_through() -> None:
    table = make_table()
    overlay = Overlay(table)
    assert np.array_equal(overlay.allocatable(CPU), table.allocatable(CPU))
    assert overlay.node(1) is table.node(1)
    assert (overlay.row_of("n2"), overlay.node_count, overlay.version(0)) == (2, 3, table.version(0))
    assert np.array_equal(overlay.label_codes("zone"), table.label_codes("zone"))


def test_overlay_refuses_removal_of_an_absent_pod() -> None:
    with pytest.raises(KeyError):
        Overlay(make_table()).remove_pod(0, "nobody")


def test_overlay_columns_are_read_only() -> None:
    overlay = Overlay(make_table())
    overlay.add_pod(0, make_pod("p"))
    for array in (overlay.requested(CPU), overlay.scoring_requested(CPU), overlay.pod_count):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


# -- change log --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(0, 60))
def test_change_log_returns_distinct_rows_in_order(rows: list[int], since: int) -> None:
    log = ChangeLog()
    for row in rows:
        log.note(row)
    since = min(since, len(rows))
    found = log.since(since)
    assert found is not None
    assert found.tolist() == sorted(set(rows[since:]))


def test_change_log_reports_forgotten_changes_after_wrapping() -> None:
    log = ChangeLog()
    for number in range(CHANGES_KEPT + 10):
        log.note(number % 1000)
    assert log.since(9) is None
    whole = log.since(10)
    assert whole is not None
    assert whole.tolist() == list(range(1000))
    last = log.since(CHANGES_KEPT + 7)
    assert last is not None
    assert last.tolist() == sorted((CHANGES_KEPT + i) % 1000 for i in (7, 8, 9))


# -- nominations -------------------------------------------------------------------------------------------------------


def test_nominations_are_kept_by_node_and_returned_by_rank() -> None:
    nominator = Nominator()
    high, low = (make_pod(uid, type(SPECS[0])(priority=p), nominated_node="n") for uid, p in (("high", 9), ("low", 1)))
    nominator.set(high)
    nominator.set(low)
    between = make_pod("p", type(SPECS[0])(priority=5))

    def ahead(pod: Pod) -> dict[str, list[str]]:
        return {node: [one.uid for one in pods] for node, pods in nominator.ahead_of(pod)}

    assert ahead(between) == {"n": ["high"]}
    assert ahead(high) == {}
    assert ahead(low) == {"n": ["high"]}
    nominator.set(make_pod("high", high.spec, nominated_node="m"))
    assert ahead(between) == {"m": ["high"]}
    nominator.set(make_pod("high", high.spec))
    assert (ahead(between), len(nominator)) == ({}, 1)
    nominator.remove("low")
    nominator.remove("unknown")
    assert len(nominator) == 0
