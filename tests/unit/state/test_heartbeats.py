"""A node that says nothing new costs nothing: thousands of nodes report every few minutes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from multisched.model.objects import Node
from multisched.model.selectors import Taint
from multisched.state.node_table import NodeTable

NODE = Node("n", "uid", 1, labels={"zone": "a"}, allocatable={"cpu": 1000, "pods": 10})


def versions(table: NodeTable, row: int) -> tuple[int, int, int]:
    return table.nodes_version, table.version(row), table.node_log.sequence


def test_heartbeat_keeps_the_row_version_and_stores_the_newest_object() -> None:
    table = NodeTable()
    row = table.set_node(NODE)
    before = versions(table, row)
    beat = msgspec.structs.replace(NODE, version=2, labels={"zone": "a"})
    assert table.set_node(beat) == row
    assert versions(table, row) == before
    assert table.node(row) is beat
    table.validate()


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"zone": "b"}},
        {"annotations": {"a": "b"}},
        {"taints": (Taint("k"),)},
        {"is_unschedulable": True},
        {"allocatable": {"cpu": 2000, "pods": 10}},
        {"malformed": "status: broken"},
    ],
)
def test_every_field_read_of_a_node_changes_the_row_version(change: dict[str, Any]) -> None:
    table = NodeTable()
    row = table.set_node(NODE)
    before = versions(table, row)
    table.set_node(msgspec.structs.replace(NODE, version=2, **change))
    assert all(now > then for now, then in zip(versions(table, row), before, strict=True))
    table.validate()
