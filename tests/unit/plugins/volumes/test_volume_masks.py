"""Masks of rows from which volumes can be reached: kept until a node changes, and bounded in number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multisched.framework.node_view import Bools
from multisched.model.cluster_objects import TopologyTerm
from multisched.model.selectors import LabelSelector, NodeSelector, NodeTerm, Operator, Requirement
from multisched.plugins.volumes import volume_masks
from multisched.plugins.volumes.volume_masks import RowMasks
from multisched.testing.builders import decode_node, node_document, pod_document
from tests.unit.plugins.scenes import Scene


def scene() -> Scene:
    """Two nodes of zone a, one of zone b; and a row that no node has any more."""
    zones = {"n0": "a", "n1": "b", "n2": "a"}
    return Scene([node_document(name, labels={"zone": zone}) for name, zone in zones.items()], [], pod_document("p"))


def on(found: Scene, mask: Bools) -> list[str]:
    """The nodes of the mask."""
    held = mask.tolist()
    assert len(held) == len(found.table.taint_set)
    return [node.name for row, node in found.table.live_rows() if held[row]]


def zone(*names: str) -> TopologyTerm:
    return TopologyTerm((("zone", names),))


@pytest.mark.parametrize(
    ("terms", "nodes"),
    [
        ((), ["n0", "n1", "n2"]),
        ((zone("a"),), ["n0", "n2"]),
        ((zone("b"), zone("c")), ["n1"]),
        ((zone("a"), zone("b")), ["n0", "n1", "n2"]),
        ((zone("a", "b"),), ["n0", "n1", "n2"]),
        ((TopologyTerm((("zone", ("a",)), ("rack", ("1",)))),), []),
        ((TopologyTerm(()),), []),  # a term that says nothing matches nothing, as upstream
    ],
)
def test_storage_class_allows_nodes_matching_one_term(terms: tuple[TopologyTerm, ...], nodes: list[str]) -> None:
    found = scene()
    assert on(found, RowMasks(found.objects).allowed(found.table, terms)) == nodes


def test_volume_mask_is_cached_until_a_node_changes() -> None:
    found = scene()
    masks = RowMasks(found.objects)
    requirement = Requirement("zone", Operator.IN, ("a",))
    ways: tuple[Callable[[], Bools], ...] = (
        lambda: masks.allowed(found.table, (zone("a"),)),
        lambda: masks.selected(found.table, LabelSelector((requirement,))),
        lambda: masks.affine(found.table, NodeSelector((NodeTerm((requirement,)),))),
    )
    first = [way() for way in ways]
    assert [on(found, mask) for mask in first] == [["n0", "n2"]] * 3
    assert all(way() is mask and not mask.flags.writeable for way, mask in zip(ways, first, strict=True))
    found.table.set_node(decode_node(node_document("n1", labels={"zone": "a"})))
    assert [on(found, way()) for way in ways] == [["n0", "n1", "n2"]] * 3


def test_number_of_cached_volume_masks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_masks, "MASKS_MAX", 2)
    found = scene()
    masks = RowMasks(found.objects)
    a, b = (masks.allowed(found.table, (zone(name),)) for name in "ab")
    assert masks.allowed(found.table, (zone("a"),)) is a
    assert masks.allowed(found.table, (zone("b"),)) is b
    masks.allowed(found.table, (zone("c"),))
    again = masks.allowed(found.table, (zone("a"),))
    assert again is not a
    assert on(found, again) == ["n0", "n2"]
