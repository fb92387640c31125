"""Matching volumes to claims for all rows at once gives what a walk over volumes gives, node by node, after any changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.cluster_objects import ClaimRef, PersistentVolume, PersistentVolumeClaim
from multisched.model.object_kinds import ObjectKind
from multisched.model.selectors import LabelSelector, NodeSelector, NodeTerm, Operator, Requirement
from multisched.plugins.volumes.volume_masks import RowMasks
from multisched.plugins.volumes.volume_matching import GROUPS_SPARE, NANO, NOTHING, Choice, VolumeIndex, claim_id
from multisched.state.node_table import NodeTable
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import decode_node, node_document

NODES = {f"n{i}": {"host": f"n{i}", "zone": f"z{i % 2}"} for i in range(4)}
PV = ObjectKind.PERSISTENT_VOLUME


def at(key: str, *values: str) -> NodeSelector:
    return NodeSelector((NodeTerm((Requirement(key, Operator.IN, values),)),))


AFFINITIES = (None, None, at("host", "n1"), at("host", "n2"), at("zone", "z0"), at("zone", "z0", "z1"), NodeSelector())
GOLD = LabelSelector((Requirement("tier", Operator.EXISTS),))

_volumes = st.builds(
    PersistentVolume,
    name=st.sampled_from([f"v{i}" for i in range(6)]),
    labels=st.sampled_from(({}, {"tier": "gold"})),
    capacity_nano=st.sampled_from((NANO, 3 * NANO // 2, 2 * NANO, 3 * NANO)),
    access_modes=st.sampled_from((("ReadWriteOnce",), ("ReadWriteOnce", "ReadWriteMany"))),
    storage_class=st.sampled_from(("fast", "fast", "slow")),
    volume_mode=st.sampled_from(("Filesystem", "Filesystem", "Filesystem", "Block")),
    attributes_class=st.sampled_from(("", "", "", "gold")),
    claim=st.sampled_from((None, None, None, ClaimRef("t", "c1"), ClaimRef("t", "c1", "u1"), ClaimRef("t", "c1", "x"))),
    node_affinity=st.sampled_from(AFFINITIES),
    phase=st.sampled_from(("Available", "Available", "Available", "Bound")),
    is_deleting=st.sampled_from((False, False, False, True)),
)
claims = st.builds(
    PersistentVolumeClaim,
    name=st.just("c"),
    namespace=st.just("t"),
    storage_class=st.just("fast"),
    request_nano=st.sampled_from((0, NANO, NANO + 1, 2 * NANO)),
    access_modes=st.sampled_from((("ReadWriteOnce",), ("ReadWriteMany",), ())),
    selector=st.sampled_from((None, None, LabelSelector(), GOLD)),
    volume_mode=st.sampled_from(("Filesystem", "Filesystem", "Block")),
    attributes_class=st.sampled_from(("", "", "gold")),
)
changes = st.lists(
    st.one_of(_volumes.map(lambda v: _rounded(v)), st.sampled_from([f"v{i}" for i in range(6)])), max_size=14
)


def _rounded(volume: PersistentVolume) -> PersistentVolume:
    return msgspec.structs.replace(volume, capacity_bytes=-(-volume.capacity_nano // NANO))


def _named(claim: PersistentVolumeClaim, number: int) -> PersistentVolumeClaim:
    request = -(-claim.request_nano // NANO)
    return msgspec.structs.replace(claim, name=f"c{number}", uid=f"u{number}", request_bytes=request)


@dataclass
class Walk:
    """What upstream's loop over volumes would choose on one node; among equals the first name."""

    store: ObjectStore
    assumed: dict[str, str]

    def choose(self, claim: PersistentVolumeClaim, labels: dict[str, str], taken: set[str]) -> str | None:
        smallest: PersistentVolume | None = None
        for volume in sorted(self.store.volumes_of_class(claim.class_name), key=lambda v: v.name):
            owner = self._owner(volume, claim)
            if volume.name in taken or owner == "another" or not self._is_alike(volume, claim):
                continue
            reaches = volume.node_affinity is None or volume.node_affinity.matches(labels, "")
            if owner == "this":
                return volume.name if reaches else None
            if volume.phase != "Available" or not reaches or not set(claim.access_modes) <= set(volume.access_modes):
                continue
            if claim.selector is not None and not claim.selector.matches(volume.labels):
                continue
            if smallest is None or volume.capacity_nano < smallest.capacity_nano:
                smallest = volume
        return None if smallest is None else smallest.name

    def _owner(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> str:
        ref = volume.claim
        if ref is not None:
            is_this = (ref.namespace, ref.name) == (claim.namespace, claim.name) and ref.uid in ("", claim.uid)
            return "this" if is_this else "another"
        promised = self.assumed.get(volume.name)
        if promised is None:
            return "nobody"
        return "this" if promised == claim_id(claim) else "another"

    @staticmethod
    def _is_alike(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        return (
            volume.capacity_nano >= claim.request_nano
            and volume.volume_mode == claim.volume_mode
            and volume.attributes_class == claim.attributes_class
            and not volume.is_deleting
        )


def table() -> NodeTable:
    found = NodeTable()
    for name, labels in NODES.items():
        found.set_node(decode_node(node_document(name, labels=labels)))
    return found


def check(
    index: VolumeIndex, walk: Walk, wanted: list[PersistentVolumeClaim], masks: RowMasks, nodes: NodeTable
) -> None:
    rows = np.arange(len(NODES))
    taken: list[Choice] = []
    taken_by_walk: dict[str, set[str]] = {name: set() for name in NODES}
    for claim in wanted:
        shelf = index.of_class("fast")
        choice = shelf.find(claim, nodes, masks, rows, walk.assumed, taken)
        for row in rows.tolist():
            alone = shelf.find(
                claim, nodes, masks, rows[row : row + 1], walk.assumed, [t[row : row + 1] for t in taken]
            )
            assert alone.tolist() == [choice[row]]
            name = nodes.node(row).name
            expected = walk.choose(claim, NODES[name], taken_by_walk[name])
            found = None if choice[row] == NOTHING else shelf.volume(int(choice[row])).name
            assert found == expected, (name, claim.name)
            if found is not None:
                taken_by_walk[name].add(found)
        taken.append(choice)


def apply(store: ObjectStore, change: Any) -> None:
    if isinstance(change, str):
        store.remove(PV, "", change)
    else:
        store.set(PV, change)


@given(changes, changes, st.lists(claims, min_size=1, max_size=3), st.sets(st.sampled_from(["v0", "v1", "v2"])))
def test_volume_match_equals_a_search_over_all_volumes(
    before: list[Any], after: list[Any], wanted: list[PersistentVolumeClaim], promised: set[str]
) -> None:
    store, nodes = ObjectStore(), table()
    index, masks = VolumeIndex(store), RowMasks(store)
    assumed = {name: "u0" if name == "v0" else "somebody" for name in promised}
    named = [_named(claim, number) for number, claim in enumerate(wanted)]
    for change in before:
        apply(store, change)
    check(index, Walk(store, assumed), named, masks, nodes)
    for change in after:
        apply(store, change)
    check(index, Walk(store, assumed), named, masks, nodes)


def test_relabelled_node_is_reached_by_other_volumes() -> None:
    store, nodes = ObjectStore(), table()
    index, masks = VolumeIndex(store), RowMasks(store)
    for name, affinity in (("a", at("host", "n1")), ("b", at("zone", "z0"))):
        store.set(PV, PersistentVolume(name=name, storage_class="fast", phase="Available", node_affinity=affinity))
    claim = PersistentVolumeClaim(name="c", namespace="t", uid="u", storage_class="fast")
    rows = np.arange(len(NODES))

    def names() -> list[str | None]:
        shelf = index.of_class("fast")
        found = shelf.find(claim, nodes, masks, rows, {}, ())
        return [None if slot == NOTHING else shelf.volume(slot).name for slot in found.tolist()]

    assert names() == ["b", "a", "b", None]
    nodes.set_node(decode_node(node_document("n0", labels={"host": "n1", "zone": "z9"})))
    assert names() == ["a", "a", "b", None]


@pytest.mark.parametrize(
    ("operator", "values", "reached"),
    [
        (Operator.IN, ("n1",), ["n1"]),
        (Operator.NOT_IN, ("n1",), ["n0", "n2", "n3"]),
        (Operator.IN, ("n1", "n2"), ["n1", "n2"]),
        (Operator.EXISTS, (), ["n0", "n1", "n2", "n3"]),
        (Operator.DOES_NOT_EXIST, (), []),
    ],
)
def test_volume_with_one_label_term_reaches_the_nodes_with_it(
    operator: Operator, values: tuple[str, ...], reached: list[str]
) -> None:
    store, nodes = ObjectStore(), table()
    affinity = NodeSelector((NodeTerm((Requirement("host", operator, values),)),))
    store.set(PV, PersistentVolume(name="v", storage_class="fast", phase="Available", node_affinity=affinity))
    claim = PersistentVolumeClaim(name="c", namespace="t", uid="u", storage_class="fast")
    shelf = VolumeIndex(store).of_class("fast")
    found = shelf.find(claim, nodes, RowMasks(store), np.arange(len(NODES)), {}, ())
    assert [name for name, slot in zip(NODES, found.tolist(), strict=True) if slot != NOTHING] == reached


def test_added_node_is_reached_by_its_local_volumes() -> None:
    """However many volumes there are before it."""
    store, nodes = ObjectStore(), NodeTable()
    index, masks = VolumeIndex(store), RowMasks(store)
    names = [f"n{i}" for i in range(8)]
    for name in names:
        affinity = at("host", name)
        store.set(PV, PersistentVolume(name=name, storage_class="fast", phase="Available", node_affinity=affinity))
    claim = PersistentVolumeClaim(name="c", namespace="t", uid="u", storage_class="fast")
    joining = ["without", *names]
    for count, name in enumerate(joining, 1):
        nodes.set_node(decode_node(node_document(name, labels={"host": name})))
        shelf = index.of_class("fast")
        found = shelf.find(claim, nodes, masks, np.arange(count), {}, ())
        told = [None if slot == NOTHING else shelf.volume(slot).name for slot in found.tolist()]
        assert told == [None, *names][:count]


def test_empty_volume_groups_are_removed_and_others_stay() -> None:
    """One volume changes its affinity all the time; larger ones stand on the first two nodes, the largest reaches all."""
    store, nodes = ObjectStore(), table()
    index, masks = VolumeIndex(store), RowMasks(store)
    claim = PersistentVolumeClaim(name="c", namespace="t", uid="u", storage_class="fast")
    store.set(PV, PersistentVolume(name="v", storage_class="fast", phase="Available"))
    index.of_class("fast")
    for name, size, affinity in (("on-n0", 1, at("host", "n0")), ("on-n1", 1, at("host", "n1")), ("on-all", 2, None)):
        standing = PersistentVolume(name=name, storage_class="fast", phase="Available", node_affinity=affinity)
        store.set(PV, _rounded(msgspec.structs.replace(standing, capacity_nano=size * NANO)))
    counts = set()
    for number in range(3_000):
        affinity = at("host", f"n{number % 4}", f"m{number}")
        store.set(PV, PersistentVolume(name="v", storage_class="fast", phase="Available", node_affinity=affinity))
        shelf = index.of_class("fast")
        counts.add(len(shelf._groups))
        if number % 499 == 498:
            found = shelf.find(claim, nodes, masks, np.arange(len(NODES)), {}, ())
            names = [shelf.volume(slot).name for slot in found.tolist()]
            expected = ["on-n0", "on-n1", "on-all", "on-all"]
            expected[number % 4] = "v"
            assert names == expected
    assert max(counts) == 2 * len(shelf) + GROUPS_SPARE + 1
