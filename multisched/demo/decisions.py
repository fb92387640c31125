"""Why a pod was placed on its node, in a few words: what ranked the node above the runner-up.

Reads the record of the attempt that placed it, as `multisched explain pod` does.
"""

from __future__ import annotations

from typing import Final

from multisched.demo.facts import Decision
from multisched.demo.placements import Bound
from multisched.observe.explain_view import Attempt, ExplainQuery, NotExplainedError, Part, Scored
from multisched.shell.program import Program
from multisched.whatif.explain_known import describe, find_pod

DEVICES: Final = "multisched.io/gpu-devices"
GAINS: Final = {
    "PeakForecast": "most even week",
    "GpuShare": "fills used GPUs",
    "NodeResourcesFit": "most free resources",
    "NodeResourcesBalancedAllocation": "balanced CPU and memory",
    "PodTopologySpread": "spread from replicas",
    "InterPodAffinity": "near matching pods",
    "ImageLocality": "has the image",
}
"""Plugin -> what its higher score means; plugins that commonly decide come first."""


def decision_of(program: Program, bound: Bound) -> Decision:
    """Describes the decision in words; without a reason if no attempt of the pod is recorded."""
    pod = bound.pod
    name = pod.name if pod.namespace == "default" else f"{pod.namespace}/{pod.name}"
    try:
        view = describe(program, find_pod(program, pod.namespace, pod.name), ExplainQuery(pod.namespace, pod.name))
    except NotExplainedError:  # the pod was deleted
        return Decision(name, bound.node, "")
    placed = next((attempt for attempt in view.attempts if attempt.winner is not None), None)
    why = "" if placed is None else _why(placed)
    devices = pod.annotations.get(DEVICES, "")
    return Decision(name, bound.node, ", ".join(filter(None, (f"GPU {devices}" if devices else "", why))))


def _why(attempt: Attempt) -> str:
    winner = attempt.winner
    if winner is None or not winner.parts:
        return "its nominated node" if attempt.number > 1 else "the only feasible node"
    part = _deciding(winner, attempt.runners_up[0] if attempt.ties <= 1 and attempt.runners_up else None)
    if part is None:
        return f"score {winner.total}"
    suffix = ""
    if attempt.ties > 1:
        suffix = f", {attempt.ties} tied"
    elif attempt.runners_up:
        suffix = f", next {_scores(attempt.runners_up[0]).get(part.plugin, part.score)}"
    return f"{GAINS[part.plugin]}: {part.plugin} {part.score}{suffix}"


def _deciding(winner: Scored, other: Scored | None) -> Part | None:
    """Returns the plugin with the largest weighted lead over the runner-up; without a runner-up, the first of GAINS that scored."""
    liked = [part for name in GAINS for part in winner.parts if part.plugin == name and part.score]
    if other is None:
        return liked[0] if liked else None
    theirs = _scores(other)
    leads = {part.plugin: part.weight * (part.score - theirs.get(part.plugin, part.score)) for part in liked}
    return max(liked, key=lambda part: leads[part.plugin], default=None)


def _scores(scored: Scored) -> dict[str, int]:
    return {part.plugin: part.score for part in scored.parts}
