"""Defects that the program once had where production goes: each was found by hand first, and seeds are to find it again."""

from __future__ import annotations

from typing import Any

from multisched.client.reflector import Reflector
from multisched.plugins.inter_pod_affinity import InterPodAffinity
from multisched.shell.audit import Audit
from multisched.shell.ingest import PodIngest
from multisched.shell.send_check import SendCheck
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from tests.sim.defects import DEFECTS, defect, put

__all__ = ["DEFECTS"]


@defect
def unsent_binds_not_looked_at_again() -> None:
    """A bind goes out though its node was cordoned, tainted, shrank or left the domain meanwhile."""
    put(SendCheck, "refusal", lambda self, placed, seen: None)


@defect
def assumed_pods_keep_their_size() -> None:
    """A pod that is resized on its way to a node counts as it was decided."""
    put(ClusterCache, "revise", lambda self, pod: True)


@defect
def edits_take_devices_back() -> None:
    """What a running pod holds of its devices goes by its annotations as they are now."""
    put(ClusterCache, "_settled", lambda self, before, after: after)


@defect
def false_answers_believed() -> None:
    """Nobody asks about a pod that counts as bound by an answer alone."""

    async def believe(self: Audit, now: Any, began_s: float) -> None:
        del self, now, began_s

    put(Audit, "_check_answers", believe)


@defect
def joined_rows_used_at_once() -> None:
    """A node that joins a domain is used though the binds of its last domain may be under way."""
    genuine = DomainRows.set_node

    def set_node(self: DomainRows, row: int, node: Any) -> None:
        self.may_join = lambda node: True
        genuine(self, row, node)

    put(DomainRows, "set_node", set_node)


@defect
def restored_history_forgets_first() -> None:
    """Where history went back, all that is known goes before the new list is there."""
    genuine = Reflector._may_use

    def may_use(self: Reflector, version: str) -> bool:
        is_used = genuine(self, version)
        if is_used and self._history.must_start_over(self._path):
            self._delete_unseen(list(self._known._known))
            self._known._known.clear()
        return is_used

    put(Reflector, "_may_use", may_use)


@defect
def bad_text_ends_the_process() -> None:
    """An object that is not UTF-8 raises where it is read."""
    genuine = PodIngest.upsert

    def upsert(self: PodIngest, key: str, raw: Any) -> None:
        bytes(raw).decode()
        genuine(self, key, raw)

    put(PodIngest, "upsert", upsert)


@defect
def roles_left_out_of_the_signature() -> None:
    """Pods of one spec are one class to InterPodAffinity, whether its own terms are about them or not."""
    put(InterPodAffinity, "sign", lambda self, pod: id(pod.spec.pod_affinity))


@defect
def going_pods_spread_against() -> None:
    """A pod that is deleted on its way to a node is counted as one that stays."""
    genuine = ClusterCache.revise

    def revise(self: ClusterCache, pod: Any) -> bool:
        return True if pod.is_deleting else genuine(self, pod)

    put(ClusterCache, "revise", revise)
