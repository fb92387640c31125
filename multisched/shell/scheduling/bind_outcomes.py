"""What becomes of a placed pod once its binding cycle has ended: bound, refused, or gone.

Owns what the domain counts of bound pods. Each end leaves queue, cache and plugins as if the other two had never been possible.
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
from multisched.queueing.quarantine import alike
from multisched.shell.binding.bind import Bind, Undone
from multisched.shell.scheduling.failure_handler import FailureHandler
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.wait_group import WaitGroup
from multisched.state.cluster_cache import ClusterCache

logger = logging.getLogger(__name__)

LATENCIES_KEPT: Final = 100_000


class BindOutcomes:
    """Of one domain."""

    def __init__(
        self,
        domain: str,
        queue: PodQueue,
        runner: Runner,
        cache: ClusterCache,
        failures: FailureHandler,
        under_way: WaitGroup,
        outside: DomainPorts,
        listeners: Listeners,
    ) -> None:
        self.bound = 0
        self.latencies_s: deque[float] = deque(maxlen=LATENCIES_KEPT)
        """From the moment the latest pods could first be scheduled to their definite binds."""
        self._domain = domain
        self._queue = queue
        self._runner = runner
        self._cache = cache
        self._failures = failures
        self._under_way = under_way
        self._outside = outside
        self._listeners = listeners

    def on_bound(self, bind: Bind) -> None:
        self._under_way.done()
        pod, node = bind.placed.pod, bind.placed.node
        if logger.isEnabledFor(
            logging.DEBUG
        ):  # the event says it too; a line for each costs a twentieth of a pod's CPU
            logger.debug("pod bound", extra=bind.named(self._domain) | {"attempts": bind.attempts})
        now_s = self._outside.clock.monotonic()
        self._cache.answered(pod.uid, now_s)
        since_s = self._queue.schedulable_since_s(pod.uid)
        if since_s is not None:
            self.latencies_s.append(now_s - since_s)
            self._outside.observer.pod_bound(pod, now_s - since_s, bind.attempts)
        self._queue.done(pod.uid)
        self.bound += 1
        for plugin in bind.seen.cycle.plugins.post_bind:
            try:
                plugin.post_bind(bind.placed.view, pod, node)
            except Exception as error:  # noqa: BLE001 - a plugin ends here
                self._runner.failure(plugin, "PostBind", error)
        note = f"Successfully assigned {pod.key} to {node}"
        event = Event(pod_ref(pod), "Normal", "Scheduled", "Binding", note, pod.spec.scheduler_name)
        self._outside.events.record(event)

    def on_refused(self, bind: Bind, status: Status) -> None:
        """Nothing was sent for this pod, or it is certainly not bound: everything is undone and it waits again."""
        self.requeue([self.undo(bind, status)])

    def undo(self, bind: Bind, status: Status) -> Undone:
        """Gives the pod's place up. It stays in flight until `requeue`, so that members of a gang return together."""
        held = self._held(bind.placed)
        return Undone(bind, status, bind.seen.cycle.give_up(bind.placed, status), held)

    def requeue(self, undone: Sequence[Undone]) -> None:
        """These pods wait again, in this order."""
        for one in undone:
            self._under_way.done()
            uid, status = one.bind.placed.pod.uid, one.status
            if self._cache.placed(uid) is None:
                refusal = alike(status.message, one.bind.placed.node) if status.is_denied else ""
                self._failures.requeue(_told_of_gang(one), refusal)
            else:
                # Somebody else bound it to this very node meanwhile: a second attempt would assume a pod that is placed.
                self._queue.remove(uid)
                self._queue.done(uid)
        # Last, when none is in flight: else it would be woken by the room that it gives back itself.
        for one in undone:
            self._notify_freed(one.held, one.bind.placed.node)

    def on_lost(self, bind: Bind) -> None:
        """The pod is gone or bound elsewhere: undone here, and never requeued; the watch accounts for the truth."""
        self._under_way.done()
        held = self._held(bind.placed)
        bind.seen.cycle.give_up(bind.placed, Status.error("gone"))
        self._queue.remove(bind.placed.pod.uid)
        self._queue.done(bind.placed.pod.uid)
        self._notify_freed(held, bind.placed.node)

    def _held(self, placed: Placed) -> Pod:
        """The pod as it counts on its row: it may have changed since it was placed."""
        entry = self._cache.placed(placed.pod.uid)
        return placed.pod if entry is None else entry.pod

    def _notify_freed(self, pod: Pod, node: str) -> None:
        """Room that was held became free again: as good as a deleted pod, which stood on the node, to who waits for room."""
        freed = replace(pod, node=node)
        self._listeners.notify(ASSIGNED_POD_DELETE, freed, None, self._outside.clock.monotonic())


def _told_of_gang(undone: Undone) -> Unplaced:
    """The result, with what became of the other members if bindings of theirs may have been sent before."""
    gangs, result = undone.bind.sent_with, undone.result
    if not gangs:
        return result
    message = f"{result.message.rstrip('.')}. Members of gang {gangs} that are bound by now stay bound: a bind cannot be undone."
    return replace(result, message=message)
