"""PodRepair: checks and repairs single pods for the audit.

Reads the cache and the queues, and repairs through the ingest. Called only by `Audit` and its `AuditedPods`.
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


class PodRepair:
    """Checks and repairs single pods in the cache and the queues."""

    def __init__(
        self,
        pods: PodIngest,
        cache: ClusterCache,
        router: Router,
        decoder: Decoder,
        clock: Clock,
        *,
        on_deleting: Callable[[str], None],
    ) -> None:
        """`on_deleting`: see `PodIngest`."""
        self._pods = pods
        self._cache = cache
        self._router = router
        self._decoder = decoder
        self._clock = clock
        self._on_deleting = on_deleting

    def is_wanted(self, raw: msgspec.Raw) -> bool:
        """Reports whether the cache or a queue must have this pod: it is on a node, or pending in one of our domains."""
        try:
            pod = self._decoder.pod(raw)
        except DecodeError:
            return False
        if pod.is_terminal:
            return False
        if pod.node:
            return True
        return self._router.worker_of(pod) is not None and not pod.is_deleting and not refusal_of(pod)

    def replace_content(self, key: str, raw: msgspec.Raw) -> None:
        """Replaces the content of a pod in its queue and in the cache with that of the API object of the same version."""
        try:
            pod = self._pods.with_policy(self._decoder.pod(raw))
        except DecodeError:
            return
        self._pods.upsert(key, raw)
        worker = self._router.worker_of(pod)
        if self._cache.is_assumed(pod.uid) and not pod.node and worker is not None:
            # Only the cache entry may have been wrong; `upsert` does not replace it if the pending pod is unchanged.
            self._pods.revise(worker, pod, refusal_of(pod))

    def is_lost(self, pod: Pod) -> bool:
        """Reports whether a pending pod is neither in a queue nor in the cache (I3)."""
        worker = self._router.worker_of(pod)
        return worker is not None and pod.uid not in worker.queue and self._cache.placed(pod.uid) is None

    def readmit(self, pod: Pod) -> None:
        """Adds a lost pod to its queue again."""
        worker = self._router.worker_of(pod)
        if worker is not None:
            worker.queue.add(pod, self._clock.monotonic())
            worker.intake.wake()

    def unbind(self, uid: str) -> None:
        """Forgets and requeues a pod that is not bound although the API server answered its bind with success."""
        entry = self._cache.placed(uid)
        if entry is None or not self._cache.forget(uid):
            return
        self._on_deleting(uid)
        left = msgspec.structs.replace(entry.pod, node=entry.node)
        self._router.notify_pod(
            ASSIGNED_POD_DELETE, left, None, self._cache.nodes.row_of(entry.node), self._clock.monotonic()
        )
        pending = self._pods.pending.get(uid)
        if pending is not None:
            self.readmit(pending)
