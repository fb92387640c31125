"""Conversion of settings outside profiles: leader election, connection, backoff, process."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from multisched.config.findings import Findings
from multisched.config.kube.schema import KubeClientConnection, KubeConfiguration, KubeLeaderElection
from multisched.config.schema import ClientConfig, LeaseConfig
from multisched.config.sections import DURATION_MAX_S, format_duration

WRITES_PER_S_MAX: Final = 100_000
QPS_DEFAULT: Final = 50.0
BURST_DEFAULT: Final = 100
"""Upstream's default, which is also in files that kube-scheduler wrote."""

_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_LEASE: Final = LeaseConfig()
_CLIENT: Final = ClientConfig()


def queue_of(kube: KubeConfiguration, findings: Findings) -> dict[str, Any]:
    """Returns `queue` if it differs from the default."""
    found: dict[str, str] = {}
    for name, ours, seconds in (
        ("podInitialBackoffSeconds", "initialBackoff", kube.pod_initial_backoff_seconds),
        ("podMaxBackoffSeconds", "maxBackoff", kube.pod_max_backoff_seconds),
    ):
        if seconds > DURATION_MAX_S:
            findings.warn((name,), f"{seconds} is more than a day, the maximum here")
        found[ours] = format_duration(min(float(seconds), DURATION_MAX_S))
    return {} if found == {"initialBackoff": "1s", "maxBackoff": "10s"} else {"queue": found}


def lease_of(election: KubeLeaderElection, findings: Findings) -> dict[str, Any]:
    """Returns `lease` if it differs from the default."""
    found: dict[str, Any] = {} if election.leader_elect else {"enabled": False}
    if election.leader_elect:
        found |= _lease_times(election, findings)
    if election.resource_namespace:
        found["namespace"] = election.resource_namespace
    name = election.resource_name
    if name and _PREFIX.fullmatch(name):
        found["namePrefix"] = name
        findings.note(("leaderElection", "resourceName"), f"the Lease is named {name}-DOMAIN, after the first domain")
    elif name:
        text = f"{name!r} cannot be the prefix of a Lease's name here; the Lease is named multisched-DOMAIN"
        findings.warn(("leaderElection", "resourceName"), text)
    return {"lease": found} if found else {}


def _lease_times(election: KubeLeaderElection, findings: Findings) -> dict[str, str]:
    found: dict[str, str] = {}
    if election.lease_duration:
        whole_s = float(math.ceil(election.lease_duration))
        if whole_s != election.lease_duration:
            text = f"rounded to whole seconds, the resolution of a Lease: {format_duration(whole_s)}"
            findings.warn(("leaderElection", "leaseDuration"), text)
        found["duration"] = format_duration(whole_s)
    if election.renew_deadline:
        found["renewDeadline"] = format_duration(election.renew_deadline)
    if election.retry_period:
        found["retryPeriod"] = format_duration(election.retry_period)
    return found


def client_of(connection: KubeClientConnection, election: KubeLeaderElection, findings: Findings) -> dict[str, Any]:
    """Returns `client` if it differs from the default."""
    at = "clientConnection"
    found: dict[str, Any] = {}
    if connection.kubeconfig:
        findings.warn(
            (at, "kubeconfig"), f"must be set on the command line: multisched run --kubeconfig {connection.kubeconfig}"
        )
    for name, value in (
        ("acceptContentTypes", connection.accept_content_types),
        ("contentType", connection.content_type),
    ):
        if value:
            findings.note((at, name), "multisched uses JSON for the API server")
    if connection.qps == QPS_DEFAULT:
        text = f"{QPS_DEFAULT:g} is upstream's default; that of client.writesPerSecond is {_CLIENT.writes_per_second}"
        findings.note((at, "qps"), text)
    elif connection.qps:
        is_bounded = 0 < connection.qps <= WRITES_PER_S_MAX
        found["writesPerSecond"] = math.ceil(connection.qps) if is_bounded else WRITES_PER_S_MAX
        findings.note(
            (at, "qps"), "becomes client.writesPerSecond, which limits all binds, events and conditions together"
        )
    if connection.burst not in (0, BURST_DEFAULT):
        findings.warn((at, "burst"), "has no counterpart: the API server's 429 responses limit the rate")
    margin_s = (election.lease_duration or _LEASE.duration_s) - (election.renew_deadline or _LEASE.renew_deadline_s)
    if election.leader_elect and _CLIENT.bind_timeout_s > margin_s:
        found["bindTimeout"] = format_duration(margin_s)
        text = f"leave {format_duration(margin_s)} for a late bind, which becomes client.bindTimeout"
        findings.note(("leaderElection",), f"leaseDuration and renewDeadline {text}")
    return {"client": found} if found else {}


def report_process_settings(kube: KubeConfiguration, findings: Findings) -> None:
    """Reports settings of kube-scheduler's process that have no effect here."""
    if kube.parallelism is not None:
        text = "has no effect: all nodes are evaluated in one vector operation, without goroutines"
        findings.note(("parallelism",), text)
    for name, value in (
        ("enableProfiling", kube.enable_profiling),
        ("enableContentionProfiling", kube.enable_contention_profiling),
    ):
        if value is not None:
            findings.note((name,), "there are no profiling endpoints; attach py-spy to the process")
    if kube.delay_cache_until_active:
        text = "a standby always fills its caches: it takes over faster and uses the memory"
        findings.warn(("delayCacheUntilActive",), text)
