"""DeadlineSort: sorts the queue by priority and latest start, learns run times, and predicts waits.

Slack is deadline - now - P90 of the run time - start-up. Now is the same for all pods, so the order by slack is the order by the
latest start (deadline - P90 - start-up), which needs no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from domains.job.deadlines.deadline import DeadlineOrigin, why_wrong
from domains.job.deadlines.latest_starts import LatestStarts
from domains.job.deadlines.settings import deadline_settings
from domains.job.deadlines.wait_task import WaitTask
from domains.job.domain_waits import DomainWaits, Outlook
from domains.job.runtimes.kept_history import KeptHistory
from domains.job.runtimes.pod_run import run_of
from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.introspection import PluginMetric
from multisched.framework.points import QueuedPod
from multisched.framework.run_times import RunTimes
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.go_duration import go_duration
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod, QosClass
from multisched.model.pod_outcome import PodOutcome

DEADLINE_SORT: Final = "DeadlineSort"
NO_ARGS: Final[Mapping[str, Any]] = {}
_RANK: Final = {QosClass.GUARANTEED: 0, QosClass.BURSTABLE: 1, QosClass.BEST_EFFORT: 2}


class DeadlineSort:
    """QueueSort; learns run times from pods that succeed, and predicts waits in a background task."""

    name = DEADLINE_SORT
    view = "jobs"
    traits = Traits(reads_objects=(ObjectKind.JOB, ObjectKind.CRON_JOB))

    def __init__(self, context: PluginContext, args: Mapping[str, Any] = NO_ARGS) -> None:
        """Raises PluginArgsError."""
        self.kept = KeptHistory()
        self.starts = LatestStarts(context.objects, self.kept, deadline_settings(args))
        self.waits = WaitTask(context, self.kept, self.starts, self.sort_key)
        self._domain = context.domain
        self._shared = context.shared.of(DomainWaits)
        context.shared.of(RunTimes).residual_s = self._residual_s

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        """Returns priority, bucket of the latest start, QoS class, creation, name. Of equal priorities, a partly placed gang is first."""
        pod, spec = entry.pod, entry.pod.spec
        is_later = entry.queued_s >= 0.0
        return -spec.priority, is_later, self.starts.bucket_of(pod), _RANK[spec.qos], pod.created_s, pod.name

    def see_outcome(self, outcome: PodOutcome) -> None:
        """See `framework.introspection.OutcomePlugin`: learns the run times of pods that succeed."""
        run = run_of(outcome)
        if run is not None:
            self.kept.learn(outcome.pod.uid, self.starts.run_key_of(outcome.pod), run)

    async def run(self, ports: BackgroundPorts) -> None:
        self._shared.source = self
        try:
            await self.waits.run(ports)
        finally:
            if self._shared.source is self:
                self._shared.source = None

    def outlook(self, pod: Pod, now_s: float) -> Outlook:
        """See `WaitSource`."""
        group = self.starts.group_of(pod)
        known, has_deadline = group.prediction, group.rule.origin is not DeadlineOrigin.MAX_WAIT
        return Outlook(
            group.rule.of(pod.created_s) if has_deadline else None,
            is_predicted=self.waits.of(pod.uid) is not None,
            wait_s=self.predicted_wait_s(pod, now_s),
            finish_s=known.finish_s,
            median_s=known.median_s if known.is_known else None,
        )

    def predicted_wait_s(self, pod: Pod, now_s: float) -> float | None:
        """Returns the predicted wait of a waiting pod from `now_s` (epoch seconds); None if it is not known."""
        found = self.waits.of(pod.uid)
        if found is None or found.start_s is None:
            return None
        return max(0.0, self.waits.at_s + found.start_s - now_s)

    def _residual_s(self, pod: Pod, now_s: float) -> float | None:
        """See `framework.run_times.RunTimes`."""
        age_s = max(0.0, now_s - (pod.started_s or now_s))
        return self.kept.history.residual_s(self.starts.run_key_of(pod), age_s)

    # -- what people see ---------------------------------------------------------------------------------------------------

    def remarks_of_pod(self, pod: Pod) -> Sequence[str]:
        """See `framework.introspection.RemarkPlugin`."""
        found = why_wrong(pod.annotations)
        return (found,) if found else ()

    def remarks_of_node(self, node: Node) -> Sequence[str]:
        return ()

    def note_on_pending(self, pod: Pod, now_s: float) -> str:
        """See `framework.introspection.PendingNotePlugin`."""
        group = self.starts.group_of(pod)
        left_s = group.rule.of(pod.created_s) - now_s
        within = f"in {go_duration(round(left_s))}" if left_s > 0 else f"passed {go_duration(round(-left_s))} ago"
        prediction = group.prediction
        parts = [why_wrong(pod.annotations)]
        if group.rule.origin is DeadlineOrigin.MAX_WAIT:
            parts.append(f"no deadline; it is urgent after maxWait, {within}")
        else:
            parts.append(f"deadline ({group.rule.origin.value}) {within}")
        if prediction.is_known:
            parts.append(
                f"run time P90 {go_duration(prediction.p90_s)} and start-up {go_duration(prediction.start_up_s)}, by"
                f" {prediction.runs} runs ({prediction.origin.value})"
            )
        else:
            parts.append("no run time is known")
        wait_s, found = self.predicted_wait_s(pod, now_s), self.waits.of(pod.uid)
        if wait_s is not None:
            parts.append(f"predicted start in {go_duration(round(wait_s))}")
        elif found is not None:
            parts.append("no start can be predicted")
        if found is not None and found.is_at_risk:
            parts.append("the deadline is at risk")
        return "; ".join(filter(None, parts))

    def export_state(self) -> object:
        """See `framework.introspection.StateExportPlugin`: the run times."""
        return self.kept.history.document()

    def import_state(self, handed: object) -> None:
        assert isinstance(handed, bytes), "the export of another DeadlineSort"
        self.kept.use(handed)

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        from domains.job.deadlines.figures import metrics_of

        return metrics_of(self.kept, self.waits)

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from domains.job.deadlines.figures import document_of

        document = document_of(self.kept, self.waits, query, self._domain, ports.clock.now().timestamp())
        return lambda: document
