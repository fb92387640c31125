"""kube-scheduler's own names: its labels, domains summed where it has no label for them, nothing unless asked for."""

from __future__ import annotations

import re

import pytest

from multisched.cycle.bind_outcome import Outcome
from multisched.model.objects import Pod
from multisched.observe.kube_scheduler_names import PER_PROFILE, SUMMED
from multisched.observe.metrics import Metrics
from multisched.observe.readings import DomainReading, Readings

POD = Pod(namespace="n", name="p", uid="u", version=1)
PROFILES = {"job": "job-scheduler", "gpu": "gpu-scheduler"}
UPSTREAM = {
    # Source: kubernetes 1.36, pkg/scheduler/metrics/metrics.go; without `status`, which is not known here
    "scheduler_schedule_attempts_total": {"profile", "result"},
    "scheduler_scheduling_attempt_duration_seconds_bucket": {"profile", "result", "le"},
    "scheduler_scheduling_algorithm_duration_seconds_bucket": {"le"},
    "scheduler_pending_pods": {"queue"},
    "scheduler_queue_incoming_pods_total": {"queue", "event"},
    "scheduler_preemption_attempts_total": set(),
    "scheduler_preemption_victims_bucket": {"le"},
    "scheduler_preemption_goroutines_duration_seconds_bucket": {"result", "le"},
    "scheduler_preemption_goroutines_execution_total": {"result"},
    "scheduler_pod_scheduling_sli_duration_seconds_bucket": {"attempts", "le"},
    "scheduler_pod_scheduling_attempts_bucket": {"le"},
    "scheduler_pod_scheduled_after_flush_total": set(),
    "scheduler_framework_extension_point_duration_seconds_bucket": {"extension_point", "profile", "le"},
    "scheduler_plugin_execution_duration_seconds_bucket": {"plugin", "extension_point", "le"},
    "scheduler_plugin_evaluation_total": {"plugin", "extension_point", "profile"},
    "scheduler_permit_wait_duration_seconds_bucket": {"result", "le"},
    "scheduler_cache_size": {"type"},
    "scheduler_unschedulable_pods": {"plugin", "profile"},
    "scheduler_inflight_events": {"event"},
    "scheduler_pending_async_api_calls": {"call_type"},
    "scheduler_async_api_call_execution_total": {"call_type", "result"},
}


async def lines_of(metrics: Metrics) -> list[str]:
    of_domain = DomainReading(
        pending={"active": 3, "unschedulable": 2, "gang": 4},
        incoming={("active", "PodAdd"): 7},
        unschedulable_by_plugin={"NodeName": 2},
        events_in_flight={"NodeAdd": 1},
        preemption_attempts=2,
    )
    metrics.read_from(
        lambda: Readings(
            domains={"job": of_domain, "gpu": of_domain},
            cached={"nodes": 5},
            calls_pending={"pod_binding": 1},
            calls_ended={("pod_status_patch", "success"): 9},
        )
    )
    for name in PROFILES:
        domain = metrics.domain(name)
        domain.attempt_ended(POD, "scheduled", 0.001)
        domain.bind_ended(POD, Outcome.BOUND, 0.01)
        domain.pod_bound(POD, 0.5, 1)
        domain.permit_waited("allowed", 0.2)
        domain.preemption_began(3)
        domain.preemption_ended("success", 0.1)
        domain.plugin_ran("NodeName", "Filter", 0.0001)
    body, _ = await metrics.render_in_thread()
    return body.decode().splitlines()


@pytest.fixture
async def lines() -> list[str]:
    return await lines_of(Metrics(PROFILES))


def labels_of(lines: list[str], name: str) -> set[str]:
    (line, *_) = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return set(re.findall(r'(\w+)="', line))


async def test_kube_scheduler_names_and_labels_equal_upstream(lines: list[str]) -> None:
    assert {name: labels_of(lines, name) for name in UPSTREAM} == UPSTREAM


async def test_every_renamed_family_exists(lines: list[str]) -> None:
    families = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    shown = {
        name.removeprefix("scheduler_").removesuffix("_total") for name in families if name.startswith("scheduler_")
    }
    assert shown == PER_PROFILE | SUMMED


@pytest.mark.parametrize(
    "line",
    [
        'scheduler_schedule_attempts_total{profile="job-scheduler",result="scheduled"} 1.0',
        'scheduler_schedule_attempts_total{profile="gpu-scheduler",result="scheduled"} 1.0',
        'scheduler_pending_pods{queue="active"} 6.0',
        'scheduler_pending_pods{queue="unschedulable"} 12.0',
        'scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"} 2.0',
        'scheduler_permit_wait_duration_seconds_count{result="Success"} 2.0',
        "scheduler_preemption_victims_sum 6.0",
        "scheduler_preemption_attempts_total 4.0",
    ],
)
async def test_domains_are_summed_where_upstream_has_no_profile_label(lines: list[str], line: str) -> None:
    assert line in [_sorted(one) for one in lines]


def _sorted(line: str) -> str:
    name, brace, rest = line.partition("{")
    labels, end, value = rest.partition("}")
    return f"{name}{{{','.join(sorted(labels.split(',')))}}}{value}" if brace and end else line


async def test_metrics_have_no_kube_scheduler_names_by_default() -> None:
    assert not [line for line in await lines_of(Metrics()) if "scheduler_" in line.replace("multisched_", "")]
