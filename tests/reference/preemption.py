"""Reference of DefaultPreemption: every candidate node is tried out, victim by victim.

Source: plugins/defaultpreemption/default_preemption.go, framework/preemption/preemption.go, scheduler/util/utils.go. Nodes
are all looked at, and every node that chance may choose is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from tests.reference.matching import requirements, selects
from tests.reference.scheduler import Search, told
from tests.reference.world import PodState, Refused, World

Json = Mapping[str, Any]
OFFSET = 2**31
"""Added to each victim's priority, so that more victims of negative priority are not better than fewer."""
NO_VICTIMS = "No preemption victims found for incoming pod"
NO_HELP = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class Candidate:
    node: str
    victims: tuple[PodState, ...]
    violations: int

    @property
    def goodness(self) -> tuple[Any, ...]:
        """The larger the better: violated budgets, highest priority, sum of priorities, victims, latest start."""
        highest = max(v.priority for v in self.victims)
        started = min(v.started for v in self.victims if v.priority == highest)
        total = sum(v.priority + OFFSET for v in self.victims)
        first = self.victims[0].priority
        return (-self.violations, -first, -total, -len(self.victims), started)


def preempt(search: Search, refusals: Mapping[str, Refused]) -> tuple[str, list[dict[str, Any]]]:
    """PostFilter's sentence (empty if room can be made), and the right answers.

    `refusals`: node -> why it does not take the pod; nodes that are left out were never asked.
    """
    nothing = [{"nominatedNode": "", "victims": []}]
    reason = _ineligible(search, refusals)
    if reason:
        return f"preemption: {reason}", nothing
    candidates, failures = [], {}
    for node, refused in refusals.items():
        if not refused.is_unresolvable:
            tried = _try(search, node)
            if isinstance(tried, Candidate):
                candidates.append(tried)
            else:
                failures[node] = tried
    if not candidates:
        outside = len(search.world.nodes) - len(failures)
        helpless = Refused((NO_HELP,), is_unresolvable=True) if outside else None
        text = told(search.world, list(failures.values()), outside, helpless)
        return f"preemption: {text}", nothing
    best = max(c.goodness for c in candidates)
    return "", [_shown(c) for c in sorted(candidates, key=lambda c: c.node) if c.goodness == best]


def _shown(candidate: Candidate) -> dict[str, Any]:
    return {
        "nominatedNode": candidate.node,
        "victims": sorted(f"{v.namespace}/{v.name}" for v in candidate.victims),
    }


def _ineligible(search: Search, refusals: Mapping[str, Refused]) -> str:
    pod, world = search.pod, search.world
    if pod.document["spec"].get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    node = pod.nominated_node
    if node and node in world.nodes:
        refused = refusals.get(node)
        if refused is not None and not refused.is_unresolvable:
            for other in world.on(node):
                if other.priority < pod.priority and _leaves_for_a_preemptor(other):
                    return "not eligible due to a terminating pod on the nominated node."
    return ""


def _leaves_for_a_preemptor(pod: PodState) -> bool:
    if not pod.is_terminating:
        return False
    for condition in (pod.document.get("status") or {}).get("conditions") or ():
        if condition["type"] == "DisruptionTarget":
            return bool(condition["status"] == "True" and condition.get("reason") == "PreemptionByScheduler")
    return False


def _try(search: Search, node: str) -> Candidate | Refused:
    """Without all lower pods first; then each that may stay comes back, those of violated budgets before others."""
    lower = [p for p in search.world.on(node) if p.priority < search.pod.priority]
    if not lower:
        return Refused((NO_VICTIMS,), is_unresolvable=True)
    for other in lower:
        search = search.moved(other, node, -1)
    refused = search.refusal(node)
    if refused is not None:
        return refused[1]
    violating, others = _split_by_budget(search.world, sorted(lower, key=cmp_to_key(_importance)))
    victims: list[PodState] = []
    violations = 0
    for other in (*violating, *others):
        beside = search.moved(other, node, 1)
        if beside.refusal(node) is None:
            search = beside
        else:
            victims.append(other)
            violations += other in violating
    assert victims, "the pod fits although nobody leaves"
    return Candidate(node, tuple(sorted(victims, key=cmp_to_key(_importance))), violations)


def _importance(a: PodState, b: PodState) -> int:
    """Negative: `a` is more important. Of equals the one that came first, as a stable sort leaves them."""
    if a.priority != b.priority:
        return b.priority - a.priority
    return (a.started > b.started) - (a.started < b.started)


def _split_by_budget(world: World, pods: Sequence[PodState]) -> tuple[list[PodState], list[PodState]]:
    violating: list[PodState] = []
    others: list[PodState] = []
    allowed = Counter({at: budget["status"]["disruptionsAllowed"] for at, budget in enumerate(world.objects("pdbs"))})
    for pod in pods:
        is_violated = False
        for at, budget in enumerate(world.objects("pdbs")):
            selector = budget["spec"].get("selector")
            if budget["metadata"]["namespace"] != pod.namespace or not pod.labels:
                continue
            if not selector or not requirements(selector) or not selects(selector, pod.labels):
                continue
            if pod.name in (budget["status"].get("disruptedPods") or {}):
                continue
            allowed[at] -= 1
            is_violated |= allowed[at] < 0
        (violating if is_violated else others).append(pod)
    return violating, others
