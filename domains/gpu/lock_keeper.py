"""LockKeeper: takes locks of nodes before binds, and removes stale ones, so that HAMi's device plugin finds the right pod.

Stale are locks of a pod whose bind failed, of a former leader, expired ones, those of vanished pods, and malformed ones, with which
the plugin refuses every pod. Ages are judged here, because the ledger reads no clock. Owned by GpuShare, one per domain.
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
"""A lock of this program that this process did not take may belong to a pod that another domain's leader binds until this age."""
REVIEW_S: Final = 1.0
"""Interval at which locks of others are judged again."""
UNSEEN_MAX_S: Final = 3.0
"""Time that PreBind waits for a lock of another pod that only a read has shown: to end, or to come with the watch."""
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
        """Reviews the locks of others now: one is new, or a pod that had one gave up its node."""
        self._woken.set()

    # -- before the bind ---------------------------------------------------------------------------------------------

    async def take(self, pod: Pod, node: str, key: str) -> Status:
        """Takes the node's lock for the pod. Refuses the node if another pod holds it.

        A refused pod waits for the event that ends the lock. If the watch has not shown the lock yet, it may never do, so there may be
        no such event. Such a pod waits here, and then backs off. (When the watch shows the lock, the bind is cancelled.)
        """
        reply = await self._locks().change(node, key, partial(_taken, pod))
        left_s = UNSEEN_MAX_S
        while reply.answer is LockAnswer.KEPT and not self._is_seen(node) and left_s > 0:
            await asyncio.sleep(UNSEEN_RETRY_S)
            left_s -= UNSEEN_RETRY_S
            reply = await self._locks().change(node, key, partial(_taken, pod))
        match reply.answer:
            case LockAnswer.DONE:
                self._taken[node] = pod.key
                return SUCCESS
            case LockAnswer.KEPT if self._is_seen(node):
                return Status.unschedulable(LOCKED)
            case LockAnswer.KEPT:
                return Status.error(f"node {node}: another pod has its lock {key}, which the watch has not shown yet")
            case LockAnswer.REFUSED:
                return Status.error(
                    f"node {node}: its lock {key} cannot be written: {reply.message}; allow patch of nodes"
                )
            case _:
                return Status.error(f"node {node}: its lock {key} was not written: {reply.message}")

    def _is_seen(self, node: str) -> bool:
        """Reports whether the watch has shown a lock of another pod on the node."""
        return node in self._ledger.foreign_locks()

    # -- locks of others -----------------------------------------------------------------------------------------------

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
        found = self._ledger.foreign_locks()
        if not found or self._rows is None:
            return found
        mine = set(self._rows().tolist())
        return {node: lock for node, lock in found.items() if self._ledger.row_of_node(node) in mine}

    async def _review(self, found: Mapping[str, tuple[str, NodeLock]], clock: Clock) -> None:
        for node, (key, lock) in found.items():
            if not await self._is_stale(node, lock, clock):
                continue
            reply = await self._locks().change(node, key, partial(self._removed, node, lock))
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
        return holder is None or (self._is_served(holder) and self._is_left(holder, node, lock, is_old=is_old))

    def _is_served(self, holder: LockHolder) -> bool:
        """Reports whether the lock is this program's. That of another scheduler is left to it while its pod exists."""
        return self._served is None or holder.scheduler_name in self._served

    def _is_left(self, holder: LockHolder, node: str, lock: NodeLock, *, is_old: bool) -> bool:
        """Reports whether the pod of a lock needs it no longer. No pod that this process binds does: see `foreign_locks`."""
        if holder.node:
            return holder.node != node or holder.phase != "Pending"
        return is_old or self._taken.get(node) == lock.pod_key

    def _removed(self, node: str, lock: NodeLock, text: str, now: datetime) -> str | None:
        found = self._ledger.foreign_locks().get(node)
        return "" if text == lock.text and found is not None and found[1] == lock else None


def _taken(pod: Pod, text: str, now: datetime) -> str | None:
    lock = read_lock(text)
    is_free = not text or lock.at is None or lock.pod_key == pod.key or lock.has_expired(now)
    return lock_text(pod, now) if is_free else None
