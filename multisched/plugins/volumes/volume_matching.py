"""ClassVolumes: finds, for all rows at once, the smallest volume of a storage class that matches a claim.

Owns one index per storage class, updated from changes of the object store. The index has sizes, modes and phases in arrays. Volumes with
equal node affinity form a group; a group reaches the rows that match its node affinity. The eligible volumes of a claim are ranked once;
the volume for a row is the first ranked one in the groups that reach the row. Used only by VolumeBinding's planner.
Source: kube-scheduler 1.36, component-helpers storage/volume/pv_helpers.go, FindMatchingVolume.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Int32, Int64, NodeView, Rows, any_true
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import PersistentVolume, PersistentVolumeClaim
from multisched.model.object_kinds import ObjectKind
from multisched.model.selectors import NodeSelector, Operator
from multisched.plugins.volumes.volume_masks import RowMasks

CLASSES_MAX = 256
"""Maximum number of indexed storage classes. Beyond it, all indexes are dropped, and rebuilt when needed."""

SLOTS_FIRST = 64
"""Initial size of the arrays."""
GROUPS_SPARE = 1_024
"""Empty groups are removed when the number of groups exceeds twice the number of volumes plus GROUPS_SPARE."""

NANO = 1_000_000_000
NOTHING = np.int32(-1)
"""No volume on this row."""

_LAST = np.int32(2**31 - 1)
_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_UNKNOWN_MODE = 1 << len(_MODES)
_PV = ObjectKind.PERSISTENT_VOLUME

Choice = Int32
"""int32[rows]: the slot of the volume on each row, or NOTHING."""


class ClassVolumes:
    """The volumes of one storage class. A slot is a volume's index in the arrays; free slots are reused."""

    def __init__(self) -> None:
        self._slot_of: dict[str, int] = {}
        self._volumes: list[PersistentVolume | None] = []
        self._size: Int64 = np.zeros(SLOTS_FIRST, np.int64)
        self._modes: Int32 = np.zeros(SLOTS_FIRST, np.int32)
        self._is_free: Bools = np.zeros(SLOTS_FIRST, np.bool_)
        self._group: Int32 = np.zeros(SLOTS_FIRST, np.int32)
        self._variant: Int32 = np.zeros(SLOTS_FIRST, np.int32)
        self._variants: dict[tuple[str, str], int] = {}
        """(volume mode, attributes class) -> number."""
        self._has_fractions = False
        """Whether the size of any volume is not a whole number of bytes."""
        self._free_slots: list[int] = []
        self._groups: dict[NodeSelector | None, int] = {None: 0}
        self._prebound: dict[tuple[str, str], set[int]] = {}
        """(namespace, name) of a claim -> slots of the volumes whose claimRef names it."""
        self._order: Int32 | None = None
        self._reach: tuple[int, int, Int32, Int32] | None = None
        """(nodes_version, number of groups, group of each pair, row of each pair)."""

    # -- updates ---------------------------------------------------------------------------------------------------

    def set(self, volume: PersistentVolume) -> None:
        """Adds or updates the volume."""
        slot = self._slot_of.get(volume.name)
        if slot is None:
            slot = self._slot_of[volume.name] = self._new_slot()
            self._order = None
        before = self._volumes[slot]
        if before is not None:
            self._drop_prebound(slot, before)
            if before.capacity_nano != volume.capacity_nano:
                self._order = None
        self._volumes[slot] = volume
        self._size[slot] = volume.capacity_bytes
        self._modes[slot] = _mode_bits(volume.access_modes)
        self._is_free[slot] = volume.claim is None and volume.phase == "Available" and is_usable(volume)
        variant = (volume.volume_mode, volume.attributes_class)
        self._variant[slot] = self._variants.setdefault(variant, len(self._variants))
        self._has_fractions |= bool(volume.capacity_nano % NANO)
        self._group[slot] = self._group_of(volume.node_affinity)
        if volume.claim is not None:
            self._prebound.setdefault((volume.claim.namespace, volume.claim.name), set()).add(slot)

    def remove(self, name: str) -> None:
        """Removes the volume; ignores unknown names."""
        slot = self._slot_of.pop(name, None)
        if slot is None:
            return
        before = self._volumes[slot]
        if before is not None:
            self._drop_prebound(slot, before)
        self._volumes[slot] = None
        self._free_slots.append(slot)
        self._order = None

    def __len__(self) -> int:
        return len(self._slot_of)

    def volume(self, slot: int) -> PersistentVolume:
        found = self._volumes[slot]
        assert found is not None, f"slot {slot} is empty"
        return found

    def _new_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._volumes.append(None)
        if len(self._volumes) > len(self._size):
            more = len(self._size)
            self._size = np.pad(self._size, (0, more))
            self._modes = np.pad(self._modes, (0, more))
            self._is_free = np.pad(self._is_free, (0, more))
            self._group = np.pad(self._group, (0, more))
            self._variant = np.pad(self._variant, (0, more))
        return len(self._volumes) - 1

    def _group_of(self, affinity: NodeSelector | None) -> int:
        """Returns the number of the group with this node affinity. Before that, removes empty groups if there are too many."""
        if len(self._groups) > 2 * len(self._slot_of) + GROUPS_SPARE:
            self._groups = {None: 0}
            self._reach = None
            for slot in self._slot_of.values():
                volume = self._volumes[slot]
                if volume is not None:
                    self._group[slot] = self._groups.setdefault(volume.node_affinity, len(self._groups))
        return self._groups.setdefault(affinity, len(self._groups))

    def _drop_prebound(self, slot: int, before: PersistentVolume) -> None:
        if before.claim is not None:
            key = (before.claim.namespace, before.claim.name)
            slots = self._prebound[key]
            slots.discard(slot)
            if not slots:
                del self._prebound[key]

    # -- matching --------------------------------------------------------------------------------------------------

    def find(
        self,
        claim: PersistentVolumeClaim,
        nodes: NodeView,
        masks: RowMasks,
        rows: Rows,
        assumed: Mapping[str, str],
        taken: Sequence[Choice],
    ) -> Choice:
        """Returns the volume that the claim would get on each row.

        `assumed`: volume name -> `claim_id` of the claim for which the volume is assumed. `taken`: choices for the pod's other claims,
        which are matched before this one.
        """
        found = np.full(len(rows), NOTHING, np.int32)
        is_open = np.ones(len(rows), np.bool_)
        for slot in self._bound_to(claim, assumed):
            here = is_open & ~_is_taken(slot, taken, len(rows))
            is_open &= ~here
            affinity = self.volume(slot).node_affinity
            if affinity is not None:
                here &= masks.affine(nodes, affinity)[rows]
            found[here] = slot
        if not any_true(is_open):
            return found
        ranked = self._eligible(claim, assumed)
        if len(ranked):
            first = self._first_on_rows(ranked, nodes, masks, rows, taken)
            found[is_open] = first[is_open]
        return found

    def _bound_to(self, claim: PersistentVolumeClaim, assumed: Mapping[str, str]) -> list[int]:
        """Returns the slots, sorted by volume name, of matching volumes that a user has pre-bound to the claim, or that are assumed for it.

        On rows where such a volume is not taken, no other free volume is considered.
        """
        slots = {
            slot for slot in self._prebound.get((claim.namespace, claim.name), ()) if _is_for(self.volume(slot), claim)
        }
        own = claim_id(claim)
        slots |= {
            slot
            for slot in (self._slot_of[name] for name, of in assumed.items() if of == own and name in self._slot_of)
            if self.volume(slot).claim is None
        }
        fitting = [slot for slot in slots if self._fits_bound(self.volume(slot), claim)]
        return sorted(fitting, key=lambda slot: self.volume(slot).name)

    @staticmethod
    def _fits_bound(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
        return (
            volume.capacity_nano >= claim.request_nano
            and volume.volume_mode == claim.volume_mode
            and volume.attributes_class == claim.attributes_class
            and is_usable(volume)
        )

    def _eligible(self, claim: PersistentVolumeClaim, assumed: Mapping[str, str]) -> Int32:
        """Returns slots of free volumes that match the claim regardless of the node, sorted by size and name."""
        variant = self._variants.get((claim.volume_mode, claim.attributes_class))
        if variant is None:
            return np.zeros(0, np.int32)
        wanted = _mode_bits(claim.access_modes)
        is_eligible = self._is_free & (self._size >= (claim.request_bytes or 0)) & (self._variant == variant)
        is_eligible &= (self._modes & wanted) == wanted
        for name in assumed:
            slot = self._slot_of.get(name)
            if slot is not None:
                is_eligible[slot] = False
        order = self._ordered()
        ranked: Int32 = order[is_eligible[order]]
        selector = claim.selector
        if selector is not None and selector.requirements:
            ranked = _kept(ranked, [selector.matches(self.volume(slot).labels) for slot in ranked.tolist()])
        if self._has_fractions or claim.request_nano % NANO:
            fits = [self.volume(slot).capacity_nano >= claim.request_nano for slot in ranked.tolist()]
            ranked = _kept(ranked, fits)
        return ranked

    def _ordered(self) -> Int32:
        """Returns all used slots, sorted by size and name."""
        if self._order is None:
            slots = sorted((self.volume(slot).capacity_nano, name, slot) for name, slot in self._slot_of.items())
            self._order = np.array([slot for _, _, slot in slots], np.int32)
        return self._order

    def _first_on_rows(
        self, ranked: Int32, nodes: NodeView, masks: RowMasks, rows: Rows, taken: Sequence[Choice]
    ) -> Choice:
        """Returns, for each row, the first volume of `ranked` whose group reaches the row and that is not taken there."""
        pair_group, pair_at = self._pairs(nodes, masks, rows)
        by_group = _Levels(self._group[ranked], len(self._groups))
        best = np.full(len(rows), _LAST, np.int32)
        for level in range(len(taken) + 1):
            ranks = by_group.ranks(level)
            everywhere = np.full(len(rows), ranks[0], np.int32)
            reached = ranks[pair_group]
            is_final = True
            for other in taken:
                for ranks_here, slots_here in ((everywhere, other), (reached, other[pair_at])):
                    is_taken = _is_same(ranked, ranks_here, slots_here)
                    if any_true(is_taken):
                        ranks_here[is_taken] = _LAST
                        is_final = False
            best = np.minimum(best, everywhere)
            np.minimum.at(best, pair_at, reached)
            if is_final:
                break  # no choice was taken, so the next volume of each group cannot rank higher
        found = np.full(len(rows), NOTHING, np.int32)
        hit = best != _LAST
        found[hit] = ranked[best[hit]]
        return found

    def _pairs(self, nodes: NodeView, masks: RowMasks, rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Returns (group, position in `rows`) for each pair of a group with node affinity and a row that it reaches."""
        reach = self._reach
        if reach is None or reach[0] != nodes.nodes_version or reach[1] != len(self._groups):
            reach = self._reach = (nodes.nodes_version, len(self._groups), *_reach_of(self._groups, nodes, masks))
        _, _, groups, at = reach
        position = np.full(len(nodes.taint_set), -1, np.intp)
        position[rows] = np.arange(len(rows))
        positions = position[at]
        asked = positions >= 0
        return groups[asked].astype(np.intp), positions[asked]


class VolumeIndex:
    """`ClassVolumes` by storage class, kept up to date with the object store."""

    def __init__(self, objects: ObjectsView) -> None:
        self._objects = objects
        self._classes: dict[str, ClassVolumes] = {}
        self._class_of: dict[str, str] = {}
        self._version = -1

    def of_class(self, storage_class: str) -> ClassVolumes:
        """Returns the current volumes of the class."""
        self._renew()
        known = self._classes.get(storage_class)
        if known is None:
            if len(self._classes) >= CLASSES_MAX:
                self._classes.clear()
                self._class_of.clear()
            known = self._classes[storage_class] = ClassVolumes()
            for volume in self._objects.volumes_of_class(storage_class):
                known.set(volume)
                self._class_of[volume.name] = storage_class
        return known

    def _renew(self) -> None:
        version = self._objects.version(_PV)
        if version == self._version:
            return
        changed: Collection[tuple[str, str]] | None = None
        if self._version >= 0:
            changed = self._objects.changed_since(_PV, self._version)
        self._version = version
        if changed is None:
            self._classes.clear()
            self._class_of.clear()
            return
        for _, name in changed:
            self._renew_one(name)

    def _renew_one(self, name: str) -> None:
        volume = self._objects.volume(name)
        before = self._class_of.get(name)
        if before is not None and (volume is None or volume.storage_class != before):
            self._classes[before].remove(name)
            del self._class_of[name]
        if volume is not None and volume.storage_class in self._classes:
            self._classes[volume.storage_class].set(volume)
            self._class_of[name] = volume.storage_class


class _Levels:
    """The ranks of the volumes of each group, the best first."""

    def __init__(self, groups: Int32, count: int) -> None:
        self._groups = groups
        self._count = count
        self._sorted: tuple[Int32, NDArray[np.intp], NDArray[np.intp]] | None = None

    def ranks(self, level: int) -> Int32:
        """Returns int32[groups]: the rank of each group's volume number `level`; _LAST if it has fewer."""
        found = np.full(self._count, _LAST, np.int32)
        if not level:
            # Assigned from last to first, so that each group keeps its first rank; takes a fifth of the time of a sort.
            found[self._groups[::-1]] = np.arange(len(self._groups) - 1, -1, -1, dtype=np.int32)
            return found
        by_group, start, end = self._by_group()
        at = start + level
        has = at < end
        found[has] = by_group[at[has]]
        return found

    def _by_group(self) -> tuple[Int32, NDArray[np.intp], NDArray[np.intp]]:
        """Returns the ranks sorted by group, with the start and end of each group."""
        if self._sorted is None:
            by_group = np.argsort(self._groups, kind="stable").astype(np.int32)
            groups = self._groups[by_group]
            every = np.arange(self._count)
            self._sorted = by_group, np.searchsorted(groups, every, "left"), np.searchsorted(groups, every, "right")
        return self._sorted


def _is_same(ranked: Int32, ranks: Int32, slots: Choice) -> Bools:
    """Returns bool[...]: the volume of each rank is that of the slot."""
    found = np.zeros(len(ranks), np.bool_)
    hit = ranks != _LAST
    found[hit] = ranked[ranks[hit]] == slots[hit]
    return found


def _reach_of(groups: Mapping[NodeSelector | None, int], nodes: NodeView, masks: RowMasks) -> tuple[Int32, Int32]:
    """Returns (group, row) of each row that a group's selector matches.

    Local disks have one group per node: these are looked up by label value, without a pass over all rows.
    """
    found_groups: list[Int32] = []
    found_rows: list[Int32] = []
    by_label: dict[str, tuple[list[int], list[int]]] = {}
    for selector, group in groups.items():
        if selector is None:
            continue
        label = _only_label(selector)
        if label is not None:
            of_key = by_label.setdefault(label[0], ([], []))
            of_key[0].append(group)
            of_key[1].append(nodes.label_code(*label))
            continue
        rows = np.flatnonzero(masks.affine(nodes, selector)).astype(np.int32)
        found_rows.append(rows)
        found_groups.append(np.full(len(rows), group, np.int32))
    for key, (of_groups, codes) in by_label.items():
        at, rows = _rows_with(nodes.label_codes(key), np.array(codes, np.int32))
        found_groups.append(np.array(of_groups, np.int32)[at])
        found_rows.append(rows)
    if not found_rows:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.concatenate(found_groups), np.concatenate(found_rows)


def _only_label(selector: NodeSelector) -> tuple[str, str] | None:
    """Returns the label and value if the selector requires exactly one label value; otherwise None."""
    if len(selector.terms) != 1 or not selector.terms[0].is_valid or selector.terms[0].fields:
        return None
    expressions = selector.terms[0].expressions
    if len(expressions) != 1 or expressions[0].operator is not Operator.IN or len(expressions[0].values) != 1:
        return None
    return expressions[0].key, expressions[0].values[0]


def _rows_with(column: Int32, codes: Int32) -> tuple[NDArray[np.intp], Int32]:
    """Returns (position in `codes`, row) of each row whose code is in `codes`; code 0 means no value."""
    order = np.argsort(column, kind="stable").astype(np.int32)
    ordered = column[order]
    start, end = np.searchsorted(ordered, codes, "left"), np.searchsorted(ordered, codes, "right")
    counts = np.where(codes != 0, end - start, 0)
    at = np.repeat(np.arange(len(codes)), counts)
    within = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    return at, order[start[at] + within]


def _is_taken(slot: int, taken: Sequence[Choice], count: int) -> Bools:
    """Returns bool[rows]: an earlier claim of the pod gets this volume on the row."""
    found = np.zeros(count, np.bool_)
    for other in taken:
        found |= other == slot
    return found


def _kept(slots: Int32, keep: Sequence[bool]) -> Int32:
    return slots[np.array(keep, np.bool_)] if len(slots) else slots


def claim_id(claim: PersistentVolumeClaim) -> str:
    """Returns an identifier that distinguishes a claim from a later one of the same name."""
    return claim.uid or claim.key


def is_usable(volume: PersistentVolume) -> bool:
    """Reports whether the volume is neither being deleted nor malformed."""
    return not volume.is_deleting and not volume.malformed


def _is_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Reports whether the volume's claimRef is this claim; a claimRef without uid is for any claim of that name."""
    return volume.claim is not None and volume.claim.uid in ("", claim.uid)


def _mode_bits(modes: Sequence[str]) -> int:
    bits = 0
    for mode in modes:
        bits |= 1 << _MODES.index(mode) if mode in _MODES else _UNKNOWN_MODE
    return bits
