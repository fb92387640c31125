"""Each alert of `deploy/monitoring/alerts.yaml` on made series: it fires when it should, and not while all is well or briefly bad.

promtool evaluates the rules; a sample a minute, in its notation: `0+1x60` grows by one sixty times, `_x5` is five gaps.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.real.prometheus_server import binaries

ALERTS: Final = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yaml"
TIMEOUT_S: Final = 300
WHERE: Final = 'job="m", instance="a"'
OTHER: Final = 'job="m", instance="b"'
OF: Final = f'{WHERE}, domain="gpu"'
AT: Final = "3h"
LEADS: Final = {f"multisched_lease_held{{{OF}}}": "1x200"}
STANDS_BY: Final = {f"multisched_lease_held{{{OF}}}": "0x200"}
ACTIVE: Final = f'multisched_pending_pods{{queue="active", {OF}}}'
ATTEMPTS: Final = f'multisched_schedule_attempts_total{{result="scheduled", {OF}}}'
BUILD: Final = {f"multisched_build_info{{{WHERE}}}": "1x200"}
QUICK: Final = f'multisched_pod_scheduling_sli_duration_seconds_bucket{{attempts="1", le="20", {OF}}}'
ALL: Final = f'multisched_pod_scheduling_sli_duration_seconds_bucket{{attempts="1", le="+Inf", {OF}}}'
SLOW: Final = f'multisched_pod_scheduling_sli_duration_seconds_bucket{{attempts="1", le="40", {OF}}}'
EXPIRY: Final = f"multisched_server_certificate_expiry_seconds{{{WHERE}}}"
BREAKER: Final = f'multisched_serverless_breaker_state{{unit="eci", {OF}}}'
FAILED: Final = f'multisched_serverless_failed_total{{unit="eci", {OF}}}'
STARTED: Final = f'multisched_serverless_started_total{{unit="eci", {OF}}}'
THROTTLED: Final = f'multisched_serverless_throttled_total{{unit="eci", {OF}}}'
AT_RISK: Final = f"multisched_jobs_at_risk_pods{{{OF}}}"
PEAK: Final = f'multisched_forecast_node_peak_ratio{{dimension="cpu", percentile="100", {OF}}}'

Made = Mapping[str, str]


def grows(series: str, **more: str) -> tuple[Made, tuple[Made, ...]]:
    """A counter that fires an alert by growing at last: it is silent while it stands still, and when it grew long ago."""
    name = f"{series}{{{OF}{''.join(f', {key}={value!r}' for key, value in more.items())}}}".replace("'", '"')
    return {name: "0+1x200"}, ({name: "5x200"}, {name: "0+1x60 60x140"})


def stays_above(series: str, bad: str, good: str, labels: str = OF) -> tuple[Made, tuple[Made, ...]]:
    """A gauge that fires by its value, and not by a minute of it."""
    name = f"{series}{{{labels}}}"
    return {name: f"{bad}x200"}, ({name: f"{good}x200"}, {name: f"{good}x179 {bad} {good}x20"})


CASES: Final[Mapping[str, tuple[Made, tuple[Made, ...]]]] = {
    # alert: (series by which it fires at AT, series by which it does not)
    "MultischedAbsent": ({"up": "1x200"}, (BUILD, {f"multisched_build_info{{{WHERE}}}": "1x177 _x4 1x20"})),
    "MultischedNoLeader": (STANDS_BY, (LEADS, STANDS_BY | {f'multisched_lease_held{{{OTHER}, domain="gpu"}}': "1x200"})),
    "MultischedSeveralLeaders": (
        LEADS | {f'multisched_lease_held{{{OTHER}, domain="gpu"}}': "1x200"},
        (LEADS, LEADS | {f'multisched_lease_held{{{OTHER}, domain="job"}}': "1x200"}),
    ),
    "MultischedRestarts": (
        BUILD | {f"process_start_time_seconds{{{WHERE}}}": "0+1x200"},
        (BUILD | {f"process_start_time_seconds{{{WHERE}}}": "5x200"}, {f"process_start_time_seconds{{{WHERE}}}": "0+1x200"}),
    ),
    "MultischedStuck": (
        LEADS | {ACTIVE: "3x200", ATTEMPTS: "7x200"},
        (
            LEADS | {ACTIVE: "3x200", ATTEMPTS: "0+7x200"},
            LEADS | {ACTIVE: "0x200", ATTEMPTS: "7x200"},
            STANDS_BY | {ACTIVE: "3x200", ATTEMPTS: "7x200"},
        ),
    ),
    "MultischedQueueGrows": (
        LEADS | {ACTIVE: "0+10x200"},
        (LEADS | {ACTIVE: "500x200"}, LEADS | {ACTIVE: "2000-10x200"}, STANDS_BY | {ACTIVE: "0+10x200"}),
    ),
    "MultischedSlowScheduling": (
        {QUICK: "0+1x200", SLOW: "0+9x200", ALL: "0+9x200"},
        ({QUICK: "0+9x200", SLOW: "0+9x200", ALL: "0+9x200"}, {QUICK: "0x200", SLOW: "9x200", ALL: "9x200"}),
    ),
    "MultischedUnschedulablePods": (
        LEADS | {f'multisched_pending_pods{{queue="unschedulable", {OF}}}': "2x200"},
        (
            LEADS | {f'multisched_pending_pods{{queue="unschedulable", {OF}}}': "0x130 2x70"},
            STANDS_BY | {f'multisched_pending_pods{{queue="unschedulable", {OF}}}': "2x200"},
        ),
    ),
    "MultischedAttemptsFail": grows("multisched_schedule_attempts_total", result="error"),
    "MultischedPluginFails": grows("multisched_plugin_errors_total", plugin="Mine", extension_point="Score"),
    "MultischedPreemptionFails": grows("multisched_preemption_goroutines_execution_total", result="error"),
    "MultischedReclaimsStopped": grows("multisched_quota_reclaims_stopped_total"),
    "MultischedTideEvictionStuck": stays_above("multisched_tide_gangs_in_part", "1", "0"),
    "MultischedTideHookFails": grows("multisched_tide_hook_calls_total", result="failed"),
    "MultischedServerlessUnitFails": (
        {BREAKER: "1x200", FAILED: "0+3x200"},
        (
            {BREAKER: "1x200", FAILED: "3x200"},  # no pod needs the unit, so nothing probes it
            {BREAKER: "0x200", FAILED: "0+3x200"},
            {BREAKER: "0x179 1 0x20", FAILED: "0+3x200"},
        ),
    ),
    "MultischedServerlessThrottled": (
        {STARTED: "0+9x200", FAILED: "0+1x200", THROTTLED: "0+1x200"},
        (
            {STARTED: "0+99x200", FAILED: "0+1x200", THROTTLED: "0+1x200"},
            {STARTED: "0+9x170 1530+9x30", FAILED: "0x170 0+5x30", THROTTLED: "0x170 0+5x30"},
            {STARTED: "9x200", FAILED: "5x200", THROTTLED: "5x200"},
        ),
    ),
    "MultischedDeadlinesAtRisk": (
        LEADS | {AT_RISK: "0+1x200"},
        (
            LEADS | {AT_RISK: "7x200"},
            LEADS | {AT_RISK: "300-1x200"},
            LEADS | {AT_RISK: "0x179 9 0x20"},
            STANDS_BY | {AT_RISK: "0+1x200"},
        ),
    ),
    "MultischedUnknownBinds": stays_above("multisched_unknown_binds", "2", "0"),
    "MultischedBindsFail": (
        {f'multisched_bind_outcomes_total{{outcome="{one}", {OF}}}': "0+1x200" for one in ("refused", "bound")},
        (
            {f'multisched_bind_outcomes_total{{outcome="{one}", {OF}}}': f"0+{n}x200" for one, n in (("refused", 1), ("bound", 20))},
            {f'multisched_bind_outcomes_total{{outcome="{one}", {OF}}}': "9x200" for one in ("refused", "bound")},
        ),
    ),
    "MultischedQuarantinedPods": stays_above("multisched_quarantined_pods", "1", "0"),
    "MultischedRuleViolated": stays_above("multisched_verify_violations", "1", "0", f'rule="taints", {WHERE}'),
    "MultischedVerifyFails": grows("multisched_verify_runs_total", result="error"),
    "MultischedApiServerFails": (
        BUILD | {f'rest_client_requests_total{{code="{code}", {WHERE}}}': "0+1x200" for code in ("<error>", "201")},
        (
            BUILD | {f'rest_client_requests_total{{code="{code}", {WHERE}}}': "0+1x200" for code in ("409", "201")},
            {f'rest_client_requests_total{{code="500", {WHERE}}}': "0+1x200"},
            BUILD | {f'rest_client_requests_total{{code="{code}", {WHERE}}}': f"0+{n}x200" for code, n in (("500", 1), ("201", 99))},
        ),
    ),
    "MultischedThrottled": grows("multisched_throttled_requests_total"),
    "MultischedWatchSilent": stays_above("multisched_watch_lag_seconds", "400", "61", f'kind="pods", {WHERE}'),
    "MultischedCacheDiffered": grows("multisched_audit_differences_total"),
    "MultischedMalformedObjects": grows("multisched_malformed_objects_total", kind="nodes"),
    "MultischedCertificateEnds": ({EXPIRY: "100000x200"}, ({EXPIRY: "9000000x200"}, {EXPIRY: "9000000x150 100000x50"})),
    "MultischedConfigurationRejected": (
        {"multisched_config_last_reload_successful": "0x200"},
        ({"multisched_config_last_reload_successful": "1x200"}, {"multisched_config_last_reload_successful": "1x179 0 1x20"}),
    ),
    "MultischedRestartNeeded": stays_above("multisched_config_settings_waiting_for_restart", "2", "0"),
    "MultischedLogLinesLost": grows("multisched_log_lines_dropped_total"),
    "MultischedBackgroundTaskDown": grows("multisched_background_failures_total", plugin="PeakForecast"),
    "MultischedForecastStale": stays_above("multisched_forecast_profiles_age_seconds", "200000", "3600"),
    "MultischedForecastRefitsFail": stays_above("multisched_forecast_refit_failures_in_a_row", "3", "1"),
    "MultischedNodeWillBeTooFull": ({PEAK: "1.2x200"}, ({PEAK: "0.9x200"}, {PEAK: "0.9x179 1.2 0.9x20"})),
}  # fmt: skip


GROUPS: Final = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
RULES: Final[Mapping[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}


def case_of(alert: str, series: Made, *, fires: bool) -> dict[str, Any]:
    """As promtool has it. Where an alert's labels say nothing of its kind, one series of it is enough."""
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{alert} {'fires' if fires else 'is silent'} by {dict(series)}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": AT, "exp_samples": expected}],
    }


def written(folder: Path, alert: str, *tests: dict[str, Any]) -> Path:
    """Writes what promtool reads: the tests of one alert, and its rule alone, since promtool evaluates every rule of a file."""
    rules, path = folder / f"{alert}.rules.json", folder / f"{alert}.json"
    rules.write_text(json.dumps({"groups": [{"name": "one", "rules": [RULES[alert]]}]}))
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    return path


def faults_of(*files: Path) -> str:
    """Returns what promtool reports about these files of tests; empty for nothing."""
    command = [str(binaries() / "promtool"), "test", "rules", *map(str, files)]
    ended = subprocess.run(command, text=True, capture_output=True, check=False, timeout=TIMEOUT_S)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def test_promtool_accepts_the_rules() -> None:
    command = [str(binaries() / "promtool"), "check", "rules", "--lint-fatal", str(ALERTS)]
    ended = subprocess.run(command, text=True, capture_output=True, check=False, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_has_its_cases() -> None:
    assert list(CASES) == [rule["alert"] for group in GROUPS for rule in group["rules"]]


def test_every_alert_fires_when_it_should(tmp_path: Path) -> None:
    files = [written(tmp_path, alert, case_of(alert, fires, fires=True)) for alert, (fires, _) in CASES.items()]
    assert faults_of(*files) == ""


def test_no_alert_fires_without_cause(tmp_path: Path) -> None:
    silent = {alert: [case_of(alert, series, fires=False) for series in cases] for alert, (_, cases) in CASES.items()}
    assert sum(map(len, silent.values())) >= 2 * len(CASES)
    assert faults_of(*(written(tmp_path, alert, *cases) for alert, cases in silent.items())) == ""


def test_silent_alert_is_detected(tmp_path: Path) -> None:
    alert = "MultischedNoLeader"
    assert "FAILED" in faults_of(written(tmp_path, alert, case_of(alert, LEADS, fires=True)))
    assert "FAILED" in faults_of(written(tmp_path, alert, case_of(alert, STANDS_BY, fires=False)))
