"""What one process's ledger has of the GPUs of each node."""

from __future__ import annotations

from collections.abc import Sequence

from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold
from multisched.state.cluster_cache import ClusterCache


class Gpus:
    """Reads, and changes nothing."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    def free(self, name: str) -> Sequence[int]:
        """Thousandths that are free of each GPU of the node."""
        ledger, row = self._ledger(), self._cache.nodes.row_of(name)
        return ledger.cards(row).free_milli if ledger is not None and row is not None else ()

    def hold(self, uid: str, row: int) -> Hold | None:
        """What the pod has of the node's."""
        ledger = self._ledger()
        return ledger.hold(uid, row) if ledger is not None else None

    def _ledger(self) -> GpuLedger | None:
        return next((one for one in self._cache.ledgers if isinstance(one, GpuLedger)), None)
