"""The audit of the ledgers: what each holds, and sums up by row, beside what the cache's pods say (I4).

Mends a ledger on the spot, since no event of the API server is about it. Called by the audit, once in each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from multisched.framework.ledger import Ledger, SummingLedger, rebuild
from multisched.model.objects import Pod
from multisched.shell.audit_slices import SLICE_ITEMS, SLICE_ROWS, slices
from multisched.state.cluster_cache import NO_ROW, ClusterCache

logger = logging.getLogger(__name__)

Tell = Callable[[str, str], None]
"""(pod, node or uid, what is wrong there): told as it is mended."""


class LedgerAudit:
    """Of one cache. Holds nothing between audits."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    async def check(self, tell: Tell) -> None:
        """Compares all ledgers; those that were broken are trusted again afterwards. Never fails for what a ledger raises."""
        registry = self._cache.ledgers
        for ledger in registry:
            before = registry.broken.get(ledger.name)
            try:
                await self._check_ledger(ledger, tell)
            except Exception as error:  # noqa: BLE001 - a plugin ends here
                logger.warning("audit: ledger failed", extra={"ledger": ledger.name, "error": str(error)})
            else:
                if registry.broken.get(ledger.name) is before:  # it may have failed again while it was checked
                    registry.trust(ledger.name)

    async def _check_ledger(self, ledger: Ledger, tell: Tell) -> None:
        if ledger.name in self._cache.ledgers.broken:
            for row, node in list(self._cache.nodes.live_rows()):
                ledger.set_node(row, node)  # it may have missed some
        held = ledger.held()
        for rows in slices(range(self._cache.nodes.size), SLICE_ROWS):
            self._check_holds(ledger, rows, held, tell)
            self._check_sums(ledger, rows, tell)
            await asyncio.sleep(0)
        for uids in slices(list(held), SLICE_ITEMS):
            self._check_leaks(ledger, uids, tell)
            await asyncio.sleep(0)

    def _check_holds(self, ledger: Ledger, rows: Sequence[int], held: Mapping[str, object], tell: Tell) -> None:
        """Rebuilds these rows of the ledger from their confirmed pods and compares; assumed pods are known to it alone."""
        fresh = ledger.empty_copy()
        pods: dict[str, tuple[Pod, int]] = {}
        for row in rows:
            node = self._cache.nodes.node_at(row)
            if node is None:
                continue
            fresh.set_node(row, node)
            for uid, pod in self._cache.nodes.pods_by_uid(row).items():
                if self._cache.is_assumed(uid):
                    continue
                pods[uid] = (pod, row)
                if fresh.concerns(pod):
                    fresh.restore(pod, row)
        wanted = fresh.held()
        if all(held.get(uid) == wanted.get(uid) for uid in pods):
            return
        held = ledger.held()  # the snapshot is older than this moment
        for uid, (pod, row) in pods.items():
            if held.get(uid) != wanted.get(uid):
                tell(pod.key, f"ledger {ledger.name} holds {held.get(uid)}, its pod says {wanted.get(uid)}")
                ledger.release(uid)
                if ledger.concerns(pod):
                    ledger.restore(pod, row)

    def _check_sums(self, ledger: Ledger, rows: Sequence[int], tell: Tell) -> None:
        """What a ledger sums up by row is what the row's pods make of it; assumed ones have their bindings' annotations."""
        if not isinstance(ledger, SummingLedger):
            return
        table = self._cache.nodes
        nodes = {row: node for row in rows if (node := table.node_at(row)) is not None}
        pods = ((pod, row) for row in nodes for pod in table.pods_by_uid(row).values())
        fresh = rebuild(ledger, nodes.items(), pods)
        assert isinstance(fresh, SummingLedger), f"the copy of {ledger.name} is another kind of ledger"
        for row, node in nodes.items():
            here, wanted = ledger.sums(row), fresh.sums(row)
            if here != wanted:
                tell(node.name, f"ledger {ledger.name} has {here} for the row, its pods make {wanted}")
                ledger.recount(row)

    def _check_leaks(self, ledger: Ledger, uids: Sequence[str], tell: Tell) -> None:
        """Nothing is held for a pod that stands on no row."""
        leaked = [uid for uid in uids if not self._stands(uid)]
        if not leaked:
            return
        held = ledger.held()
        for uid in leaked:
            if uid in held:
                tell(uid, f"ledger {ledger.name} holds {held[uid]} for a pod that is on no node")
                ledger.release(uid)

    def _stands(self, uid: str) -> bool:
        entry = self._cache.placed(uid)
        return entry is not None and entry.row != NO_ROW
