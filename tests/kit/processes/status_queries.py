"""Reads metrics, health, queues and explanations of a running process, as users and scrapers do.

That changes nothing. Fixes and what-if, which use a copy, are asked by a disruption of its own (`questions`).
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.observe.explain_view import ExplainQuery, NotExplainedError
from multisched.shell.program import Program
from multisched.shell.telemetry import ProgramQueues, health_of, read, statistics_of
from multisched.whatif.explain_known import describe, find_pod

PODS_SHOWN = 50


def query_status(program: Program, identity: str, pods: Sequence[str]) -> None:
    """Reads what `/metrics`, `/readyz`, `multisched queue` and `multisched explain` show."""
    read(program)
    statistics_of(program)
    health_of(program)
    ProgramQueues(program, identity).queue(domain=None, limit=PODS_SHOWN)
    for key in pods:
        namespace, _, name = key.partition("/")
        try:
            known = find_pod(program, namespace, name)
            node = next((node.name for _, node in program.cache.nodes.live_rows()), "")
            for query in (ExplainQuery(namespace, name), ExplainQuery(namespace, name, node=node)):
                describe(program, known, query)
        except NotExplainedError:
            continue  # the process has not observed it yet
