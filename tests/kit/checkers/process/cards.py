"""Compares holds of cards in one process with the received pods: the held amounts, and whether the hold awaits a device plugin."""

from __future__ import annotations

from collections.abc import Iterator

from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from tests.kit.checkers.card_rules import ANNOTATED_MODES, held_of, is_unserved, mode_of
from tests.kit.checkers.delivered_state import DeliveredState


class Cards:
    """Compares the holds of the GPU ledger. Changes nothing."""

    def __init__(self, cache: ClusterCache, delivered: DeliveredState) -> None:
        self._cache, self._delivered = cache, delivered

    def faults(self) -> Iterator[str]:
        """Yields violations of I4: a hold awaits the device plugin exactly until the plugin has served the pod."""
        ledger = next((one for one in self._cache.ledgers if isinstance(one, GpuLedger)), None)
        if ledger is None:
            return
        held = ledger.held()
        for uid, pod in self._delivered.pods.items():
            if (
                not pod.node
                or pod.is_terminal
                or mode_of(pod) not in ANNOTATED_MODES
                or pod.node not in self._delivered.nodes
            ):
                continue
            found = held.get(uid)
            if not isinstance(found, tuple):
                yield f"I4: {pod.key} holds no cards, and was delivered on {pod.node}"
                continue
            yield from self._faults_of(pod, found[1])

    def _faults_of(self, pod: Pod, hold: Hold) -> Iterator[str]:
        if bool(hold.awaits) != is_unserved(pod):
            says = "waits for its device plugin" if hold.awaits else "was served by its device plugin"
            yield f"I4: by its hold {pod.key} {says}, and it was delivered otherwise"
        wanted = {card: use.get("memory", 0) for card, use in held_of(pod, mode_of(pod)).items()}
        here = {str(share.card): share.amount.memory for share in hold.shares}
        if here != wanted:
            yield f"I4: {pod.key} holds {here}, and was delivered with {wanted}"
