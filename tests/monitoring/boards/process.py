"""The process and its conversation with the API server."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import JOB, Board, Figure, Graph, Query, Row, quantile, rate

BOARD: Final = Board(
    "process",
    "multisched / process",
    "The process itself: version, memory, CPU, and its conversation with the API server.",
    (
        Row(
            "What runs",
            (
                Figure(
                    "Version",
                    Query(
                        f"count by (version, python) (multisched_build_info{{{JOB}}})",
                        "{{version}} on Python {{python}}",
                    ),
                    "Processes by version. Two during an upgrade only.",
                    width=6,
                ),
                Figure(
                    "Up since",
                    Query(f"time() - max by (instance) (process_start_time_seconds{{{JOB}}})", "{{instance}}"),
                    "A process that loses its lease ends, and another one is started.",
                    unit="s",
                    width=6,
                ),
                Figure(
                    "Leases",
                    Query(f"sum by (name) (leader_election_master_status{{{JOB}}})", "{{name}}"),
                    "Processes that hold it. 1 is right.",
                    steps=((None, "red"), (1, "green"), (2, "red")),
                    width=6,
                ),
                Figure(
                    "Certificate ends in",
                    Query(
                        f"min by (instance) (multisched_server_certificate_expiry_seconds{{{JOB}}}) - time()",
                        "{{instance}}",
                    ),
                    "Of the server; empty without TLS.",
                    unit="s",
                    steps=((None, "red"), (259_200, "orange"), (1_209_600, "green")),
                    width=6,
                ),
            ),
        ),
        Row(
            "Resources",
            (
                Graph(
                    "CPU",
                    [Query(rate("process_cpu_seconds_total", JOB, "instance"), "{{instance}}")],
                    "Cores. One is the most that decisions can use.",
                    unit="short",
                ),
                Graph(
                    "Memory",
                    [Query(f"sum by (instance) (process_resident_memory_bytes{{{JOB}}})", "{{instance}}")],
                    "Resident.",
                    unit="bytes",
                ),
                Graph(
                    "Open files",
                    [
                        Query(f"sum by (instance) (process_open_fds{{{JOB}}})", "{{instance}}"),
                        Query(f"min by (instance) (process_max_fds{{{JOB}}})", "{{instance}} limit"),
                    ],
                    "Connections, mostly.",
                ),
                Graph(
                    "Garbage collections per second",
                    [
                        Query(
                            rate("python_gc_collections_total", JOB, "instance, generation"),
                            "{{instance}} generation {{generation}}",
                        )
                    ],
                    "Seldom, by design: reference counts do the work.",
                ),
                Graph(
                    "Objects in the cache",
                    [Query(f"sum by (instance, type) (multisched_cache_size{{{JOB}}})", "{{instance}} {{type}}")],
                    "A standby has them, too.",
                ),
                Graph(
                    "What attempts left for explanations",
                    [
                        Query(
                            f'sum by (instance, kind) (multisched_attempt_records{{{JOB}, kind!~".*bytes"}})',
                            "{{instance}} {{kind}}",
                        )
                    ],
                    "Bounded.",
                ),
            ),
        ),
        Row(
            "API server",
            (
                Graph(
                    "Requests per second",
                    [Query(rate("rest_client_requests_total", JOB, "method, code"), "{{method}} {{code}}")],
                    "`<error>` stands for no answer.",
                    is_stacked=True,
                ),
                Graph(
                    "One request: p99",
                    [Query(quantile(0.99, "rest_client_request_duration_seconds", JOB, "verb"), "{{verb}}")],
                    "Until the whole answer. Lists are long; POST is what binds wait for.",
                    unit="s",
                ),
                Graph(
                    "Refused for load, per second",
                    [Query(rate("multisched_throttled_requests_total", JOB, "instance"), "{{instance}}")],
                    "Answers 429.",
                ),
                Graph(
                    "Silence of watches",
                    [Query(f"topk(5, max by (kind) (multisched_watch_lag_seconds{{{JOB}}}))", "{{kind}}")],
                    "Since the stream last said anything, bookmarks included: about a minute is usual.",
                    unit="s",
                ),
                Graph(
                    "Lists and failures, in five minutes",
                    [
                        Query(
                            f"sum by (kind) (increase(multisched_reflector_relists_total{{{JOB}}}[5m])) > 0",
                            "{{kind}} lists",
                        ),
                        Query(
                            f"sum by (kind) (increase(multisched_reflector_errors_total{{{JOB}}}[5m])) > 0",
                            "{{kind}} failures",
                        ),
                    ],
                    "A whole list is read at the start, and after a watch that could not be resumed.",
                ),
                Graph(
                    "Watch events per second",
                    [Query("topk(8, " + rate("multisched_reflector_events_total", JOB, "kind") + ")", "{{kind}}")],
                    "By kind.",
                ),
                Graph(
                    "Handling of one event: p99",
                    [Query(quantile(0.99, "multisched_event_handling_duration_seconds", JOB, "event"), "{{event}}")],
                    "On the loop that also decides (sampled).",
                    unit="s",
                ),
                Graph(
                    "Writes about pods",
                    [
                        Query(
                            f"sum by (call_type) (multisched_pending_async_api_calls{{{JOB}}})", "{{call_type}} pending"
                        ),
                        Query(
                            rate("multisched_async_api_call_execution_total", JOB, "call_type, result"),
                            "{{call_type}} {{result}} per second",
                        ),
                    ],
                    "Binds and conditions.",
                ),
                Graph(
                    "Lost on the way, per second",
                    [
                        Query(rate("multisched_log_lines_dropped_total", JOB), "log lines"),
                        Query(rate("multisched_events_total", f'result="dropped", {JOB}'), "events"),
                        Query(rate("multisched_malformed_objects_total", JOB), "objects that cannot be used"),
                    ],
                    "0 is right.",
                ),
                Graph(
                    "Duration of a scrape",
                    [Query(f"max by (instance) (scrape_duration_seconds{{{JOB}}})", "{{instance}}")],
                    "Rendered in a thread beside the loop.",
                    unit="s",
                ),
            ),
        ),
    ),
    has_domains=False,
)
