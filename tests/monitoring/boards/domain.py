"""One scheduler in depth."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import (
    DOMAIN,
    JOB,
    REFUSED,
    SLI,
    WAITING,
    Board,
    Graph,
    Query,
    Row,
    leading,
    medians,
    quantile,
    rate,
)

BOARD: Final = Board(
    "domain",
    "multisched / domain",
    "One scheduler in depth: its queue, its attempts, its plugins, its binds.",
    (
        Row(
            "Queue",
            (
                Graph(
                    "Waiting pods by queue",
                    [Query(WAITING, "{{domain}} {{queue}}")],
                    "`unschedulable` pods wait for an event that may help, `backoff` for a while, `gated` for a gate or their gang.",
                    is_stacked=True,
                ),
                Graph(
                    "Pods that came to a queue, per second",
                    [
                        Query(
                            rate("multisched_queue_incoming_pods_total", DOMAIN, "domain, queue, event"),
                            "{{domain}} {{queue}} {{event}}",
                        )
                    ],
                    "By the event that brought them.",
                ),
                Graph(
                    "Under way",
                    [
                        Query(
                            f"sum by (domain) (multisched_in_flight_pods{{{DOMAIN}}})", "{{domain}} attempts and binds"
                        ),
                        Query(f"sum by (domain) (multisched_permit_waiting_pods{{{DOMAIN}}})", "{{domain}} at Permit"),
                    ],
                    "Pods that were popped and have not ended, and those that Permit holds.",
                ),
                Graph(
                    "Namespaces that retry",
                    [
                        Query(f"sum by (domain) (multisched_retrying_namespaces{{{DOMAIN}}})", "{{domain}} retry"),
                        Query(
                            f"sum by (domain) (multisched_namespaces_ahead_of_share{{{DOMAIN}}})",
                            "{{domain}} ahead of their share",
                        ),
                    ],
                    "Namespaces with active retries, and those of them that wait for others to catch up.",
                ),
                Graph(
                    "Queueing hints: p99",
                    [
                        Query(
                            quantile(
                                0.99, "multisched_queueing_hint_execution_duration_seconds", DOMAIN, "domain, plugin"
                            ),
                            "{{domain}} {{plugin}}",
                        )
                    ],
                    "How long a plugin takes to say whether an event helps a pod (sampled).",
                    unit="s",
                ),
                Graph(
                    "Unschedulable pods by plugin",
                    [Query(REFUSED, "{{domain}} {{plugin}}")],
                    "A pod that several plugins refused counts for each.",
                ),
            ),
        ),
        Row(
            "Attempts",
            (
                Graph(
                    "Attempts per second",
                    [
                        Query(
                            rate("multisched_schedule_attempts_total", DOMAIN, "domain, result"),
                            "{{domain}} {{result}}",
                        )
                    ],
                    "`conflict`: another cycle took the room first.",
                    is_stacked=True,
                ),
                Graph(
                    "One attempt",
                    medians("multisched_scheduling_algorithm_duration_seconds", "{{domain}}"),
                    "From the queue to the commit.",
                    unit="s",
                ),
                Graph(
                    "From schedulable to bound, by attempts: p99",
                    [Query(quantile(0.99, SLI, DOMAIN, "domain, attempts"), "{{domain}} {{attempts}}")],
                    "Pods that needed one attempt, and those that needed more.",
                    unit="s",
                ),
                Graph(
                    "Attempts that a bound pod needed: p90",
                    [Query(quantile(0.9, "multisched_pod_scheduling_attempts", DOMAIN, "domain"), "{{domain}}")],
                    "1 is right while there is room.",
                ),
                Graph(
                    "Classes found in the cache",
                    [
                        Query(
                            rate("multisched_class_cache_total", f'result="hit", {DOMAIN}', "domain")
                            + " / "
                            + rate("multisched_class_cache_total", DOMAIN, "domain"),
                            "{{domain}}",
                        )
                    ],
                    "Pods alike share masks and scores. Close to 1 for bursts.",
                    unit="percentunit",
                ),
                Graph(
                    "Conflicts per second",
                    [Query(rate("multisched_commit_conflicts_total", DOMAIN, "domain, kind"), "{{domain}} {{kind}}")],
                    "`true`: the pod did not fit the changed node any more, and was tried again.",
                ),
            ),
        ),
        Row(
            "Plugins",
            (
                Graph(
                    "Extension points: p99",
                    [
                        Query(
                            quantile(
                                0.99,
                                "multisched_framework_extension_point_duration_seconds",
                                DOMAIN,
                                "domain, extension_point",
                            ),
                            "{{domain}} {{extension_point}}",
                        )
                    ],
                    "One plugin's call at this point (sampled).",
                    unit="s",
                ),
                Graph(
                    "Plugins: p99",
                    [
                        Query(
                            "topk(10, "
                            + quantile(
                                0.99, "multisched_plugin_execution_duration_seconds", JOB, "plugin, extension_point"
                            )
                            + ")",
                            "{{plugin}} {{extension_point}}",
                        )
                    ],
                    "The ten slowest, of all domains.",
                    unit="s",
                ),
                Graph(
                    "Plugin failures per second",
                    [
                        Query(
                            rate("multisched_plugin_errors_total", DOMAIN, "domain, plugin, extension_point"),
                            "{{domain}} {{plugin}} {{extension_point}}",
                        )
                    ],
                    "0 is right; the log has the traceback.",
                ),
            ),
        ),
        Row(
            "Binds and preemption",
            (
                Graph(
                    "How binds ended, per second",
                    [
                        Query(
                            rate("multisched_bind_outcomes_total", DOMAIN, "domain, outcome"), "{{domain}} {{outcome}}"
                        )
                    ],
                    "`foreign`: somebody else bound the pod.",
                    is_stacked=True,
                ),
                Graph(
                    "Binds on the wire",
                    [
                        Query(f"sum by (domain) (multisched_binds_in_flight{{{DOMAIN}}})", "{{domain}}"),
                        Query(f"sum by (domain) (multisched_bind_limit{{{DOMAIN}}})", "{{domain}} limit"),
                    ],
                    "The limit follows the API server's answers.",
                ),
                Graph(
                    "Preemption",
                    [
                        Query(rate("multisched_preemption_attempts_total", DOMAIN, "domain"), "{{domain}} attempts"),
                        Query(
                            rate("multisched_preemption_goroutines_execution_total", DOMAIN, "domain, result"),
                            "{{domain}} carried out: {{result}}",
                        ),
                        Query(rate("multisched_preemption_victims_sum", DOMAIN, "domain"), "{{domain}} victims"),
                    ],
                    "Per second: tries to make room, preemptions carried out, and pods that went for them.",
                ),
            ),
        ),
        Row(
            "Jobs and serverless units",
            (
                Graph(
                    "Deadlines at risk",
                    [
                        Query(
                            "sum by (domain) (" + leading(f"multisched_jobs_at_risk_pods{{{DOMAIN}}}") + ")",
                            "{{domain}}",
                        ),
                    ],
                    "Waiting pods whose predicted end is after their deadline. 0 is right.",
                ),
                Graph(
                    "Sandboxes per second",
                    [
                        Query(
                            rate("multisched_serverless_started_total", DOMAIN, "domain, unit"),
                            "{{domain}} {{unit}} started",
                        ),
                        Query(
                            rate("multisched_serverless_failed_total", DOMAIN, "domain, unit"),
                            "{{domain}} {{unit}} failed",
                        ),
                        Query(
                            rate("multisched_serverless_throttled_total", DOMAIN, "domain, unit"),
                            "{{domain}} {{unit}} throttled",
                        ),
                        Query(
                            f"max by (domain, unit) (multisched_serverless_rate{{{DOMAIN}}})",
                            "{{domain}} {{unit}} learned rate",
                        ),
                    ],
                    "Failed ones include the throttled ones. Binds to a unit follow the learned rate.",
                ),
                Graph(
                    "Breakers of serverless units",
                    [
                        Query(
                            f"max by (domain, unit) (multisched_serverless_breaker_state{{{DOMAIN}}})",
                            "{{domain}} {{unit}}",
                        )
                    ],
                    "0: the unit gets pods; 1: it gets none, because its sandboxes fail; 2: one pod probes it.",
                ),
            ),
        ),
    ),
)
