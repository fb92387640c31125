"""LockKeeper: takes locks of nodes before binds, and removes stale ones, so that HAMi's device plugin finds the right pod.

A lock is stale if it is malformed (the plugin then refuses every pod), has expired, or names a pod that no longer exists, whose bind
failed, that runs already or on another node, or that a former leader was binding. Ages are computed here, because the ledger reads no
clock. Owned by GpuShare, one per domain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.node_lock import EXPIRES_AFTER, LOCKED, NodeLock, lock_text, read_lock
from multisched.framework.node_view import Rows
from multisched.framework.ports import Clock, LockAnswer, LockHolder, NodeLocks, UnreachableError
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod

logger = logging.getLogger(__name__)

ORPHANED_AFTER: Final = timedelta(seconds=5)
"""Minimum age at which a lock that another process of this program took counts as stale while its pod is unbound: until then, another
leader may be binding the pod."""
REVIEW_S: Final = 1.0
"""Interval at which unmatched locks are reviewed."""
UNSEEN_MAX_S: Final = 3.0
"""How long PreBind waits for a lock of another pod that a read shows and the watch does not: until it is removed, or the watch shows it."""
UNSEEN_RETRY_S: Final = 0.25
"""Between two reads of such a lock."""
SHOWN_MAX: Final = 128
"""Characters of a lock in the log."""


class LockKeeper:
    """The locks of one domain's nodes."""

    def __init__(
        self,
        ledger: GpuLedger,
        locks: Callable[[], NodeLocks],
        served: frozenset[str] | None,
        rows: Callable[[], Rows] | None,
    ) -> None:
        """`locks`: see `PluginContext.node_locks`. `served`: see `GpuLedger`. `rows`: those of the domain; None: all."""
        self._ledger = ledger
        self._locks = locks
        self._served = served
        self._rows = rows
        self._woken = asyncio.Event()
        self._seen: dict[str, tuple[str, float]] = {}
        """Node -> text of its lock, and when it was first seen."""
        self._taken: dict[str, str] = {}
        """Node -> pod for which this process took the lock."""

    def wake(self) -> None:
        """Makes `run` review locks now: there is an unmatched lock."""
        self._woken.set()

    # -- before the bind ---------------------------------------------------------------------------------------------

    async def take(self, pod: Pod, node: str, key: str) -> Status:
        """Takes the node's lock for the pod. Refuses the node if another pod holds it.

        A refused pod is requeued by the event that shows the lock's removal. If the watch has not shown the lock, it may never show it, and
        then no event requeues the pod. So PreBind waits here up to UNSEEN_MAX_S, then returns an error, and the pod backs off.
        (When the watch shows the lock, the bind is cancelled.)
        """
        reply = await self._locks().change(node, key, partial(_text_if_free, pod))
        left_s = UNSEEN_MAX_S
        while reply.answer is LockAnswer.KEPT and not self._watch_shows_lock(node) and left_s > 0:
            await asyncio.sleep(UNSEEN_RETRY_S)
            left_s -= UNSEEN_RETRY_S
            reply = await self._locks().change(node, key, partial(_text_if_free, pod))
        match reply.answer:
            case LockAnswer.DONE:
                self._taken[node] = pod.key
                return SUCCESS
            case LockAnswer.KEPT if self._watch_shows_lock(node):
                return Status.unschedulable(LOCKED)
            case LockAnswer.KEPT:
                return Status.error(f"node {node}: another pod has its lock {key}, which the watch has not shown yet")
            case LockAnswer.REFUSED:
                return Status.error(
                    f"node {node}: its lock {key} cannot be written: {reply.message}; allow patch of nodes"
                )
            case _:
                return Status.error(f"node {node}: its lock {key} was not written: {reply.message}")

    def _watch_shows_lock(self, node: str) -> bool:
        """Reports whether the watch has shown a lock of another pod on the node."""
        return node in self._ledger.unmatched_locks()

    # -- unmatched locks -----------------------------------------------------------------------------------------------

    async def run(self, clock: Clock) -> None:
        """Removes stale locks of the domain's nodes, until cancelled."""
        while True:
            self._woken.clear()
            found = self._found()
            self._seen = {node: seen for node, seen in self._seen.items() if node in found}
            if found and self._locks().may_write:
                await self._review(found, clock)
            try:
                async with asyncio.timeout(REVIEW_S if found else None):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _found(self) -> Mapping[str, tuple[str, NodeLock]]:
        """Returns node -> annotation and lock, of the domain's nodes with a lock that no pod being bound uses."""
        found = self._ledger.unmatched_locks()
        if not found or self._rows is None:
            return found
        mine = set(self._rows().tolist())
        return {node: lock for node, lock in found.items() if self._ledger.row_of_node(node) in mine}

    async def _review(self, found: Mapping[str, tuple[str, NodeLock]], clock: Clock) -> None:
        for node, (key, lock) in found.items():
            if not await self._is_stale(node, lock, clock):
                continue
            reply = await self._locks().change(node, key, partial(self._empty_if_unchanged, node, lock))
            if reply.answer is LockAnswer.DONE:
                logger.warning("removed a stale GPU lock", extra={"node": node, "lock": lock.text[:SHOWN_MAX]})

    async def _is_stale(self, node: str, lock: NodeLock, clock: Clock) -> bool:
        text, since_s = self._seen.get(node, ("", 0.0))
        if text != lock.text:
            since_s = clock.monotonic()
            self._seen[node] = lock.text, since_s
        seen_for = timedelta(seconds=clock.monotonic() - since_s)
        if lock.at is None or seen_for > EXPIRES_AFTER or lock.has_expired(clock.now()):
            return True
        if not lock.pod:
            return False
        is_old = max(seen_for, clock.now() - lock.at) > ORPHANED_AFTER
        if not is_old and self._ledger.has_pod(node, lock.pod_key):
            return False  # the device plugin has served the pod and removes the lock next
        try:
            holder = await self._locks().holder(lock.namespace, lock.pod)
        except UnreachableError:
            return False
        return holder is None or (
            self._is_of_this_program(holder) and self._is_abandoned(holder, node, lock, is_old=is_old)
        )

    def _is_of_this_program(self, holder: LockHolder) -> bool:
        """Reports whether the pod uses a scheduler of this program. Locks of another scheduler are not removed while their pod exists."""
        return self._served is None or holder.scheduler_name in self._served

    def _is_abandoned(self, holder: LockHolder, node: str, lock: NodeLock, *, is_old: bool) -> bool:
        """Reports whether the pod of a lock no longer needs it. Pods that this process is binding never reach this check: `unmatched_locks`
        leaves them out."""
        if holder.node:
            return holder.node != node or holder.phase != "Pending"
        return is_old or self._taken.get(node) == lock.pod_key

    def _empty_if_unchanged(self, node: str, lock: NodeLock, text: str, now: datetime) -> str | None:
        """Returns an empty text, which removes the lock, if the node still has it and no pod has come to use it; else None."""
        found = self._ledger.unmatched_locks().get(node)
        return "" if text == lock.text and found is not None and found[1] == lock else None


def _text_if_free(pod: Pod, text: str, now: datetime) -> str | None:
    """Returns the pod's lock if no other pod holds the node's lock; else None."""
    lock = read_lock(text)
    is_free = not text or lock.at is None or lock.pod_key == pod.key or lock.has_expired(now)
    return lock_text(pod, now) if is_free else None
