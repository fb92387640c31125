"""The first look: is it well, what waits and why, how fast it goes, what is wrong."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import (
    BAD_ABOVE_ZERO,
    DOMAIN,
    JOB,
    REFUSED,
    SLI,
    WAITING,
    Board,
    Figure,
    Graph,
    Query,
    Row,
    leading,
    medians,
    quantile,
    rate,
)

BOARD: Final = Board(
    "overview",
    "multisched / overview",
    "Is it well, what waits and why, how fast it goes, and what is wrong. Begin here.",
    (
        Row(
            "Is it well?",
            (
                Figure(
                    "Leaders",
                    Query(f"sum by (domain) (multisched_lease_held{{{DOMAIN}}})", "{{domain}}"),
                    "Processes that may bind, by domain. 1 is right; 0 means that no pod of the domain is placed.",
                    steps=((None, "red"), (1, "green"), (2, "red")),
                ),
                Figure(
                    "Waiting pods",
                    Query("sum(" + leading(f"multisched_pending_pods{{{DOMAIN}}}") + ")"),
                    "Pods that wait anywhere: active, backing off, unschedulable, gated, or behind a member of their gang.",
                ),
                Figure(
                    "Binds per second",
                    Query(rate("multisched_bind_outcomes_total", f'outcome="bound", {DOMAIN}')),
                    "Pods that got their node.",
                ),
                Figure(
                    "p99 to bind",
                    Query(quantile(0.99, SLI)),
                    "From the moment a pod could first be scheduled to its bind. Empty while nothing is bound.",
                    unit="s",
                    steps=((None, "green"), (5, "orange"), (30, "red")),
                ),
                Figure(
                    "Failures per second",
                    Query(
                        rate("multisched_schedule_attempts_total", f'result="error", {DOMAIN}')
                        + f" + (sum(rate(multisched_plugin_errors_total{{{DOMAIN}}}[$__rate_interval])) or vector(0))"
                    ),
                    "Attempts that ended by an error, and calls of plugins that failed. 0 is right.",
                    steps=BAD_ABOVE_ZERO,
                ),
                Figure(
                    "Alerts that fire",
                    Query('count(ALERTS{alertname=~"Multisched.+", alertstate="firing"}) or vector(0)'),
                    "Of deploy/monitoring/alerts.yaml. 0 is right; each has its page in docs/runbooks.",
                    steps=BAD_ABOVE_ZERO,
                ),
            ),
        ),
        Row(
            "What waits, and why",
            (
                Graph(
                    "Waiting pods by domain and queue",
                    [Query(WAITING, "{{domain}} {{queue}}")],
                    "A standby's queues are left out. `active` that grows for minutes: the process is too slow, or does not lead.",
                    is_stacked=True,
                    width=12,
                ),
                Graph(
                    "Unschedulable pods by the plugin that refused them",
                    [Query(REFUSED, "{{domain}} {{plugin}}")],
                    "A pod that several plugins refused counts for each. `multisched explain pod` says what would help.",
                    width=12,
                ),
            ),
        ),
        Row(
            "How fast it goes",
            (
                Graph(
                    "Binds per second",
                    [
                        Query(
                            rate("multisched_bind_outcomes_total", f'outcome="bound", {DOMAIN}', "domain"), "{{domain}}"
                        )
                    ],
                    "Pods that got their node.",
                    is_stacked=True,
                ),
                Graph("From schedulable to bound", medians(SLI, "{{domain}}"), "With all retries and waits.", unit="s"),
                Graph(
                    "One bind",
                    medians("multisched_bind_duration_seconds", "{{domain}}"),
                    "From PreBind to the outcome: mostly the API server.",
                    unit="s",
                ),
            ),
        ),
        Row(
            "What is wrong",
            (
                Graph(
                    "Conflicts per second",
                    [Query(rate("multisched_commit_conflicts_total", DOMAIN, "domain, kind"), "{{domain}} {{kind}}")],
                    "Commits to a node that had changed since the decision: `true`, the pod no longer fits; `false`, it still fits.",
                ),
                Graph(
                    "Failures per second",
                    [
                        Query(
                            rate("multisched_schedule_attempts_total", f'result="error", {DOMAIN}', "domain"),
                            "{{domain}} attempts",
                        ),
                        Query(
                            rate("multisched_plugin_errors_total", DOMAIN, "domain, plugin, extension_point"),
                            "{{domain}} {{plugin}} {{extension_point}}",
                        ),
                    ],
                    "Attempts that ended by an error, and calls of plugins that failed. 0 is right.",
                ),
                Graph(
                    "Answers of the API server per second",
                    [Query(rate("rest_client_requests_total", JOB, "code"), "{{code}}")],
                    "`<error>` stands for no answer; 409 is usual, 429 means that the API server is overloaded.",
                ),
                Graph(
                    "Who leads",
                    [
                        Query(
                            f"sum by (domain, instance) (multisched_lease_held{{{DOMAIN}}})", "{{domain}} {{instance}}"
                        )
                    ],
                    "1: this process may bind for the domain. Two at once would be a fault.",
                ),
                Graph(
                    "Binds that are not known to have happened",
                    [Query(f"sum by (domain) (multisched_unknown_binds{{{DOMAIN}}})", "{{domain}}")],
                    "The API server gave no definite answer; it is being asked. 0 is right.",
                ),
                Graph(
                    "Pods set aside, and differences found",
                    [
                        Query(f"sum by (domain) (multisched_quarantined_pods{{{DOMAIN}}})", "{{domain}} set aside"),
                        Query(
                            f"sum(increase(multisched_audit_differences_total{{{JOB}}}[$__rate_interval]))",
                            "differences",
                        ),
                        Query(f"sum by (rule) (multisched_verify_violations{{{JOB}}})", "against {{rule}}"),
                    ],
                    "Pods the API server refuses again and again; what the audit repaired; pods against a required rule. All 0 is right.",
                ),
            ),
        ),
    ),
)
