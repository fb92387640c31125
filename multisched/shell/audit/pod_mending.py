"""PodMending: what the audit asks of pods beyond what the watch brought, and how it mends them.

Owns nothing: it reads the cache and the queues, and mends through the ingest. Called by `Audit` and by its `PodSide` alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multisched.framework.events import ASSIGNED_POD_DELETE
from multisched.framework.ports import Clock
from multisched.model.decode import DecodeError, Decoder
from multisched.model.objects import Pod
from multisched.shell.ingest.pods_and_nodes import PodIngest, refusal_of
from multisched.shell.ingest.router import Router
from multisched.state.cluster_cache import ClusterCache


class PodMending:
    """Compares single pods with what is known here, and puts them right."""

    def __init__(
        self,
        pods: PodIngest,
        cache: ClusterCache,
        router: Router,
        decoder: Decoder,
        clock: Clock,
        *,
        going: Callable[[str], None],
    ) -> None:
        """`going`: as of `PodIngest`."""
        self._pods = pods
        self._cache = cache
        self._router = router
        self._decoder = decoder
        self._clock = clock
        self._going = going

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        """True if this pod must be known here: it is on a node, or it waits and one of our domains can take it."""
        try:
            pod = self._decoder.pod(raw)
        except DecodeError:
            return False
        if pod.is_terminal:
            return False
        if pod.node:
            return True
        return self._router.worker_of(pod) is not None and not pod.is_deleting and not refusal_of(pod)

    def take_anew(self, key: str, raw: msgspec.Raw) -> None:
        """The pod is known in this very version, and held something else: where it waits, and where it counts."""
        try:
            pod = self._pods.with_policy(self._decoder.pod(raw))
        except DecodeError:
            return
        self._pods.upsert(key, raw)
        worker = self._router.worker_of(pod)
        if self._cache.is_assumed(pod.uid) and not pod.node and worker is not None:
            self._pods.revise(worker, pod, refusal_of(pod))  # what waits may have been right, and what counts not

    def is_lost(self, pod: Pod) -> bool:
        """True for a pending pod that waits in no queue and is not on its way to a node either (I3)."""
        worker = self._router.worker_of(pod)
        return worker is not None and pod.uid not in worker.queue and self._cache.placed(pod.uid) is None

    def readmit(self, pod: Pod) -> None:
        """A lost pod goes back to its queue."""
        worker = self._router.worker_of(pod)
        if worker is not None:
            worker.queue.add(pod, self._clock.monotonic())
            worker.intake.wake()

    def unbind(self, uid: str) -> None:
        """The API server had answered that the pod is bound, and it is not: its room is given back, and it waits again."""
        entry = self._cache.placed(uid)
        if entry is None or not self._cache.forget(uid):
            return
        self._going(uid)
        left = msgspec.structs.replace(entry.pod, node=entry.node)
        self._router.notify_pod(
            ASSIGNED_POD_DELETE, left, None, self._cache.nodes.row_of(entry.node), self._clock.monotonic()
        )
        pending = self._pods.pending.get(uid)
        if pending is not None:
            self.readmit(pending)
