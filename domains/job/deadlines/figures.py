"""The document of `multisched jobs`, and the metrics of deadlines. Made of the last prediction and the run times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import inf
from typing import Final

from domains.job.deadlines.wait_task import WaitTask
from domains.job.deadlines.waits import PredictedWait
from domains.job.runtimes.history import ALL, Origin
from domains.job.runtimes.kept_history import KeptHistory
from multisched.framework.introspection import PluginMetric
from multisched.framework.views import Document, NoViewError, ViewQuery, unknown_parameter
from multisched.model.api_time import timestamp

DOCUMENT: Final = "now"
SHOWN: Final = 200
"""Waiting pods, and owners, of a document without the option `limit`."""
SHOWN_MAX: Final = 20_000


def document_of(kept: KeptHistory, waits: WaitTask, query: ViewQuery, domain: str, now_s: float) -> Document:
    """Returns the document. Raises NoViewError for an unknown name or option, or a limit that is no number within 1..SHOWN_MAX."""
    if query.name != DOCUMENT:
        raise NoViewError(f"jobs has no document {query.name}; write {DOCUMENT}")
    if unknown := unknown_parameter(query.options, ["domain", "limit"]):
        raise NoViewError(unknown, status=400)
    limit = _limit(query.options.get("limit", str(SHOWN)))
    return {
        "domain": domain,
        "now": _time(now_s),
        "predictedAt": _time(waits.at_s) if waits.at_s else None,
        "waiting": waits.count_waiting(),
        "atRisk": at_risk(waits),
        "pods": _pods(waits, limit),
        "owners": owners(kept, now_s, limit),
        "allRuns": _runs(kept, now_s),
        "failedWrites": kept.failed_writes,
    }


def at_risk(waits: WaitTask) -> int:
    """Returns the number of waiting pods whose deadline is at risk."""
    return sum(one.is_at_risk for one in waits.found.values())


def _limit(text: str) -> int:
    limit = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(SHOWN_MAX)) else 0
    if not 1 <= limit <= SHOWN_MAX:
        raise NoViewError(f"limit is {text[:20]}, write a number within 1..{SHOWN_MAX}", status=400)
    return limit


def owners(kept: KeptHistory, now_s: float, limit: int = SHOWN) -> list[Document]:
    """Returns up to this many workloads with run times, the latest first."""
    history = kept.history
    keys = sorted((key for key in history.runs if key.images), key=lambda key: -history.runs[key].ended_s)
    found = []
    for key in keys[:limit]:
        runs = history.runs[key]
        prediction = runs.predict(Origin.WORKLOAD)
        found.append(
            {
                "namespace": key.namespace,
                "owner": key.owner or None,
                "images": key.images,
                "runs": prediction.runs,
                "medianSeconds": prediction.median_s,
                "p90Seconds": prediction.p90_s,
                "startUpSeconds": prediction.start_up_s,
                "coverage": None if runs.coverage is None else round(runs.coverage, 3),
                "judged": runs.judged,
                "ageSeconds": round(max(0.0, now_s - runs.ended_s)),
            }
        )
    return found


def _runs(kept: KeptHistory, now_s: float) -> Document:
    runs = kept.history.runs.get(ALL)
    coverage = None if runs is None else runs.coverage
    return {"workloads": sum(bool(key.images) for key in kept.history.runs), "p90Coverage": coverage}


def _pods(waits: WaitTask, limit: int) -> list[Document]:
    """Returns up to this many waiting pods: those at risk first, then by predicted start."""
    pods = waits.predicted_pods()
    pods.sort(key=lambda one: (not one[0].is_at_risk, inf if one[0].start_s is None else one[0].start_s, one[1].key))
    return [_pod(pod.key, wait, waits.at_s, origin) for wait, pod, origin in pods[:limit]]


def _pod(pod: str, one: PredictedWait, at_s: float, origin: str) -> Document:
    """Returns a waiting pod. `pod`: NAMESPACE/NAME. `at_s`: when the wait was predicted."""
    return {
        "pod": pod,
        "predictedStart": None if one.start_s is None else _time(at_s + one.start_s),
        "predictedEnd": None if one.end_s is None else _time(at_s + one.end_s),
        "deadline": None if one.deadline_s is None else _time(at_s + one.deadline_s),
        "deadlineFrom": origin,
        "isAtRisk": one.is_at_risk,
    }


def metrics_of(kept: KeptHistory, waits: WaitTask) -> Sequence[PluginMetric]:
    """Returns the metrics of deadlines and run times."""
    starts = sorted(one.start_s for one in waits.found.values() if one.start_s is not None)
    runs = kept.history.runs.get(ALL)
    judged, covered = (0, 0) if runs is None else (runs.judged, runs.covered)
    longest: dict[tuple[str, ...], float] = {(): starts[-1]} if starts else {}
    return (
        PluginMetric("jobs_waiting_pods", "Waiting pods of the domain.", {(): float(waits.waiting)}),
        PluginMetric(
            "jobs_at_risk_pods", "Waiting pods whose predicted end is after their deadline.", {(): at_risk(waits)}
        ),
        PluginMetric("jobs_predicted_wait_max_seconds", "Longest predicted wait of a waiting pod.", longest),
        PluginMetric(
            "jobs_without_predicted_start_pods",
            "Waiting pods for which no known end of a running pod makes room.",
            {(): float(len(waits.found) - len(starts))},
        ),
        PluginMetric(
            "jobs_workloads", "Workloads with run times.", {(): float(sum(bool(k.images) for k in kept.history.runs))}
        ),
        PluginMetric(
            "jobs_judged_runs", "Runs that began when a P90 was predicted.", {(): float(judged)}, is_counter=True
        ),
        PluginMetric("jobs_covered_runs", "Judged runs that ended within it.", {(): float(covered)}, is_counter=True),
        PluginMetric(
            "jobs_sorted_anew",
            "Pods sorted again because their latest start moved.",
            {(): float(waits.sorted_anew)},
            is_counter=True,
        ),
    )


def _time(at_s: float) -> str:
    return timestamp(datetime.fromtimestamp(at_s, UTC))
