"""PodDemands: the demands that affinity terms of placed pods make on incoming pods, summed by row for each kind of incoming pod.

A *group* is one affinity in one namespace, with the rows of its placed pods. An *index entry* (`AffinityIndexEntry`) has the sum of the
demands of all groups on incoming pods with certain labels in a namespace. It is built in one pass over all terms (`term_columns`), and
updated from a log of added and removed pods. So the cost of an attempt depends on what changed since the last one, and not on the number
of terms. Only a pod with new labels costs a pass over all terms. Groups whose terms require a label value are indexed by that value
(`tags_of`); if few groups can match a pod, only those are tested. So a thousand services, each with anti-affinity among its own
replicas, do not slow each other down.

Owned by `PodCounts`. Read through `PodCountsView.affinity_entry`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from multisched.framework.affinity_group import ANY_LABELS, AffinityGroup, Tag, tags_of
from multisched.framework.demand_rows import DemandRows
from multisched.framework.indexed_log import IndexedLog
from multisched.framework.row_sums import AnySum, no_sum, sum_of
from multisched.framework.term_columns import Column, IncomingPod, Int32, TermColumns
from multisched.model.placement import DemandKind, PodAffinity, PodDemand, demands_of

LOG_KEPT: Final = 4_096
"""Maximum number of changes that are applied to an entry; with more, it is rebuilt."""

WEIGHED_EVERY: Final = 64
"""Changes after which the size of an entry is computed again: most change it by a row."""
UNKNOWN_MAX: Final = 32
"""Maximum number of unevaluated groups that are evaluated for an entry one by one; with more, all groups are evaluated together."""

ENTRY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Memory limit of all entries; beyond it, the least recently used ones are dropped."""

ENTRIES_MIN: Final = 8
"""Number of entries that are kept even beyond ENTRY_BYTES_MAX."""

MAPPINGS_MAX: Final = 16_384
"""Maximum number of label mappings (by identity) whose entry is cached; beyond it, this cache is cleared."""

MAPPINGS_LABELS_MAX: Final = 262_144
"""Maximum number of labels in all these mappings, some 200 bytes each. The mappings may be of deleted pods."""

EFFECTS_MAX: Final = 1_024
"""Maximum number of distinct effects that one entry caches."""

DEAD_MIN: Final = 1 << 16
"""Total size (terms and values) of groups without pods at which the columns are rebuilt without these groups."""

PLACES_MAX: Final = 256
"""Maximum number of (group, row) pairs that are summed one by one; with more, all are summed together."""

UNKNOWN: Final = -1
"""Used instead of an index for a group that was not evaluated yet."""

_ENTRY_BYTES: Final = 1_000
_LABEL_BYTES: Final = 500
"""Per label of the incoming pod, which is in two mappings with their own strings."""
_KNOWN_BYTES: Final = 100
_EFFECT_BYTES: Final = 300


class TermKind(NamedTuple):
    """A kind of demand with a topology key; demands are summed per term kind.

    Preferred anti-affinity counts as preferred affinity with negative weights.
    """

    kind: DemandKind
    key: str


Effect = tuple[tuple[TermKind, int, int], ...]
"""The demands of one pod of a group on an incoming pod: (term kind, number of terms, their total weight) per term kind."""
_Key = tuple[PodAffinity, str]
_Seen = tuple[str, frozenset[tuple[str, str]], frozenset[tuple[str, str]]]
"""Namespace, those pod labels to which terms refer, and the labels of the namespace."""


class AffinityIndexEntry:
    """The demands of all groups on one kind of incoming pod."""

    __slots__ = (
        "_kinds_at",
        "effects",
        "incoming",
        "is_kept",
        "is_used",
        "kinds",
        "known_below",
        "number",
        "seen",
        "sums",
        "tags",
        "weighed_at",
        "weighed_bytes",
    )

    def __init__(self, incoming: IncomingPod, number: int) -> None:
        self.incoming = incoming
        self.tags: tuple[Tag, ...] = (ANY_LABELS, *incoming.labels.items())
        """Tags of the groups whose terms can select such pods."""
        self.number = number
        """A unique number, which identifies the entry in signatures."""
        self.sums: dict[TermKind, AnySum] = {}
        """Callers must not change it. A term kind is never removed, even if its sum becomes empty."""
        self.is_kept = True
        """False once the entry is no longer updated."""
        self.is_used = True
        """The entry was requested since `PodDemands` last tried to drop it."""
        self.weighed_bytes = self.weighed_at = 0
        """The size that `PodDemands` has counted for the entry, and the value of `seen` then."""
        self.seen = 0
        """Position in the log up to which changes are included."""
        self.known_below = 0
        """Groups missing in `effects` have no effect if their number is lower; otherwise they were not evaluated yet."""
        self.effects: dict[int, int] = {}
        """Number of a group -> index into `kinds` of the effect of one of its pods; 0: no effect, UNKNOWN: not evaluated yet."""
        self.kinds: list[Effect] = [()]
        """Distinct effects; the first one is empty."""
        self._kinds_at: dict[Effect, int] = {(): 0}

    def effect_at(self, group: int) -> int:
        """Returns the group's index into `kinds`, or UNKNOWN."""
        return self.effects.get(group, 0 if group < self.known_below else UNKNOWN)

    def add_kind(self, effect: Effect) -> int:
        """Returns the index of the effect in `kinds`, adding it if it is new."""
        found = self._kinds_at.setdefault(effect, len(self.kinds))
        if found == len(self.kinds):
            self.kinds.append(effect)
        return found

    def forget_kinds(self) -> None:
        """Clears the cached effects. Groups with an effect are evaluated again when they are needed."""
        self.kinds, self._kinds_at = [()], {(): 0}
        self.effects = {group: UNKNOWN if kind else 0 for group, kind in self.effects.items()}

    @property
    def is_silent(self) -> bool:
        """True if no placed pod makes a demand on such incoming pods now."""
        return not any(one.total for one in self.sums.values())

    @property
    def size_bytes(self) -> int:
        """The approximate size in bytes."""
        sums = sum(one.size_bytes for one in self.sums.values())
        effects = _KNOWN_BYTES * len(self.effects) + _EFFECT_BYTES * len(self.kinds)
        return _ENTRY_BYTES + _LABEL_BYTES * len(self.incoming.labels) + sums + effects

    def drop(self) -> None:
        """Empties the entry and marks it as no longer updated. Callers must request it again."""
        for one in self.sums.values():
            one.clear()
        self.sums, self.effects, self.known_below, self.is_kept = {}, {}, 0, False
        self.forget_kinds()

    def with_changes(self, changes: Iterable[tuple[int, Effect, int]]) -> AffinityIndexEntry:
        """Returns a copy with changes: (row, effect of a pod, 1 if the pod is added to the row or -1 if it is removed)."""
        found = AffinityIndexEntry(self.incoming, self.number)
        found.sums, found.is_kept = dict(self.sums), False
        for row, effect, sign in changes:
            for term_kind, terms, weight in effect:
                known = found.sums.get(term_kind)
                if known is None:
                    known = found.sums[term_kind] = no_sum(0)
                elif known is self.sums.get(term_kind):
                    known = found.sums[term_kind] = known.copy()
                known.add(row, sign * terms, sign * weight, 0)
        return found


class PodDemands:
    """The index entries, and the groups and terms from which they are built."""

    def __init__(self, is_topology: Callable[[str], bool] | None = None) -> None:
        """`is_topology`: reports whether any node has this label. Terms with other topology keys are ignored. None: all are used."""
        self._is_topology = is_topology
        self._columns = TermColumns()
        self._term_kinds: dict[TermKind, int] = {}
        self._kind_of, self._weights, self._group_of = Column(np.int32), Column(np.int32), Column(np.int32)
        """Columns with one value per term."""
        self._groups: dict[_Key, AffinityGroup] = {}
        """Includes groups without pods until the columns are rebuilt, because such pods may be placed again."""
        self._numbered: list[AffinityGroup] = []
        self._by_identity: dict[tuple[int, str], AffinityGroup] = {}
        self._places = DemandRows()
        self._living = self._size = self._dead = 0
        """Number of groups with both pods and terms; size of all groups; size of the groups without pods."""
        self._by_tag: dict[Tag, list[AffinityGroup]] = {}
        self._log: IndexedLog[tuple[int, int, int]] = IndexedLog(LOG_KEPT)
        """(number of the group, row, 1 if a pod was added or -1 if it was removed)."""
        self._entries: dict[_Seen, AffinityIndexEntry] = {}
        self._by_labels: dict[tuple[int, str], tuple[object, object, AffinityIndexEntry]] = {}
        self._labels_known = self._bytes = self._numbers_given = self._sequence = 0
        self.terms_looked_at = 0
        """Number of terms evaluated so far, as a measure of the work."""

    def __bool__(self) -> bool:
        """Reports whether any placed pod makes a demand."""
        return bool(self._living)

    @property
    def sequence(self) -> int:
        """Increases when a pod with demands is added or removed."""
        return self._log.end

    # -- writing ---------------------------------------------------------------------------------------------------

    def account(self, row: int, affinity: PodAffinity, namespace: str, sign: int) -> None:
        """Adds a pod with this affinity to the row (`sign` 1) or removes it (-1)."""
        group = self._group(affinity, namespace)
        if sign < 0 and row not in group.places:
            raise AssertionError(f"a pod of {namespace} leaves row {row}, where no pod with its affinity was counted")
        had_pods = bool(group.places)
        self._places.account(self._numbered, group, row, sign)
        self._note_life(group, bool(group.places) - had_pods)
        if group.terms:
            self._log.note((group.number, row, sign), group.tags)
        if self._dead > DEAD_MIN and 2 * self._dead > self._size:
            self._compact()

    def _note_life(self, group: AffinityGroup, change: int) -> None:
        """Updates the counters of groups. `change`: 1 if the group got its first pod, -1 if it lost its last one, else 0."""
        self._dead -= change * group.size
        self._living += change * bool(group.terms)

    def forget_row(self, row: int) -> None:
        """Removes all pods of the row, before the caller counts them again."""
        for group in [one for one in self._numbered if row in one.places]:
            for _ in range(self._places.pods(group.places[row])):
                self.account(row, group.affinity, group.namespace, -1)

    def topology_added(self) -> None:
        """Adds terms that were ignored until now, because no node had their topology key."""
        is_topology = self._is_topology
        moved = [d for d in self._groups.values() if is_topology is not None and any(map(is_topology, d.left_out))]
        for before in moved:
            del self._groups[before.affinity, before.namespace]
            after = self._added(before.affinity, before.namespace)
            after.places, before.places = before.places, {}
            self._places.renumber(after)
            if after.places:
                self._living += bool(after.terms) - bool(before.terms)
                self._dead += before.size - after.size
        if moved:
            self._by_identity.clear()
            self._drop_all_entries()

    # -- reading ---------------------------------------------------------------------------------------------------

    def affinity_entry(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> AffinityIndexEntry:
        """Returns the current entry for incoming pods with these labels. `labels`: interned by the decoder, and compared by identity."""
        key = (id(labels), namespace)
        known = self._by_labels.get(key)
        if known is not None and known[1] is namespace_labels and known[2].is_kept:
            entry = known[2]
        else:
            entry = self._looked_up(namespace, labels, namespace_labels)
            if len(self._by_labels) >= MAPPINGS_MAX or self._labels_known > MAPPINGS_LABELS_MAX:
                self._by_labels.clear()
                self._labels_known = 0
            self._labels_known += len(labels)
            self._by_labels[key] = (labels, namespace_labels, entry)  # kept so that their ids are not reused
        entry.is_used = True
        if entry.seen != self._log.end:
            self._catch_up(entry)
            self._make_room(entry)
        return entry

    def effect(self, incoming: IncomingPod, affinity: PodAffinity, namespace: str) -> Effect:
        """Returns the demands of one placed pod with this affinity on the incoming pod `incoming`."""
        group = self._known(affinity, namespace)
        if group is None:
            return effect_on(incoming, affinity, namespace)
        entry = self.affinity_entry(*incoming)
        kind = self._kind(entry, group)  # before `entry.kinds` is read: it may rebuild that list
        self._weigh(entry)
        return entry.kinds[kind]

    # -- checking --------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Hashable, dict[int, int]]]:
        """Yields, for each group with pods, its key (see `key_of`) and row -> number of its pods there."""
        for group in self._numbered:
            if group.places:
                yield id(group), {row: self._places.pods(place) for row, place in group.places.items()}

    def key_of(self, affinity: PodAffinity, namespace: str) -> Hashable:
        """Returns the key of the group of pods with this affinity; if there is no such group, a key that no group has."""
        return id(self._known(affinity, namespace))

    def faults(self) -> list[str]:
        """Returns the differences between each entry and a newly built one."""
        found = []
        for entry in self._entries.values():
            if entry.seen != self._log.end:
                self._catch_up(entry)
            fresh = AffinityIndexEntry(entry.incoming, 0)
            self._make(fresh)
            said, wanted = effects_by_kind(entry), effects_by_kind(fresh)
            if said != wanted:
                found.append(f"demands on {entry.incoming}: counted {said}, expected {wanted}")
        return found

    # -- entries --------------------------------------------------------------------------------------------------

    def _looked_up(
        self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]
    ) -> AffinityIndexEntry:
        keys = self._columns.keys
        seen = {key: value for key, value in labels.items() if key in keys}
        at = (namespace, frozenset(seen.items()), frozenset(namespace_labels.items()))
        entry = self._entries.get(at)
        if entry is None:
            self._numbers_given += 1
            entry = self._entries[at] = AffinityIndexEntry(
                IncomingPod(namespace, seen, namespace_labels), self._numbers_given
            )
            self._make(entry)
            self._weigh(entry)
            self._make_room(entry)
        return entry

    def _weigh(self, entry: AffinityIndexEntry) -> None:
        before, entry.weighed_bytes = entry.weighed_bytes, entry.size_bytes
        self._bytes += entry.weighed_bytes - before
        entry.weighed_at = entry.seen

    def _make_room(self, asked: AffinityIndexEntry) -> None:
        """Drops entries until they fit the limit: those not used since this function last examined them. Keeps the entry `asked`."""
        while self._bytes >= ENTRY_BYTES_MAX and len(self._entries) > ENTRIES_MIN:
            at, entry = next(iter(self._entries.items()))
            del self._entries[at]
            if entry.is_used or entry is asked:
                entry.is_used = False
                self._entries[at] = entry
            else:
                self._bytes -= entry.weighed_bytes
                entry.drop()

    def _drop_all_entries(self) -> None:
        for entry in self._entries.values():
            entry.drop()
        self._entries.clear()
        self._by_labels.clear()
        self._bytes = 0

    def _make(self, entry: AffinityIndexEntry) -> None:
        """Builds the entry: group by group if few groups can match the incoming pod, else from all terms at once."""
        entry.sums, entry.effects, entry.known_below = {}, {}, 0
        entry.forget_kinds()
        named = self._named(entry.tags)
        if named is None:
            self._make_by_columns(entry)
        else:
            for group in named:
                if group.places:
                    self._add_group(entry, group)
                else:  # pods of the group may be placed again
                    entry.effects[group.number] = UNKNOWN
        entry.known_below = len(self._numbered)
        entry.seen = self._log.end

    def _named(self, tags: Iterable[Tag]) -> list[AffinityGroup] | None:
        """Returns the groups with one of the tags; None if these groups, or their rows, are too many."""
        found: dict[int, AffinityGroup] = {}
        places = 0
        for tag in tags:
            known = self._by_tag.get(tag, ())
            if len(known) > UNKNOWN_MAX:
                return None
            for group in known:
                if group.number not in found:
                    found[group.number] = group
                    places += len(group.places)
            if len(found) > UNKNOWN_MAX or places > PLACES_MAX:
                return None
        return list(found.values())

    def _make_by_columns(self, entry: AffinityIndexEntry) -> None:
        self.terms_looked_at += self._columns.terms
        terms = self._columns.about(entry.incoming, self._columns.all()).nonzero()[0]
        kinds, of, weights = (column.view().take(terms) for column in (self._kind_of, self._group_of, self._weights))
        by_number = list(self._term_kinds)
        for number in np.bincount(kinds).nonzero()[0].tolist():
            at = kinds == number
            entry.sums[by_number[number]] = self._summed(of[at], weights[at])
        entry.effects = dict.fromkeys(of.tolist(), UNKNOWN)

    def _add_group(self, entry: AffinityIndexEntry, group: AffinityGroup) -> None:
        kind = self._kind(entry, group)  # before `entry.kinds` is read: it may rebuild that list
        if kind:
            for row, place in group.places.items():
                self._add(entry, entry.kinds[kind], row, self._places.pods(place))

    def _add(self, entry: AffinityIndexEntry, effect: Effect, row: int, pods: int) -> None:
        """Adds `pods` pods with that effect to the row."""
        for term_kind, terms, weight in effect:
            found = entry.sums.get(term_kind)
            if found is None:
                found = entry.sums[term_kind] = no_sum(self._tick())
            found.add(row, pods * terms, pods * weight, self._tick())

    def _summed(self, groups: Int32, weights: Int32) -> AnySum:
        """Returns the terms and weights by row, given the group and weight of each term."""
        count = len(self._numbered)
        terms, weighed = (
            self._places.summed(each)
            for each in (np.bincount(groups, minlength=count), np.bincount(groups, weights, minlength=count))
        )
        return sum_of(terms, weighed, self._tick())

    def _catch_up(self, entry: AffinityIndexEntry) -> None:
        """Applies the changes since the entry was last requested."""
        if not self._caught_up(entry):
            self._make(entry)
            self._weigh(entry)
        elif entry.seen - entry.weighed_at >= WEIGHED_EVERY:
            self._weigh(entry)

    def _caught_up(self, entry: AffinityIndexEntry) -> bool:
        """Applies the changes one by one. Returns False if they are too many."""
        happened = self._log.since(entry.seen, entry.tags)
        if happened is None:
            return False
        entry.seen = self._log.end
        unknown = {number for number, _, _ in happened if entry.effect_at(number) == UNKNOWN}
        if unknown:
            if len(unknown) > UNKNOWN_MAX or len(entry.kinds) + len(unknown) > EFFECTS_MAX:
                return False
            for number in unknown:
                self._kind(entry, self._numbered[number])
        for number, row, sign in happened:
            kind = entry.effects.get(number)  # a group that is missing has no effect
            if kind:
                self._add(entry, entry.kinds[kind], row, sign)
        return True

    def _kind(self, entry: AffinityIndexEntry, group: AffinityGroup) -> int:
        """Returns the index of the group's effect in the entry's `kinds`."""
        known = entry.effect_at(group.number)
        if known != UNKNOWN:
            return known
        if len(entry.kinds) >= EFFECTS_MAX:
            entry.forget_kinds()
        block = group.block
        self.terms_looked_at += group.terms
        terms = self._columns.about(entry.incoming, block).nonzero()[0] + block.start
        kinds = self._kind_of.array.take(terms).tolist()
        weights = self._weights.array.take(terms).tolist()
        by_number = list(self._term_kinds)
        kind = entry.add_kind(_joined((by_number[at], weight) for at, weight in zip(kinds, weights, strict=True)))
        entry.effects[group.number] = kind
        return kind

    # -- groups -------------------------------------------------------------------------------------------------

    def _known(self, affinity: PodAffinity, namespace: str) -> AffinityGroup | None:
        key = (id(affinity), namespace)
        known = self._by_identity.get(key)
        if known is None:
            known = self._groups.get((affinity, namespace))
            if known is not None and known.affinity is affinity:  # the group keeps it, so its id is not reused
                self._by_identity[key] = known
        return known

    def _group(self, affinity: PodAffinity, namespace: str) -> AffinityGroup:
        return self._known(affinity, namespace) or self._added(affinity, namespace)

    def _added(self, affinity: PodAffinity, namespace: str) -> AffinityGroup:
        every = demands_of(affinity, namespace)
        demands = [one for one in every if self._is_topology is None or self._is_topology(one.topology_key)]
        number, known_keys = len(self._numbered), len(self._columns.keys)
        block = self._columns.add(demands)
        if len(self._columns.keys) != known_keys:
            self._by_labels.clear()  # terms now refer to more of a pod's labels
        term_kinds = self._term_kinds
        self._kind_of.extend([term_kinds.setdefault(_term_kind(one), len(term_kinds)) for one in demands])
        self._weights.extend([_weight(one) for one in demands])
        self._group_of.extend([number] * len(demands))
        left_out = frozenset(one.topology_key for one in every) - {one.topology_key for one in demands}
        group = AffinityGroup(affinity, namespace, number, block, left_out, tags_of(demands))
        self._index(group)
        self._numbered.append(group)
        self._groups[affinity, namespace] = group
        self._size += group.size
        self._dead += group.size
        return group

    def _index(self, group: AffinityGroup) -> None:
        for tag in group.tags:
            self._by_tag.setdefault(tag, []).append(group)

    def _compact(self) -> None:
        """Rebuilds the columns without the groups that have no pods."""
        living = [one for one in self._numbered if one.places]
        blocks, kept = self._columns.compact([one.block for one in living])
        number = np.zeros(len(self._numbered), np.int32)
        for at, (group, block) in enumerate(zip(living, blocks, strict=True)):
            number[group.number] = at
            group.number, group.block = at, block
        self._kind_of.replace(self._kind_of.view()[kept])
        self._weights.replace(self._weights.view()[kept])
        self._group_of.replace(number.take(self._group_of.view()[kept]))
        self._places.renumber_all(number)
        self._numbered = living
        self._groups = {(one.affinity, one.namespace): one for one in living}
        self._by_identity.clear()
        self._by_tag.clear()
        for group in living:
            self._index(group)
        self._size -= self._dead
        self._dead = 0
        self._log.clear()
        self._drop_all_entries()

    def _tick(self) -> int:
        self._sequence += 1
        return self._sequence


def effects_by_kind(entry: AffinityIndexEntry) -> dict[TermKind, dict[int, tuple[int, int]]]:
    """Returns term kind -> row -> (terms, weight), without empty rows and term kinds."""
    found = {}
    for term_kind, one in entry.sums.items():
        rows, terms, weights = (column.tolist() for column in one.columns())
        if rows:
            found[term_kind] = dict(zip(rows, zip(terms, weights, strict=True), strict=True))
    return found


def effect_on(incoming: IncomingPod, affinity: PodAffinity, namespace: str) -> Effect:
    """Returns the demands of a pod with this affinity in this namespace on the incoming pod `incoming`, computed term by term."""
    return _joined(
        (_term_kind(demand), _weight(demand))
        for demand in demands_of(affinity, namespace)
        if demand.matches(incoming.namespace, incoming.labels, incoming.namespace_labels)
    )


def _joined(weighted: Iterable[tuple[TermKind, int]]) -> Effect:
    found: dict[TermKind, tuple[int, int]] = {}
    for term_kind, weight in weighted:
        terms, weights = found.get(term_kind, (0, 0))
        found[term_kind] = (terms + 1, weights + weight)
    return tuple((term_kind, terms, weights) for term_kind, (terms, weights) in found.items())


def _term_kind(demand: PodDemand) -> TermKind:
    kind = DemandKind.PREFERRED if demand.kind is DemandKind.ANTI_PREFERRED else demand.kind
    return TermKind(kind, demand.topology_key)


def _weight(demand: PodDemand) -> int:
    return -demand.weight if demand.kind is DemandKind.ANTI_PREFERRED else demand.weight
