"""GpuLedger: what pods hold of GPU cards, on every node, for all domains of the process.

Owns the card rows and mirrors them in `CardArrays`, which GpuShare reads. No card is overcommitted (I1). If a node's device
plugin chooses cards itself, whole and fractional pods never share the node, since the kubelet could allocate a shared card to a
whole pod. What a pod holds is read from its binding's annotations by the dialect that wrote them, so a restarted process holds
the same. Written only by the cache and commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec
import numpy as np

from domains.gpu.card_arrays import CardArrays
from domains.gpu.card_row import CardOrder, CardRow
from domains.gpu.cards import NO_CARDS, Mode, NodeCards
from domains.gpu.demand import CardFilter, GpuDemand, indices_text
from domains.gpu.dialect import Choice, Dialect, NoTimedAnnotations
from domains.gpu.dialects import (
    CARDS_FIELDS,
    DIALECTS,
    all_keys,
    node_cards,
    sources_problem,
)
from domains.gpu.held_cards import excess_of, unit_names
from domains.gpu.hold import Hold
from domains.gpu.node_lock import NodeLock, NodeLockKey
from domains.gpu.pod_reader import PodReader
from domains.gpu.row_locks import RowLocks
from multisched.framework.device_demand import NO_DEMAND
from multisched.framework.node_view import Bools, NodeView, Rows
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

KEPT: Final = "the pods keep what they hold, and no other pod gets it. Restore the cards, or delete the pods"
NO_ANSWER: Final[Mapping[str, str]] = {}
LABEL_MAX: Final = 63
"""Characters of a label's value."""
_INTEGERS: Final = frozenset({int})


class GpuLedger:
    """Implements `AnnotatedLedger`, `DeviceLedger`, `SummingLedger`, `ChoiceLedger` and `TimedAnnotationLedger` of `framework.ledger`."""

    name = "gpu-devices"

    def __init__(
        self,
        served: frozenset[str] | None = None,
        objects: ObjectsView | None = None,
        dialects: tuple[Dialect, ...] = DIALECTS,
    ) -> None:
        """`served`: the schedulerNames of this program's domains; None: all names. `objects`: what is known of cards besides nodes."""
        requested, written, reported = all_keys(dialects)
        self.written = written
        self.reported = reported
        self.annotations = (requested | written) - reported
        self.node_annotations = frozenset().union(*(dialect.node_annotations for dialect in dialects))
        self.lock_annotations = frozenset(one.node_lock.annotation for one in dialects if one.node_lock)
        self._served = served
        self._objects = objects
        self._dialects = dialects
        self._timed = [dialect for dialect in dialects if not isinstance(dialect, NoTimedAnnotations)]
        self._labels = [pair for dialect in dialects for pair in dialect.labels.items()]
        """Label of bindings -> the annotation with its value."""
        self._pods = PodReader(served, dialects)
        self.is_used_by, self.demands, self.dialect = self._pods.uses_gpus, self._pods.demands, self._pods.dialect
        self._accepted: tuple[Pod, int, object] | None = None
        """Pod, row and choice that `fits` accepted last, or that `choose` found; None after any change of cards or holds."""
        self.reads_objects = tuple({kind: None for dialect in dialects for kind in dialect.reads_objects})
        self._rows: dict[int, CardRow] = {}
        self._row_of: dict[str, int] = {}
        self._answers: dict[str, Mapping[str, str]] = {}
        """uid -> the annotations that its binding carries."""
        self._nodes: dict[int, Node] = {}
        """Nodes of all rows, since an object may come to describe cards of any of them."""
        self._row_of_node: dict[str, int] = {}
        self.locks = RowLocks(dialects)
        self.arrays = CardArrays()

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def version(self, row: int) -> int:
        return self.arrays.version(row)

    def fits(self, pod: Pod, row: int, choice: object = None) -> str:
        """Returns why `take` would fail on the row, as text for users; empty if it would succeed."""
        accepted = self._accepted
        if accepted is not None and accepted[0] is pod and accepted[1] == row and accepted[2] == choice:
            return ""  # `choose`, `fits` and `take` follow one another in one step
        demands = self.demands(pod)
        if not demands:
            return ""
        if self._row_of.get(pod.uid) == row:
            names = tuple(self._index_of(row, name) for name in self._rows[row].holds[pod.uid].devices)
            return "" if choice in (None, names) else f"the pod holds GPUs {indices_text(names)} there"
        cards = self.cards(row)
        demand, modes = demands.on(cards.node.mode)
        refusal = cards.refusal(demand, modes) if choice is None else cards.refusal_of(demand, _indices(choice), modes)
        self._accepted = None if refusal else (pod, row, choice)
        return refusal

    def take(self, pod: Pod, row: int, choice: object = None) -> Mapping[str, str]:
        """Takes the chosen cards, by default the best-fitting ones, and returns the annotations with them, and an empty text for
        each other key that only a scheduler may write: otherwise plugins, and this program after a restart, would read it.

        Returns the same annotations if the pod already holds cards there. Fails an assertion if the demand does not fit, and
        raises TypeError or ValueError for an invalid choice.
        """
        demands = self.demands(pod)
        if not demands:
            return _emptied(pod, self.written)
        refusal = self.fits(pod, row, choice)
        assert not refusal, f"I1: pod {pod.key} takes GPUs where they do not fit: {refusal}"
        if self.hold(pod.uid, row) is not None:
            return self._answers.get(pod.uid, {})
        cards = self.cards(row)
        demand, _ = demands.on(cards.node.mode)
        annotations = _emptied(pod, self.written)
        if not demand.is_counted:
            chosen = cards.choose(demand) or () if choice is None else _indices(choice)
            annotations = {**annotations, **self._answer(pod, demand, row, cards, chosen)}
        hold = self._pods.hold_with(pod, annotations)
        if hold is not None:
            self._hold(pod, row, hold)
            self._answers[pod.uid] = annotations
        return annotations

    def timed_annotations(self, annotations: Mapping[str, str], now: datetime) -> Mapping[str, str]:
        """See `framework.ledger.TimedAnnotationLedger`."""
        found: dict[str, str] = {}
        written = [key for key, text in annotations.items() if text]
        for dialect in self._timed:
            if not dialect.written.isdisjoint(written):
                found.update(dialect.timed_annotations(now))
        return found

    def binding_labels(self, annotations: Mapping[str, str]) -> Mapping[str, str]:
        """See `framework.ledger.TimedAnnotationLedger`. Leaves out a node's name that is too long for a label."""
        return {label: text for label, key in self._labels if 0 < len(text := annotations.get(key, "")) <= LABEL_MAX}

    def restore(self, pod: Pod, row: int) -> None:
        """Adds a bound pod's hold, from its spec and annotations. Of an existing hold on this row only the confirmation changes."""
        held = self.hold(pod.uid, row)
        hold = self._pods.hold_of(pod) if held is None else self._pods.hold_again(pod, held)
        if held is not None and (hold is None or hold.awaits == held.awaits):
            return
        if hold is None:
            self.release(pod.uid)
        else:
            self._hold(pod, row, hold if held is None else msgspec.structs.replace(held, awaits=hold.awaits))

    def release(self, uid: str) -> None:
        row = self._row_of.pop(uid, None)
        if row is not None:
            self._answers.pop(uid, None)
            self.locks.pod_keys.pop(uid, None)
            self._rows[row].release(uid)
            self._write(row)

    def set_node(self, row: int, node: Node | None) -> None:
        before = self._nodes.pop(row, None)
        if before is not None:
            del self._row_of_node[before.name]
        if node is not None:
            self._nodes[row] = node
            self._row_of_node[node.name] = row
        self._read(row)

    def object_changed(self, kind: ObjectKind, changed: ClusterObject) -> Collection[int]:
        """See `framework.ledger.ObservingLedger`."""
        row = self._row_of_node.get(kind.definition.node_of(changed) or changed.name)
        if row is None:
            return ()
        version = self.version(row)
        self._read(row)
        return () if self.version(row) == version else (row,)

    def held(self) -> Mapping[str, object]:
        """Returns uid -> (row, Hold)."""
        return {uid: (row, self._rows[row].holds[uid]) for uid, row in self._row_of.items()}

    def empty_copy(self) -> GpuLedger:
        """Returns an empty ledger, with the last readable cards of nodes whose data cannot be read now."""
        copied = GpuLedger(self._served, self._objects, self._dialects)
        for row, cards in self._rows.items():
            if cards.node.problems:
                copied._rows[row] = kept = CardRow()
                kept.set_node(cards.node)
                copied.arrays.write(row, kept)
        return copied

    def sums(self, row: int) -> object:
        """Returns the row's entries in the arrays that filters and scores read."""
        return self.arrays.sums(row)

    def recount(self, row: int) -> None:
        cards = self._rows.setdefault(row, CardRow())
        cards.set_node(cards.node)  # everything anew
        self._accepted = None
        self.arrays.write(row, cards)
        self._drop_if_empty(row)

    def device_demand(self, pod: Pod) -> Mapping[str, int]:
        """See `framework.ledger.DeviceLedger`. Whole devices are in the pod's requests already; an invalid demand counts as none."""
        if not self.is_used_by(pod):
            return NO_DEMAND
        return self.demands(pod).thousandths(pod, self._pods.hold_of(pod) if pod.node else None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def cards(self, row: int) -> CardRow:
        """Returns the row's cards, read only; use `copy()` for an overlay."""
        return self._rows.get(row) or CardRow()

    def rows_with_cards(self) -> Iterable[tuple[int, str, CardRow]]:
        """Yields row, node name and cards of each node with GPUs or holds."""
        for row, cards in self._rows.items():
            yield row, self._nodes[row].name if row in self._nodes else "", cards

    def problems(self, row: int, nodes: NodeView) -> Iterator[str]:
        """Yields what is wrong with the data of the row's node, with the field and the fix. `nodes`: what pods request of it."""
        cards, node = self._rows.get(row), self._nodes.get(row)
        if cards is None:  # no dialect reads the node
            return
        yield from cards.node.problems
        if node is None:
            return
        twice = sources_problem(node, self._objects, self._dialects)
        if twice:
            yield twice
        excess = excess_of(cards)
        if excess:
            field = CARDS_FIELDS.get(cards.node.mode, CARDS_FIELDS[Mode.WHOLE])
            yield f"{field}: {excess}; {KEPT}"
        for name in unit_names(cards.node.mode, node):
            requested, units = int(nodes.requested(name)[row]), node.allocatable[name]
            if requested > units:
                yield f"status.allocatable[{name}]: pods hold {requested}, and {units} are published; {KEPT}"

    def hold(self, uid: str, row: int) -> Hold | None:
        """Returns the pod's hold on this row; None if it has none."""
        return self._rows[row].holds[uid] if self._row_of.get(uid) == row else None

    def has_room(self, demand: GpuDemand, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether the cards have room, on rows whose mode serves the demand."""
        if demand.is_counted:
            return np.ones(len(rows), np.bool_)
        found = self.arrays.has_room(demand, demand.parts[0], rows)
        for part in demand.parts[1:]:
            found &= self.arrays.has_room(demand, part, rows)
        is_simple = len(demand.parts) == 1 and not (demand.one_numa or demand.one_link)
        unsure, wanted = found, demand.filter
        if wanted.names_ids:
            named = self.arrays.has_named_card(wanted, rows)
            if wanted.ids:
                found &= named
            unsure = found & named if is_simple else found
        elif is_simple:
            return found
        for place in np.flatnonzero(unsure).tolist():
            found[place] = self.cards(int(rows[place])).choose(demand) is not None
        return found

    def lacks_card(self, wanted: CardFilter, rows: Rows) -> Bools:
        """Returns bool[len(rows)]: whether the node has no card that the filter accepts, free or not."""
        found = self.arrays.lacks_model(wanted, rows)
        if wanted.names_ids:
            named = self.arrays.has_named_card(wanted, rows)
            if wanted.ids:
                found |= ~named
            for place in np.flatnonzero(named & ~found).tolist():
                found[place] = self.cards(int(rows[place])).lacks(wanted)
        return found

    def choose(self, pod: Pod, row: int, order_of: Callable[[GpuDemand, CardRow], CardOrder]) -> Choice | None:
        """Returns the first cards of the row in this order that the pod may have; None if it does not fit, or takes no cards."""
        demands, cards = self.demands(pod), self.cards(row)
        if not demands:
            return None
        demand, modes = demands.on(cards.node.mode)
        if demand.is_counted or cards.barred(demand, modes):
            return None
        found = cards.choose(demand, order_of(demand, cards))
        is_new = found is not None and pod.uid not in self._row_of
        self._accepted = (pod, row, found) if is_new else None
        return found

    def expected_hold(self, pod: Pod, demand: GpuDemand, cards: CardRow, order: CardOrder) -> Hold | None:
        """Returns what a pod without a node would hold of these cards, taken in this order; unknown cards if it does not fit."""
        if demand.problem or demand.is_counted:
            return None
        modes = self.dialect(demand).modes
        chosen = None if cards.barred(demand, modes) else cards.choose(demand, order)
        if chosen is None:
            return Hold(demand.dialect, demand.count, demand.amount, is_whole=demand.is_whole, modes=modes)
        answer = self.dialect(demand).answer(pod, demand, "", cards.node, chosen)
        return self.dialect(demand).hold(self._pods.bound(pod, answer), is_ours=True)

    def confusions_ended_by(self, before: Pod, after: Pod) -> frozenset[str]:
        """Returns the confusions that end since the device plugin has allocated the pod's cards; none if the node is locked until later."""
        if self.reported.isdisjoint(after.annotations) and self.written.isdisjoint(after.annotations):
            return frozenset()
        old, new = self._pods.hold_of(before), self._pods.hold_of(after)
        row = self._row_of_node.get(after.node)
        if old is None or (row is not None and self.cards(row).is_locked):
            return frozenset()
        return old.awaits - new.awaits if new is not None else old.awaits

    def lock_key(self, node: str) -> NodeLockKey | None:
        """Returns the lock of the node; None if nodes of its mode have none."""
        row = self._row_of_node.get(node)
        return None if row is None else self.locks.key(self.cards(row).node.mode)

    def row_of_node(self, name: str) -> int | None:
        return self._row_of_node.get(name)

    def has_pod(self, node: str, key: str) -> bool:
        """Reports whether the pod NAMESPACE/NAME holds cards of the node."""
        holds = self.cards(self._row_of_node.get(node, -1)).holds
        return any(self.locks.pod_keys[uid] == key for uid in holds)

    def unmatched_locks(self) -> Mapping[str, tuple[str, NodeLock]]:
        """Returns node -> annotation and lock, of nodes whose lock names no pod that waits there for the device plugin."""
        found: dict[str, tuple[str, NodeLock]] = {}
        for row, lock in self.locks.of.items():
            cards = self.cards(row)
            if row in self._nodes and cards.is_locked:
                found[self._nodes[row].name] = self.locks.keys[cards.node.mode].annotation, lock
        return found

    def has_new_cards(self, before: Node | None, after: Node) -> bool:
        """Reports whether a node has GPUs, and published other cards before, or none."""
        found = node_cards(after, self._objects, self._dialects)
        if found == NO_CARDS:
            return False
        return before is None or found != node_cards(before, self._objects, self._dialects)

    # -- updates ---------------------------------------------------------------------------------------------------

    def _answer(self, pod: Pod, demand: GpuDemand, row: int, cards: CardRow, chosen: Choice) -> Mapping[str, str]:
        node = self._nodes[row].name if row in self._nodes else ""
        return self.dialect(demand).answer(pod, demand, node, cards.node, chosen)

    def _read(self, row: int) -> None:
        """Reads the cards of the row's node. If the data cannot be read, the last valid cards count, with the problem."""
        node = self._nodes.get(row)
        found = NO_CARDS if node is None else node_cards(node, self._objects, self._dialects)
        cards = self._rows.get(row)
        if cards is None:
            if found == NO_CARDS:
                return
            cards = self._rows[row] = CardRow()
        if found.problems and not found.cards and cards.node.mode is found.mode:
            found = NodeCards(found.mode, cards.node.cards, cards.node.is_indexed, found.problems)
        has_new_lock = self.locks.read(row, node, found.mode)
        if found != cards.node:
            cards.set_node(found)
            self._write(row)
        elif has_new_lock:
            self._write(row)
        self._drop_if_empty(row)

    def _write(self, row: int) -> None:
        """Shows the row's cards to filters and scores, after its node, lock or holds changed."""
        cards, self._accepted = self._rows[row], None
        self.locks.renew(row, cards)
        self.arrays.write(row, cards)

    def _hold(self, pod: Pod, row: int, hold: Hold) -> None:
        uid = pod.uid
        if self._row_of.get(uid, row) != row:
            self.release(uid)
        if row not in self._rows:
            self._rows[row] = CardRow()
        self._rows[row].hold(uid, hold)
        self._row_of[uid] = row
        self.locks.pod_keys[uid] = pod.key
        self._write(row)

    def _index_of(self, row: int, name: int | str) -> int:
        """Returns a card's index; -1 if the node does not have it now."""
        if isinstance(name, int):
            return name
        return next((card.index for card in self.cards(row).node.cards if card.id == name), -1)

    def _drop_if_empty(self, row: int) -> None:
        """Drops a row without GPUs and holds, since most nodes have no GPU."""
        cards = self._rows[row]
        if not cards.holds and cards.node == NO_CARDS and not cards.is_locked:
            del self._rows[row]


def _emptied(pod: Pod, written: frozenset[str]) -> Mapping[str, str]:
    """Returns an empty text for each of these annotations of the pod."""
    if written.isdisjoint(pod.annotations):
        return NO_ANSWER
    return dict.fromkeys(written.intersection(pod.annotations), "")


def _indices(choice: object) -> Choice:
    """Returns a plugin's choice as card indices. Raises TypeError if it is something else."""
    if not isinstance(choice, tuple) or not _INTEGERS.issuperset(map(type, choice)):
        raise TypeError(f"{choice!r} is not a tuple of device indices")
    return choice
