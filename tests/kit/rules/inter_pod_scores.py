"""What nodes score for a pod by the pods that stand there, in plain arithmetic by the documentation of each plugin.

Of InterPodAffinity and PodTopologySpread, from what the process has observed. Spread by a cluster's default constraints
is left out, and so are constraints with policies of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from multisched.model.objects import Node, Pod
from multisched.model.placement import PodAffinityTerm, SpreadConstraint
from tests.kit.rules.inter_pod import Standing, is_about
from tests.kit.world.labels import HOSTNAME

MOST = 100
HARD_WEIGHT = 1
"""What a required affinity of a pod that stands weighs, by upstream's default."""


def by_affinity(pod: Pod, nodes: Sequence[Node], standing: Collection[Standing]) -> list[int]:
    """Of InterPodAffinity, for each node."""
    sums: Counter[tuple[str, str]] = Counter()
    for one, there in standing:
        for term, weight in _wishes(pod, one):
            if term.topology_key in there.labels:
                sums[term.topology_key, there.labels[term.topology_key]] += weight
    keys = {key for key, _ in sums}
    raw = [sum(sums[key, node.labels[key]] for key in keys if key in node.labels) for node in nodes]
    least, span = min(raw), max(raw) - min(raw)
    return [int(MOST * ((one - least) / span)) if span else 0 for one in raw]


def _wishes(pod: Pod, other: Pod) -> Iterator[tuple[PodAffinityTerm, int]]:
    """Terms by which either draws the other near, or keeps it off, and how much."""
    own, theirs = pod.spec.pod_affinity, other.spec.pod_affinity
    if own is not None:
        yield from ((w.term, w.weight) for w in own.preferred if is_about(w.term, pod, other))
        yield from ((w.term, -w.weight) for w in own.anti_preferred if is_about(w.term, pod, other))
    if theirs is not None:
        yield from ((term, HARD_WEIGHT) for term in theirs.required if is_about(term, other, pod))
        yield from ((w.term, w.weight) for w in theirs.preferred if is_about(w.term, other, pod))
        yield from ((w.term, -w.weight) for w in theirs.anti_preferred if is_about(w.term, other, pod))


def by_spread(
    pod: Pod, nodes: Sequence[Node], reach: Collection[Node], standing: Collection[Standing]
) -> list[int] | None:
    """Of PodTopologySpread, for each node; None: by rules that are left out here.

    `nodes`: those that are feasible; `reach`: all that are places to spread over and that the pod's own rules allow.
    """
    rules = [rule for rule in pod.spec.spread if not rule.is_hard]
    if not rules or any(rule.selector is None or rule.match_label_keys or not _is_usual(rule) for rule in rules):
        return None
    counted = [node for node in nodes if all(rule.topology_key in node.labels for rule in rules)]
    if not counted:
        return [0] * len(nodes)
    names = {node.name for node in reach if all(rule.topology_key in node.labels for rule in rules)}
    raw = dict.fromkeys((node.name for node in counted), 0.0)
    for rule in rules:
        key, found = rule.topology_key, _pods_by_domain(pod, rule, names, standing)
        domains = {node.labels[key] for node in counted}
        weight = math.log((len(counted) if key == HOSTNAME else len(domains)) + 2)
        for node in counted:
            raw[node.name] += found[node.name if key == HOSTNAME else node.labels[key]] * weight + rule.max_skew - 1
    rounded = {name: math.floor(one + 0.5) for name, one in raw.items()}
    least, largest = min(rounded.values()), max(rounded.values())
    return [
        0 if node.name not in rounded else MOST * (largest + least - rounded[node.name]) // largest if largest else MOST
        for node in nodes
    ]


def _is_usual(rule: SpreadConstraint) -> bool:
    return rule.honors_affinity and not rule.honors_taints


def _pods_by_domain(
    pod: Pod, rule: SpreadConstraint, names: Collection[str], standing: Collection[Standing]
) -> Counter[str]:
    """Pods that the rule selects, by the value of its key, or by their node if it spreads over hosts."""
    found: Counter[str] = Counter()
    if rule.selector is None or not rule.selector.requirements:  # as upstream: an empty selector counts nobody
        return found
    for one, there in standing:
        is_alike = one.namespace == pod.namespace and not one.is_deleting and rule.selector.matches(one.labels)
        if is_alike and rule.topology_key == HOSTNAME:
            found[there.name] += 1
        elif is_alike and there.name in names:
            found[there.labels[rule.topology_key]] += 1
    return found
