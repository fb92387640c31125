"""What the program shows of itself on request: its queues and its gauges, read from the running parts."""

from __future__ import annotations

from multisched.observe.queue_view import DomainQueue, QueueView, WaitingPod
from multisched.shell.program import Program

class ProgramQueues:
    """`observe.queue_view.QueueSource` over a running program."""

    def __init__(self, program: Program, identity: str) -> None:
        self._program = program
        self._identity = identity

    def queue(self, *, domain: str | None, limit: int) -> QueueView:
        """Pods that wait, the longest waiting first."""
        now_s = self._program.clock.monotonic()
        workers = [w for w in self._program.router.workers() if domain in (None, w.name)]
        pods = []
        for worker in workers:
            for entry in worker.queue.entries():
                pod = entry.pod
                pods.append(
                    WaitingPod(
                        domain=worker.name,
                        state=entry.place.value,
                        namespace=pod.namespace,
                        name=pod.name,
                        uid=pod.uid,
                        priority=pod.spec.priority,
                        qos=pod.spec.qos.value,
                        attempts=entry.attempts,
                        waiting_s=now_s - entry.added_s,
                        retry_in_s=max(0.0, (entry.retry_at_s or now_s) - now_s),
                        plugins=entry.plugins,
                        message=entry.message,
                    )
                )
        pods.sort(key=lambda p: (-p.waiting_s, p.uid))
        return QueueView(
            domains=tuple(
                DomainQueue(
                    domain=w.name,
                    scheduler_names=self._program.scheduler_names[w.name],
                    is_leading=w.is_leading,
                    counts={str(place): count for place, count in w.queue.statistics().pending.items()},
                )
                for w in workers
            ),
            pods=tuple(pods[:limit]),
            left_out=max(0, len(pods) - limit),
            identity=self._identity,
        )
