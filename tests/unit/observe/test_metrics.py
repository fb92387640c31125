"""Metrics: names as kube-scheduler's, few labels, cheap to count, rendered from one moment."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import pytest

from multisched import __version__
from multisched.client.request_counts import BOUNDS_S
from multisched.cycle.bind_outcome import Outcome
from multisched.framework.durations import Durations
from multisched.framework.introspection import PluginMetric
from multisched.framework.ports import ExtenderError
from multisched.model.objects import Pod
from multisched.observe.metrics import Metrics
from multisched.observe.readings import (
    BackgroundReading,
    DomainReading,
    JudgeReading,
    Readings,
    ReflectorReading,
    RequestReading,
)

POD = Pod(namespace="secret-namespace", name="secret-name", uid="secret-uid", version=1)
CALLS_PER_BIND_MAX = 24
"""Of Python and C: some 6 us on an idle core."""

SHARED_WITH_KUBE_SCHEDULER = {
    "multisched_schedule_attempts_total": {"result", "domain"},
    "multisched_scheduling_attempt_duration_seconds_bucket": {"result", "domain", "le"},
    "multisched_scheduling_algorithm_duration_seconds_bucket": {"domain", "le"},
    "multisched_pod_scheduling_sli_duration_seconds_bucket": {"attempts", "domain", "le"},
    "multisched_pod_scheduling_attempts_bucket": {"domain", "le"},
    "multisched_framework_extension_point_duration_seconds_bucket": {"extension_point", "domain", "le"},
    "multisched_plugin_execution_duration_seconds_bucket": {"plugin", "extension_point", "le"},
    "multisched_plugin_evaluation_total": {"plugin", "extension_point", "domain"},
    "multisched_permit_wait_duration_seconds_bucket": {"result", "domain", "le"},
    "multisched_preemption_victims_bucket": {"domain", "le"},
    "multisched_preemption_attempts_total": {"domain"},
    "multisched_preemption_goroutines_duration_seconds_bucket": {"result", "domain", "le"},
    "multisched_preemption_goroutines_execution_total": {"result", "domain"},
    "multisched_pending_pods": {"queue", "domain"},
    "multisched_queue_incoming_pods_total": {"queue", "event", "domain"},
    "multisched_unschedulable_pods": {"plugin", "domain"},
    "multisched_inflight_events": {"event", "domain"},
    "multisched_pod_scheduled_after_flush_total": {"domain"},
    "multisched_cache_size": {"type"},
}


def durations(*seconds: float) -> Durations:
    found = Durations(BOUNDS_S)
    for one in seconds:
        found.observe(one)
    return found


READINGS = Readings(
    domains={
        "job": DomainReading(
            pending={"active": 3, "gated": 1},
            unschedulable_by_plugin={"NodeResourcesFit": 2},
            incoming={("active", "PodAdd"): 7},
            events_in_flight={"NodeAdd": 3, "PodPopped": 2},
            bound_after_flush=1,
            quarantined=2,
            quarantines=3,
            passed_over=14,
            namespaces_retrying=5,
            namespaces_ahead=1,
            conflicts_true=4,
            conflicts_false=5,
            unsigned={"Mine": 1},
            plugin_metrics=(
                PluginMetric("forecast_fallback", "Pods without.", {("no-history",): 6}, ("reason",), is_counter=True),
                PluginMetric("forecast_profiles_age_seconds", "How old.", {(): 60.5}),
                PluginMetric("pending_pods", "Of our own.", {(): 1}),
            ),
            records={"placed": 12, "sampled_bytes": 4096},
            is_lease_held=True,
        )
    },
    reflectors={"pods": ReflectorReading(lists=1, events=9, malformed=2)},
    cached={"nodes": 300, "pods": 20, "assumed_pods": 1},
    events={"stored": 8, "dropped": 1},
    background_tasks={("PeakForecast", "job"): BackgroundReading(2, is_running=True)},
    judge=JudgeReading(runs=3, failures=1, ended_at_s=1e9, seconds=2.5, violations={"resources": 2, "taints": 0}),
    leases={"multisched-job": True, "multisched-gpu": False},
    requests=RequestReading(
        "10.0.0.1:443", {("POST", 201): 5, ("POST", 0): 1, ("GET", 200): 2}, {"POST": durations(0.004, 0.3, 90.0)}
    ),
    log_lines_dropped=11,
)


def bind_one(metrics: Metrics) -> None:
    """Everything one bound pod counts, as the shell calls it."""
    domain = metrics.domain("job")
    domain.attempt_ended(POD, "scheduled", 0.001)
    domain.bind_ended(POD, Outcome.BOUND, 0.01)
    domain.pod_bound(POD, 0.5, 1)


async def rendered(metrics: Metrics, accept: str = "") -> str:
    body, _ = await metrics.render_in_thread(accept)
    return body.decode()


def labels_of(text: str, name: str) -> set[str]:
    found = re.search(rf"^{name}\{{(.*?)\}} ", text, re.MULTILINE)
    assert found is not None, f"{name} is not shown"
    return set(re.findall(r'(\w+)="', found[1]))


def full() -> Metrics:
    metrics = Metrics()
    metrics.read_from(lambda: READINGS)
    bind_one(metrics)
    domain = metrics.domain("job")
    domain.permit_waited("allowed", 0.2)
    domain.preemption_began(3)
    domain.preemption_ended("success", 0.1)
    domain.plugin_ran("NodeName", "Filter", 0.0001)
    domain.plugin_failed("Mine", "Score", "wrong shape")
    return metrics


async def test_metric_names_and_labels_equal_kube_scheduler_with_a_domain() -> None:
    text = await rendered(full())
    assert {name: labels_of(text, name) for name in SHARED_WITH_KUBE_SCHEDULER} == SHARED_WITH_KUBE_SCHEDULER


def test_repeated_plugin_failure_is_logged_with_traceback_a_few_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    domain = Metrics().domain("job")
    for number in range(1_000):
        domain.plugin_failed("Mine", "Score", ValueError(f"pod {number}"))
    domain.plugin_failed("Mine", "Filter", "wrong shape")
    assert [record.error for record in caplog.records if record.point == "Score"] == [  # type: ignore[attr-defined]
        f"ValueError: pod {2**power - 1}" for power in range(10)
    ]
    first, last = caplog.records[0], caplog.records[-1]
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], ValueError)
    assert (last.levelname, last.exc_info) == ("ERROR", None)


def test_unreachable_extender_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    domain = Metrics().domain("job")
    domain.plugin_failed("Extenders", "Response", ExtenderError('extender "http://e": cannot be reached'))
    domain.plugin_failed("Mine", "Score", KeyError("licence"))
    assert [(record.error, record.exc_info is None) for record in caplog.records] == [  # type: ignore[attr-defined]
        ('extender "http://e": cannot be reached', True),
        ("KeyError: 'licence'", False),
    ]


async def test_readings_are_exposed_unchanged() -> None:
    lines = (await rendered(full())).splitlines()
    for line in (
        'multisched_pending_pods{domain="job",queue="active"} 3.0',
        'multisched_pending_pods{domain="job",queue="backoff"} 0.0',
        'multisched_inflight_events{domain="job",event="NodeAdd"} 3.0',
        'multisched_inflight_events{domain="job",event="PodPopped"} 2.0',
        'multisched_pod_scheduled_after_flush_total{domain="job"} 1.0',
        'multisched_quarantined_pods{domain="job"} 2.0',
        'multisched_pods_set_aside_total{domain="job"} 3.0',
        'multisched_retries_passed_over_total{domain="job"} 14.0',
        'multisched_retrying_namespaces{domain="job"} 5.0',
        'multisched_namespaces_ahead_of_share{domain="job"} 1.0',
        'multisched_commit_conflicts_total{domain="job",kind="true"} 4.0',
        'multisched_commit_conflicts_total{domain="job",kind="false"} 5.0',
        'multisched_attempt_records{domain="job",kind="placed"} 12.0',
        'multisched_attempt_records{domain="job",kind="sampled_bytes"} 4096.0',
        'multisched_lease_held{domain="job"} 1.0',
        'multisched_forecast_fallback_total{domain="job",reason="no-history"} 6.0',
        'multisched_forecast_profiles_age_seconds{domain="job"} 60.5',
        'multisched_background_failures_total{domain="job",plugin="PeakForecast"} 2.0',
        'multisched_background_running{domain="job",plugin="PeakForecast"} 1.0',
        'multisched_verify_violations{rule="resources"} 2.0',
        'multisched_verify_violations{rule="taints"} 0.0',
        'multisched_verify_runs_total{result="error"} 1.0',
        "multisched_verify_last_run_timestamp_seconds 1e+09",
        "multisched_verify_duration_seconds 2.5",
        'multisched_malformed_objects_total{kind="pods"} 2.0',
        'multisched_events_total{result="dropped"} 1.0',
        "multisched_log_lines_dropped_total 11.0",
        'leader_election_master_status{name="multisched-job"} 1.0',
        'leader_election_master_status{name="multisched-gpu"} 0.0',
        'rest_client_requests_total{code="201",host="10.0.0.1:443",method="POST"} 5.0',
        'rest_client_requests_total{code="<error>",host="10.0.0.1:443",method="POST"} 1.0',
        'rest_client_request_duration_seconds_bucket{host="10.0.0.1:443",le="0.005",verb="POST"} 1.0',
        'rest_client_request_duration_seconds_bucket{host="10.0.0.1:443",le="60.0",verb="POST"} 2.0',
        'rest_client_request_duration_seconds_count{host="10.0.0.1:443",verb="POST"} 3.0',
        'multisched_plugin_errors_total{domain="job",extension_point="Score",plugin="Mine"} 1.0',
        'multisched_bind_outcomes_total{domain="job",outcome="bound"} 1.0',
        'multisched_preemption_victims_sum{domain="job"} 3.0',
        'multisched_preemption_goroutines_execution_total{domain="job",result="success"} 1.0',
    ):
        assert line in [_sorted_labels(shown) for shown in lines], line


def _sorted_labels(line: str) -> str:
    name, brace, rest = line.partition("{")
    labels, end, value = rest.partition("}")
    return f"{name}{{{','.join(sorted(labels.split(',')))}}}{value}" if brace and end else line


async def test_build_information_is_exposed() -> None:
    (line,) = [line for line in (await rendered(Metrics())).splitlines() if line.startswith("multisched_build_info{")]
    assert f'version="{__version__}"' in line
    assert line.endswith("} 1.0")


async def test_process_and_garbage_collector_metrics_are_exposed() -> None:
    text = await rendered(Metrics())
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert f"\n{name} " in text
    assert "\npython_gc_collections_total{" in text


async def test_metrics_have_no_pod_labels() -> None:
    text = await rendered(full())
    assert "secret" not in text


async def test_open_metrics_format_is_negotiated() -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    assert (await rendered(full(), accept)).endswith("# EOF\n")
    assert "# EOF" not in await rendered(full())


async def test_attempts_above_four_share_a_label() -> None:
    metrics = Metrics()
    for attempts in (0, 1, 5, 500):
        metrics.domain("job").pod_bound(POD, 1.0, attempts)
    text = await rendered(metrics)
    assert 'sli_duration_seconds_count{attempts="1",domain="job"} 2.0' in text
    assert 'sli_duration_seconds_count{attempts="5+",domain="job"} 2.0' in text


def test_counting_a_bind_is_cheap() -> None:
    metrics, calls = Metrics(), 0
    bind_one(metrics)  # series are made when they are first counted

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        bind_one(metrics)
    finally:
        sys.setprofile(None)
    assert calls <= CALLS_PER_BIND_MAX


async def test_plugin_metric_cannot_use_a_program_name_or_split_a_family() -> None:
    def of(*metrics: PluginMetric) -> DomainReading:
        return DomainReading(plugin_metrics=metrics)

    metrics = Metrics()
    taken = PluginMetric("schedule_attempts", "Mine.", {(): 7}, is_counter=True)
    shared, other = PluginMetric("mine", "One.", {(): 1}), PluginMetric("mine", "Another.", {(): 3}, is_counter=True)
    metrics.read_from(lambda: Readings(domains={"a": of(taken, shared), "b": of(shared), "c": of(other)}))
    lines = (await rendered(metrics)).splitlines()
    assert [line for line in lines if line.startswith("multisched_mine")] == [
        'multisched_mine{domain="a"} 1.0',
        'multisched_mine{domain="b"} 1.0',
    ]
    assert not [line for line in lines if line.startswith("multisched_schedule_attempts_total") and " 7" in line]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "Mine"}, "use a-z"),
        (
            {"name": "mine", "labels": ("domain",), "values": {("x",): 1}},
            "the labels domain, le and quantile are reserved",
        ),
        ({"name": "mine", "labels": ("quantile",), "values": {("1",): 1}}, "le and quantile are reserved"),
        ({"name": "mine", "labels": ("kind",), "values": {(): 1}}, "each series needs one value per label"),
        ({"name": "mine", "labels": ("n",), "values": {(str(n),): n for n in range(300)}}, "300 series"),
    ],
)
def test_invalid_plugin_metric_is_refused_at_construction(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PluginMetric(**{"text": "Of mine.", "values": {}, **fields})
