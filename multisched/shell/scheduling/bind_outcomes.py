"""Handles the end of a binding cycle: the pod was bound, refused, or deleted (or bound elsewhere).

Owns the domain's counters of bound pods. Each handler updates queue, cache and plugins completely.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from multisched.cycle.results import Placed, Unplaced
from multisched.framework.events import ASSIGNED_POD_DELETE
from multisched.framework.ports import Event, pod_ref
from multisched.framework.runner import Runner
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.quarantine import refusal_key
from multisched.shell.binding.bind import Bind, CancelledBind
from multisched.shell.scheduling.failure_handler import FailureHandler
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.wait_group import WaitGroup
from multisched.state.cluster_cache import ClusterCache

logger = logging.getLogger(__name__)

LATENCIES_KEPT: Final = 100_000


class BindOutcomes:
    """Handles the ends of one domain's binding cycles."""

    def __init__(
        self,
        domain: str,
        queue: PodQueue,
        runner: Runner,
        cache: ClusterCache,
        failures: FailureHandler,
        in_progress: WaitGroup,
        ports: DomainPorts,
        listeners: Listeners,
    ) -> None:
        self.bound = 0
        self.latencies_s: deque[float] = deque(maxlen=LATENCIES_KEPT)
        """Of the latest bound pods: seconds from the time the pod was first schedulable to the success response of its bind."""
        self._domain = domain
        self._queue = queue
        self._runner = runner
        self._cache = cache
        self._failures = failures
        self._in_progress = in_progress
        self._ports = ports
        self._listeners = listeners

    def on_bound(self, bind: Bind) -> None:
        self._in_progress.done()
        pod, node = bind.placed.pod, bind.placed.node
        if logger.isEnabledFor(
            logging.DEBUG
        ):  # the event has the same content, and a log line costs 5 % of the CPU time of a pod
            logger.debug("pod bound", extra=bind.named(self._domain) | {"attempts": bind.attempts})
        now_s = self._ports.clock.monotonic()
        self._cache.answered(pod.uid, now_s)
        since_s = self._queue.schedulable_since_s(pod.uid)
        if since_s is not None:
            self.latencies_s.append(now_s - since_s)
            self._ports.observer.pod_bound(pod, now_s - since_s, bind.attempts)
        self._queue.done(pod.uid)
        self.bound += 1
        for plugin in bind.seen.cycle.plugins.post_bind:
            try:
                plugin.post_bind(bind.placed.view, pod, node)
            except Exception as error:  # noqa: BLE001 - plugin errors are contained here
                self._runner.failure(plugin, "PostBind", error)
        note = f"Successfully assigned {pod.key} to {node}"
        event = Event(pod_ref(pod), "Normal", "Scheduled", "Binding", note, pod.spec.scheduler_name)
        self._ports.events.record(event)

    def on_refused(self, bind: Bind, status: Status) -> None:
        """Unreserves, forgets and requeues a pod that is certainly not bound."""
        self.requeue([self.undo(bind, status)])

    def undo(self, bind: Bind, status: Status) -> CancelledBind:
        """Unreserves and forgets the pod. It stays in flight until `requeue`, so that members of a gang return together."""
        held = self._held(bind.placed)
        return CancelledBind(bind, status, bind.seen.cycle.give_up(bind.placed, status), held)

    def requeue(self, undone: Sequence[CancelledBind]) -> None:
        """Requeues the pods in this order."""
        for one in undone:
            self._in_progress.done()
            uid, status = one.bind.placed.pod.uid, one.status
            if self._cache.placed(uid) is None:
                refusal = refusal_key(status.message, one.bind.placed.node) if status.is_denied else ""
                self._failures.requeue(_gang_message(one), refusal)
            else:
                # Another client has bound it to the same node: another attempt would assume a pod that is already placed.
                self._queue.remove(uid)
                self._queue.done(uid)
        # After all of them have left the in-flight state: otherwise the capacity that they release would requeue them without backoff.
        for one in undone:
            self._notify_freed(one.held, one.bind.placed.node)

    def on_lost(self, bind: Bind) -> None:
        """Unreserves and forgets a pod that was deleted or bound elsewhere. It is not requeued; the watch reports its state."""
        self._in_progress.done()
        held = self._held(bind.placed)
        bind.seen.cycle.give_up(bind.placed, Status.error("the pod was deleted or bound elsewhere"))
        self._queue.remove(bind.placed.pod.uid)
        self._queue.done(bind.placed.pod.uid)
        self._notify_freed(held, bind.placed.node)

    def _held(self, placed: Placed) -> Pod:
        """Returns the pod as accounted on its row; it may have changed since it was placed."""
        entry = self._cache.placed(placed.pod.uid)
        return placed.pod if entry is None else entry.pod

    def _notify_freed(self, pod: Pod, node: str) -> None:
        """Notifies all queues of released capacity, as if a pod on the node had been deleted."""
        freed = replace(pod, node=node)
        self._listeners.notify(ASSIGNED_POD_DELETE, freed, None, self._ports.clock.monotonic())


def _gang_message(undone: CancelledBind) -> Unplaced:
    """Returns the result. Its message mentions the other gang members if their binds may have been sent."""
    gangs, result = undone.bind.sent_with, undone.result
    if not gangs:
        return result
    message = f"{result.message.rstrip('.')}. Members of gang {gangs} that are bound by now stay bound: a bind cannot be undone."
    return replace(result, message=message)
