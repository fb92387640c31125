"""Who uses which claim and disk is known without a walk over pods: in the table, in overlays, and after any events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.frozen_nodes import FrozenNodes, RowRecord
from multisched.framework.node_view import NodeView
from multisched.framework.recency import KEYS_MAX, Recency
from multisched.framework.volume_users import VolumeUsers, users_of
from multisched.model.objects import PodSpec
from multisched.model.volumes import Disk, DiskKind, PodVolume
from multisched.state.node_table import NodeTable
from multisched.state.overlay import Overlay
from multisched.state.row_check import row_faults
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import make_pod

ROWS = range(3)
CLAIMS = ("a", "b", "web-0-scratch")
DISKS = (
    Disk(DiskKind.GCE, "d"),
    Disk(DiskKind.GCE, "d", is_read_only=True),
    Disk(DiskKind.AWS, "d"),
    Disk(DiskKind.RBD, "p/i", monitors=frozenset({"m"})),
)

volume = st.one_of(
    st.sampled_from(CLAIMS).map(lambda name: PodVolume(claim=name)),
    st.sampled_from(DISKS).map(lambda disk: PodVolume("v", disk=disk)),
    st.just(PodVolume("scratch", is_ephemeral=True)),
)
spec = st.lists(volume, max_size=3).map(lambda volumes: PodSpec(volumes=tuple(volumes)))
changes = st.lists(st.tuples(st.booleans(), st.sampled_from(ROWS), st.integers(0, 4), spec), max_size=15)


def seen(users: VolumeUsers) -> Any:
    claims = {name: dict(users.claim_users("default", name)) for name in CLAIMS}
    disks = {disk: {row: dict(held) for row, held in users.disk_users(disk.kind, disk.id).items()} for disk in DISKS}
    return claims, disks


def counted(view: NodeView) -> Any:
    return seen(users_of((row, view.pods_on(row)) for row in ROWS))


def make_table() -> NodeTable:
    table = NodeTable()
    for row in ROWS:
        table.set_node(make_node(f"n{row}"))
    return table


@given(changes, changes)
def test_volume_users_equal_a_recount_in_table_and_overlays(drawn: list[Any], in_thought: list[Any]) -> None:
    table = make_table()
    for is_added, row, number, made in drawn:
        uids = [pod.uid for at in ROWS for pod in table.pods_on(at)]
        if is_added and f"p{number}" not in uids:
            table.add_pod(row, make_pod(f"p{number}", made))
        elif not is_added and table.pods_on(row):
            table.remove_pod(row, table.pods_on(row)[0].uid)
        assert seen(table.volume_users) == counted(table)
    before, overlay = seen(table.volume_users), Overlay(table)
    for number, (is_added, row, _, made) in enumerate(in_thought):
        if is_added:
            overlay.add_pod(row, make_pod(f"thought{number}", made))
        elif overlay.pods_on(row):
            overlay.remove_pod(row, overlay.pods_on(row)[0].uid)
        assert seen(overlay.volume_users) == counted(overlay)
    assert seen(table.volume_users) == before
    assert row_faults(table, ROWS) == {}


def test_overlay_lists_its_changed_rows_and_the_table_none() -> None:
    table = make_table()
    table.add_pod(0, make_pod("p", PodSpec(volumes=(PodVolume(claim="a"),))))
    overlay = Overlay(table)
    overlay.add_pod(1, make_pod("plain", PodSpec()))
    assert set(overlay.volume_users.overlaid_rows) == set()
    overlay.remove_pod(0, "p")
    assert set(overlay.volume_users.overlaid_rows) == {0}
    assert set(table.volume_users.overlaid_rows) == set()


def test_rows_are_recorded_for_volume_pods_and_node_changes() -> None:
    table = make_table()
    recency = table.volume_users.recency
    start = recency.sequence
    table.add_pod(0, make_pod("plain", PodSpec()))
    assert recency.since(start) == []
    table.add_pod(1, make_pod("p", PodSpec(volumes=(PodVolume(claim="a"),))))
    table.remove_node("n2")
    assert recency.since(start) == [2, 1]


def test_row_with_wrong_volume_users_is_found_and_recounted() -> None:
    table = make_table()
    pod = make_pod("p", PodSpec(volumes=(PodVolume(claim="a"), PodVolume("d", disk=DISKS[0]))))
    table.add_pod(1, pod)
    table.volume_users.account(1, pod, 1)
    assert "volumes in use say" in row_faults(table, ROWS)[1]
    table.recount(1, {pod.uid: pod})
    assert row_faults(table, ROWS) == {}
    assert seen(table.volume_users) == counted(table)


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 40))
def test_recency_returns_each_key_once_latest_first(keys: list[int], since: int) -> None:
    recency: Recency[int] = Recency()
    for key in keys:
        recency.note(key)
    since = min(since, len(keys))
    assert recency.since(since) == list(dict.fromkeys(reversed(keys[since:])))


def test_recency_reports_forgotten_keys() -> None:
    recency: Recency[int] = Recency()
    for key in range(KEYS_MAX + 2):
        recency.note(key)
    assert recency.since(1) is None
    assert recency.since(KEYS_MAX) == [KEYS_MAX + 1, KEYS_MAX]


def test_frozen_nodes_have_the_same_volume_users() -> None:
    table = make_table()
    volumes = (PodVolume(claim="a"), PodVolume("d", disk=DISKS[1]), PodVolume("scratch", is_ephemeral=True))
    table.add_pod(0, make_pod("p", PodSpec(volumes=volumes)))
    table.add_pod(2, make_pod("q", PodSpec(volumes=volumes[:1])))
    records = [RowRecord(row, table.version(row), table.node(row), tuple(table.pods_on(row))) for row in ROWS]
    frozen = FrozenNodes(records, table.node_count, table.nodes_version)
    assert seen(frozen.volume_users) == seen(table.volume_users)
