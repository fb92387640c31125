"""Gangs, quotas and preemption."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import DOMAIN, JOB, Board, Graph, Query, Row, leading, medians, rate

BOARD: Final = Board(
    "gangs-and-quotas",
    "multisched / gangs and quotas",
    "Pods that start together or not at all, and who gives back what was borrowed.",
    (
        Row(
            "Gangs",
            (
                Graph(
                    "Members that wait",
                    [
                        Query(
                            "sum by (domain, queue) ("
                            + leading(f'multisched_pending_pods{{queue=~"gang|gated", {DOMAIN}}}')
                            + ")",
                            "{{domain}} {{queue}}",
                        )
                    ],
                    "`gated`: the gang is not complete, or a gate holds the pod; `gang`: behind the member that was refused.",
                ),
                Graph(
                    "Gangs come to a queue, per second",
                    [
                        Query(
                            rate("multisched_queue_incoming_pods_total", f'queue="gang", {DOMAIN}', "domain, event"),
                            "{{domain}} {{event}}",
                        )
                    ],
                    "Members that came to wait behind another one, by the event.",
                ),
                Graph(
                    "Gangs that reserve room",
                    [
                        Query(
                            "sum by (domain) (" + leading(f"multisched_gangs_reserving{{{DOMAIN}}}") + ")", "{{domain}}"
                        ),
                        Query(
                            f"sum by (domain) (increase(multisched_gang_reservations_expired_total{{{DOMAIN}}}[1h]))",
                            "{{domain}} expired in the last hour",
                        ),
                    ],
                    "Gangs that waited longer than `reserveAfter`; expired: the gang did not start within `reserveFor`.",
                ),
                Graph(
                    "Waits at Permit",
                    medians("multisched_permit_wait_duration_seconds", "{{domain}} {{result}}", "domain, result"),
                    "Assumed pods that a plugin holds until it allows or rejects them.",
                    unit="s",
                ),
            ),
        ),
        Row(
            "Quotas",
            (
                Graph(
                    "Pods that a quota or a gang holds back",
                    [
                        Query(
                            "sum by (domain, plugin) ("
                            + leading(
                                f'multisched_unschedulable_pods{{plugin=~"ElasticQuota|GangScheduling", {DOMAIN}}}'
                            )
                            + ")",
                            "{{domain}} {{plugin}}",
                        )
                    ],
                    "`multisched quota tree` shows who holds, borrows and lends how much.",
                ),
                Graph(
                    "Reclaims by what went over what was needed, in an hour",
                    [
                        Query(
                            f"sum by (domain, up_to) (increase(multisched_quota_reclaims_total{{{DOMAIN}}}[1h]))",
                            "{{domain}} up to {{up_to}}",
                        )
                    ],
                    "1 means that only as much went as was missing.",
                ),
                Graph(
                    "Reclaims stopped, in an hour",
                    [
                        Query(
                            f"sum by (domain) (increase(multisched_quota_reclaims_stopped_total{{{DOMAIN}}}[1h]))",
                            "{{domain}}",
                        )
                    ],
                    "All that could go was over `maxEvictedOverNeeded`.",
                ),
            ),
        ),
        Row(
            "Preemption",
            (
                Graph(
                    "Preemptions per second",
                    [
                        Query(
                            rate("multisched_preemption_goroutines_execution_total", DOMAIN, "domain, result"),
                            "{{domain}} {{result}}",
                        )
                    ],
                    "Carried out; `error`: a victim could not be deleted.",
                ),
                Graph(
                    "Victims of one pod",
                    medians("multisched_preemption_victims", "{{domain}}"),
                    "How many pods go for one.",
                ),
                Graph(
                    "Marking and deleting the victims of one pod",
                    medians("multisched_preemption_goroutines_duration_seconds", "{{domain}}"),
                    "Mostly the API server.",
                    unit="s",
                ),
                Graph(
                    "Statuses of PodGroups and quotas per second",
                    [
                        Query(
                            rate("multisched_object_status_writes_total", JOB, "kind, result"), "{{kind}} {{result}}"
                        ),
                        Query(f"sum(multisched_pending_object_statuses{{{JOB}}})", "waiting"),
                    ],
                    "What became of them, and how many wait to be written.",
                ),
            ),
        ),
    ),
)
