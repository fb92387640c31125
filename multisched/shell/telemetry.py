"""From what happens to what is counted: the observer that feeds `observe.metrics`, and the views asked at each scrape."""

from __future__ import annotations

from multisched.cycle.bind_outcome import Outcome
from multisched.model.objects import Pod
from multisched.observe.metrics import DomainMetrics
from multisched.observe.queue_view import DomainQueue, QueueView, WaitingPod
from multisched.shell.program import Program

_RESULTS = {"unschedulable": "unschedulable", "error": "error"}


class MetricsObserver:
    """`shell.observer.DomainObserver` that counts into one domain's metrics."""

    def __init__(self, metrics: DomainMetrics) -> None:
        self._metrics = metrics
        self._bind_s = 0.0

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        self._metrics.plugin(plugin, point, "Success", seconds)

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        del point, error
        self._metrics.plugin_failed(plugin)

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        del pod
        self._metrics.decided(seconds)
        if result in _RESULTS:
            self._metrics.failed(_RESULTS[result], seconds)

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None:
        del pod
        self._metrics.bound(attempts=attempts, attempt_s=self._bind_s, sli_s=seconds, bind_s=self._bind_s)

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None:
        del pod
        self._bind_s = seconds
        if outcome is not Outcome.BOUND:
            self._metrics.bind_ended("refused")

    def permit_waited(self, result: str, seconds: float) -> None:
        self._metrics.permit_waited(result, seconds)


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
