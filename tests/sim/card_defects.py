"""Defects of nodes that share GPUs: holds of cards, pods that device plugins could confuse, and locks. Seeds from `OWNED_FROM` on
find them, where there are such nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
from msgspec.structs import replace

from domains.gpu import lock_keeper
from domains.gpu.card_arrays import CORES, SHARERS, CardArrays
from domains.gpu.card_row import UNCONFIRMED, CardRow
from domains.gpu.cards import Amount, Card, NodeCards, Use
from domains.gpu.dialects import gpushare, vgpu_text, volcano
from domains.gpu.dialects.hami import HamiDialect
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.gpu_share import GpuShare
from domains.gpu.lock_keeper import LockKeeper
from domains.gpu.node_lock import LOCKED, lock_text
from domains.gpu.row_locks import RowLocks
from multisched.framework.events import Hint
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from tests.sim.defects import defect, put

NOBODY = frozenset[str]()


# -- whom a device plugin could confuse --------------------------------------------------------------------------------


@defect
def unserved_pods_refuse_nothing() -> None:
    """A node takes the next pod though its device plugin has not served the last one."""
    genuine = CardRow.barred

    def barred(self: CardRow, demand: Any, modes: Any) -> str:
        found = genuine(self, demand, modes)
        if found != UNCONFIRMED:
            return found
        return LOCKED if self.is_locked else genuine(self, replace(demand, confusions=NOBODY), modes)

    put(CardRow, "barred", barred)
    put(CardArrays, "unconfirmed", lambda self, rows, confusions: np.zeros(len(rows), np.bool_))


@defect
def numbers_of_cards_are_not_compared() -> None:
    """Volcano's device plugin is assumed to compare the memory of pods."""
    put(volcano, "_confusions", lambda pod: frozenset({f"volcano/{pod.requests.get(volcano.MEMORY)}"}))


@defect
def totals_of_memory_are_not_compared() -> None:
    """Two pods of the same total wait for gpushare's plugin on one node, if one of them comes first."""
    put(gpushare, "_confusions", lambda memory: NOBODY)


@defect
def restarts_forget_unserved_pods() -> None:
    """Pods that await their device plugin are forgotten at a restart."""
    genuine = GpuLedger.restore

    def restore(self: GpuLedger, pod: Pod, row: int) -> None:
        is_new = self.hold(pod.uid, row) is None
        genuine(self, pod, row)
        held = self.hold(pod.uid, row)
        if is_new and held is not None:
            self._hold(pod, row, replace(held, awaits=NOBODY))

    put(GpuLedger, "restore", restore)


@defect
def answers_of_plugins_are_not_read() -> None:
    """A pod that was assumed here awaits its device plugin forever."""
    genuine = GpuLedger.restore

    def restore(self: GpuLedger, pod: Pod, row: int) -> None:
        if self.hold(pod.uid, row) is None:
            genuine(self, pod, row)

    put(GpuLedger, "restore", restore)


@defect
def answers_of_plugins_requeue_nothing() -> None:
    """A pod that was refused because of an unserved pod is not requeued when that is served."""
    put(GpuShare, "_after_confirmation", lambda self, pod, old, new: Hint.SKIP)


@defect
def bindings_carry_no_times() -> None:
    """A binding has no annotation with the time of the assumption, which device plugins read."""

    def timed_annotations(self: GpuLedger, annotations: Mapping[str, str], now: datetime) -> Mapping[str, str]:
        return {}

    put(GpuLedger, "timed_annotations", timed_annotations)


@defect
def forged_answers_stay() -> None:
    """A binding does not overwrite forged annotations."""
    genuine = GpuLedger.take

    def take(self: GpuLedger, pod: Pod, row: int, choice: object = None) -> Mapping[str, str]:
        answer = genuine(self, pod, row, choice)
        return {key: text for key, text in answer.items() if key not in pod.annotations}

    put(GpuLedger, "take", take)


# -- what a card holds -------------------------------------------------------------------------------------------------


@defect
def slots_of_a_card_are_whole_cards() -> None:
    """HAMi's register is ignored: a card that ten pods may share counts as ten."""
    put(HamiDialect, "cards", lambda self, node, objects: None)


@defect
def cards_are_shared_by_any_number() -> None:
    """The number of pods that may share a card is no limit."""
    genuine = Amount.of
    put(Amount, "of", lambda self, card: genuine(self, card)._replace(sharers=0))
    write = CardArrays.write

    def unlimited(self: CardArrays, row: int, cards: CardRow) -> None:
        write(self, row, cards)
        self._cards[SHARERS, : len(cards.node.cards), row] = 1

    put(CardArrays, "write", unlimited)


@defect
def cores_of_cards_are_not_counted() -> None:
    """Pods get more than all cores of a card."""
    genuine = Amount.of

    def of(self: Amount, card: Card) -> Use:
        return genuine(self, card)._replace(cores=0)

    put(Amount, "of", of)
    write = CardArrays.write

    def unlimited(self: CardArrays, row: int, cards: CardRow) -> None:
        write(self, row, cards)
        self._cards[CORES, : len(cards.node.cards), row] = 100

    put(CardArrays, "write", unlimited)


@defect
def second_containers_hold_nothing() -> None:
    """Only the cards of the first container with cards count in an annotation."""
    genuine = vgpu_text.shares_of

    def shares_of(containers: Any, init_count: int) -> Any:
        at = next((at for at, cards in enumerate(containers) if cards), 0)
        return genuine(containers[: at + 1], init_count)

    put(vgpu_text, "shares_of", shares_of)


@defect
def vanished_cards_are_free_when_they_are_back() -> None:
    """Pods lose their holds of a card that its node no longer registers."""
    genuine = CardRow.set_node

    def set_node(self: CardRow, node: NodeCards) -> None:
        there = {card.id for card in node.cards} | {card.index for card in node.cards}
        for uid, hold in self.holds.items():
            self.holds[uid] = replace(hold, shares=tuple(one for one in hold.shares if one.card in there))
        genuine(self, node)

    put(CardRow, "set_node", set_node)


@defect
def pods_that_end_slowly_give_their_cards_at_once() -> None:
    """A pod that is being deleted holds no card, though its containers run."""
    genuine = GpuLedger.restore

    def restore(self: GpuLedger, pod: Pod, row: int) -> None:
        if pod.is_deleting:
            self.release(pod.uid)
        else:
            genuine(self, pod, row)

    put(GpuLedger, "restore", restore)


# -- locks of nodes ----------------------------------------------------------------------------------------------------


@defect
def nodes_are_not_locked() -> None:
    """HAMi's node lock is not taken for the pod to be served."""

    async def take(self: LockKeeper, pod: Pod, node: str, key: str) -> Status:
        return SUCCESS

    put(LockKeeper, "take", take)


@defect
def locks_of_others_are_overwritten() -> None:
    """A node that another scheduler has locked is used, under a lock of ours."""
    put(RowLocks, "_is_used", lambda self, lock, cards: True)
    put(lock_keeper, "_text_if_free", lambda pod, text, now: lock_text(pod, now))


@defect
def locks_of_others_are_stale_at_once() -> None:
    """A lock that is in use is removed."""

    async def is_stale(self: LockKeeper, node: str, lock: Any, clock: Any) -> bool:
        return True

    put(LockKeeper, "_is_stale", is_stale)


@defect
def stale_locks_are_left() -> None:
    """A lock that expired, names no pod or is malformed is never removed."""

    async def is_stale(self: LockKeeper, node: str, lock: Any, clock: Any) -> bool:
        return False

    put(LockKeeper, "_is_stale", is_stale)


@defect
def locks_of_pods_that_were_not_bound_are_left() -> None:
    """A lock of ours stays until it expires when its pod is not bound."""
    put(LockKeeper, "_is_abandoned", lambda self, holder, node, lock, *, is_old: False)


@defect
def ended_locks_requeue_nothing() -> None:
    """A pod that was refused because of a lock is not requeued when the lock ends."""
    put(GpuShare, "_is_unlocked", lambda self, pod, before, after: False)
