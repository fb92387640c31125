"""The audit of the ledgers: compares each ledger's holds and sums with a copy rebuilt from the cache's pods (I4).

Repairs a ledger directly, because a relist would not. Called once per audit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from multisched.framework.ledger import Ledger, SummingLedger, rebuild
from multisched.model.objects import Node, Pod
from multisched.shell.audit.slices import SLICE_ITEMS, SLICE_ROWS, slices
from multisched.state.cluster_cache import NO_ROW, ClusterCache
from multisched.state.ledgers import RowlessLedger

logger = logging.getLogger(__name__)

Report = Callable[[str, str], None]
"""Records a difference. Arguments: a pod's key or uid, a node's name or a ledger's name; what was wrong."""


Placed = tuple[Pod, int]
"""A pod and its row."""
Nodes = Mapping[int, Node]
"""Row -> its node."""


class LedgerAudit:
    """The audit of one cache's ledgers. Has no state between audits."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    async def check(self, report: Report) -> None:
        """Compares and repairs all ledgers. Then trusts a broken one again if its check did not fail. Logs exceptions of ledgers."""
        registry = self._cache.ledgers
        for ledger in registry:
            before = registry.broken.get(ledger.name)
            try:
                await self._check_ledger(ledger, report)
            except Exception as error:  # noqa: BLE001 - plugin errors are contained here
                logger.warning("audit: ledger failed", extra={"ledger": ledger.name, "error": str(error)})
            else:
                if registry.broken.get(ledger.name) is before:  # the ledger may have failed again during the check
                    registry.trust(ledger.name)

    async def _check_ledger(self, ledger: Ledger, report: Report) -> None:
        if ledger.name in self._cache.ledgers.broken:
            for row, node in list(self._cache.nodes.live_rows()):
                ledger.set_node(row, node)  # a broken ledger may have missed nodes
        table, held = self._cache.nodes, ledger.held()
        for rows in slices(range(table.size), SLICE_ROWS):
            nodes = {row: found for row in rows if (found := table.node_at(row)) is not None}
            pods = [(pod, row) for row in nodes for pod in table.pods_by_uid(row).values()]
            confirmed = self._confirmed(pods)
            rebuilt = rebuild(ledger, nodes.items(), confirmed)
            self._check_holds(ledger, confirmed, rebuilt, held, report)
            if isinstance(ledger, SummingLedger) and not isinstance(ledger, RowlessLedger):
                if len(confirmed) < len(pods):
                    rebuilt = rebuild(ledger, nodes.items(), pods)
                self._check_sums(ledger, nodes, rebuilt, report)
            await asyncio.sleep(0)
        if isinstance(ledger, RowlessLedger):
            for uids in slices(self._cache.stray_uids(), SLICE_ITEMS):
                confirmed = self._confirmed(self._placed(uids))
                self._check_holds(ledger, confirmed, rebuild(ledger, (), confirmed), held, report)
                await asyncio.sleep(0)
            self._check_sums_of_cluster(ledger, report)
        for uids in slices(list(held), SLICE_ITEMS):
            self._check_leaks(ledger, uids, report)
            await asyncio.sleep(0)

    def _placed(self, uids: Sequence[str]) -> list[Placed]:
        """Returns the pods that are still in the cache."""
        entries = (self._cache.placed(uid) for uid in uids)
        return [(entry.pod, entry.row) for entry in entries if entry is not None]

    def _confirmed(self, placed: Sequence[Placed]) -> Sequence[Placed]:
        """Returns the pods that are not assumed. Holds of assumed pods are known only to the ledger itself."""
        return [one for one in placed if not self._cache.is_assumed(one[0].uid)]

    @staticmethod
    def _check_holds(
        ledger: Ledger, confirmed: Sequence[Placed], rebuilt: Ledger, held: Mapping[str, object], report: Report
    ) -> None:
        """Compares the holds of confirmed pods with those of the ledger that was rebuilt from them."""
        wanted = rebuilt.held()
        if all(held.get(pod.uid) == wanted.get(pod.uid) for pod, _ in confirmed):
            return
        held = ledger.held()  # the copy may be outdated
        for pod, row in confirmed:
            uid = pod.uid
            if held.get(uid) != wanted.get(uid):
                report(pod.key, f"ledger {ledger.name} holds {held.get(uid)}, its pod says {wanted.get(uid)}")
                ledger.release(uid)
                if ledger.is_used_by(pod):
                    ledger.restore(pod, row)

    @staticmethod
    def _check_sums(ledger: SummingLedger, nodes: Nodes, rebuilt: Ledger, report: Report) -> None:
        """Compares a ledger's sums per row with those rebuilt from the row's pods, including assumed ones."""
        assert isinstance(rebuilt, SummingLedger), f"the copy of {ledger.name} is another kind of ledger"
        for row, node in nodes.items():
            here, wanted = ledger.sums(row), rebuilt.sums(row)
            if here != wanted:
                report(node.name, f"ledger {ledger.name} has {here} for the row, the sum of its pods is {wanted}")
                ledger.recount(row)

    @staticmethod
    def _check_sums_of_cluster(ledger: RowlessLedger, report: Report) -> None:
        """Compares the sums of a cluster ledger with the sums of its holds, which `_check_holds` has checked."""
        here = ledger.cluster.sums()
        ledger.cluster.recount()
        wanted = ledger.cluster.sums()
        if here != wanted:
            report(ledger.name, f"ledger {ledger.name} has {here} in total, the sum of its holds is {wanted}")

    def _check_leaks(self, ledger: Ledger, uids: Sequence[str], report: Report) -> None:
        """Releases holds of pods that are on no row; for a cluster ledger, of pods that are not in the cache."""
        leaked = [uid for uid in uids if not self._is_placed(ledger, uid)]
        if not leaked:
            return
        held = ledger.held()
        for uid in leaked:
            if uid in held:
                report(uid, f"ledger {ledger.name} holds {held[uid]} for a pod that is on no node")
                ledger.release(uid)

    def _is_placed(self, ledger: Ledger, uid: str) -> bool:
        entry = self._cache.placed(uid)
        return entry is not None and (entry.row != NO_ROW or isinstance(ledger, RowlessLedger))
