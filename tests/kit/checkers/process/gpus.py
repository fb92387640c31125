"""The GPUs of each node in the ledger of one process."""

from __future__ import annotations

from collections.abc import Sequence

from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold
from multisched.state.cluster_cache import ClusterCache


class Gpus:
    """Reads the GPU ledger. Changes nothing."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    def free(self, name: str) -> Sequence[int]:
        """Returns the free thousandths of each GPU of the node."""
        ledger, row = self._ledger(), self._cache.nodes.row_of(name)
        return ledger.cards(row).free_milli if ledger is not None and row is not None else ()

    def hold(self, uid: str, row: int) -> Hold | None:
        """Returns the pod's hold on the node; None for none."""
        ledger = self._ledger()
        return ledger.hold(uid, row) if ledger is not None else None

    def _ledger(self) -> GpuLedger | None:
        return next((one for one in self._cache.ledgers if isinstance(one, GpuLedger)), None)
