"""The placement of one pod for the screen: its node, its GPUs, and why (`observe/decision_words.py`)."""

from __future__ import annotations

from typing import Final

from multisched.demo.facts import Decision
from multisched.demo.placements import Bound
from multisched.observe.decision_words import why
from multisched.observe.explain_view import ExplainQuery, NotExplainedError
from multisched.shell.program import Program
from multisched.whatif.explain_known import describe, find_pod

DEVICES: Final = "multisched.io/gpu-devices"


def decision_of(program: Program, bound: Bound) -> Decision:
    """Returns the pod's placement with the reason; the reason is empty if no attempt of the pod is recorded."""
    pod = bound.pod
    name = pod.name if pod.namespace == "default" else f"{pod.namespace}/{pod.name}"
    try:
        view = describe(program, find_pod(program, pod.namespace, pod.name), ExplainQuery(pod.namespace, pod.name))
    except NotExplainedError:  # the pod was deleted
        return Decision(name, bound.node, "")
    placed = next((attempt for attempt in view.attempts if attempt.winner is not None), None)
    reason = "" if placed is None else why(placed)
    devices = pod.annotations.get(DEVICES, "")
    return Decision(name, bound.node, ", ".join(filter(None, (f"GPU {devices}" if devices else "", reason))))
