"""Why a pod was placed on its node, in a few words: what ranked the node above the runner-up.

Reads the view of the attempt that placed it, as `multisched explain pod` does.
"""

from __future__ import annotations

from typing import Final

from multisched.observe.explain_view import Attempt, Part, Scored

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


def why(attempt: Attempt) -> str:
    """Returns what decided; empty if the attempt placed nothing."""
    winner = attempt.winner
    if winner is None:
        return ""
    if not winner.parts:
        return "its nominated node" if attempt.number > 1 else "the only feasible node"
    if attempt.snapshot == "earlier":  # scores of other nodes are from another attempt: they say nothing about this one
        return f"score {winner.total}, no runner-up is recorded"
    part = _deciding(winner, attempt.runners_up[0] if attempt.ties <= 1 and attempt.runners_up else None)
    if part is None:
        return f"score {winner.total}" + (f", next {attempt.runners_up[0].total}" if attempt.runners_up else "")
    suffix = ""
    if attempt.ties > 1:
        suffix = f", {attempt.ties} tied"
    elif attempt.runners_up:
        suffix = f", next {_scores(attempt.runners_up[0]).get(part.plugin, part.score)}"
    return f"{GAINS[part.plugin]}: {part.plugin} {part.score}{suffix}"


def _deciding(winner: Scored, other: Scored | None) -> Part | None:
    """Returns the plugin with the largest weighted lead over the runner-up, if any has one; without a runner-up, the first of GAINS."""
    liked = [part for name in GAINS for part in winner.parts if part.plugin == name and part.score]
    if other is None:
        return liked[0] if liked else None
    theirs = _scores(other)
    leads = {part.plugin: part.weight * (part.score - theirs.get(part.plugin, part.score)) for part in liked}
    best = max(liked, key=lambda part: leads[part.plugin], default=None)
    return best if best is not None and leads[best.plugin] > 0 else None


def _scores(scored: Scored) -> dict[str, int]:
    return {part.plugin: part.score for part in scored.parts}
