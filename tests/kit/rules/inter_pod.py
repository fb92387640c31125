"""Rules of pods about each other, in plain words: affinity and anti-affinity, spreading, host ports.

Nothing of the plugins takes part: selectors are matched pod by pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from multisched.model.objects import HostPort, Node, Pod
from multisched.model.placement import PodAffinityTerm, SpreadConstraint
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE
from tests.kit.world.labels import HOSTNAME

Standing = tuple[Pod, Node]
"""A pod and the node it is on."""


def bears_not(pod: Pod, other: Pod) -> bool:
    """The pod has a rule that keeps the other off its host."""
    affinity = pod.spec.pod_affinity
    return affinity is not None and any(
        term.topology_key == HOSTNAME and is_about(term, pod, other) for term in affinity.anti_required
    )


def keeps_off(pod: Pod, node: Node, other: Pod) -> bool:
    """The pod, which stands on the node, has a rule that keeps the other off some nodes."""
    affinity = pod.spec.pod_affinity
    terms = affinity.anti_required if affinity is not None else ()
    return any(term.topology_key in node.labels and is_about(term, pod, other) for term in terms)


def clash(pod: Pod, other: Pod) -> HostPort | None:
    """A port that both want of their host, on an address that both want; None: there is none."""
    pairs = ((ours, theirs) for ours in pod.spec.host_ports for theirs in other.spec.host_ports)
    return next((ours for ours, theirs in pairs if _is_one_port(ours, theirs)), None)


def _is_one_port(ours: HostPort, theirs: HostPort) -> bool:
    """No address stands for all of them."""
    is_one = (ours.protocol, ours.port) == (theirs.protocol, theirs.port)
    return is_one and (not ours.ip or not theirs.ip or ours.ip == theirs.ip)


def allows(
    pod: Pod, node: Node, nodes: Iterable[Node], standing: Collection[Standing], is_usable: Callable[[Node], bool]
) -> bool:
    """The rules of the pod and of those that stand somewhere let it onto the node.

    `nodes`: all. `standing`: every pod that is not over, with its node. `is_usable`: tells the nodes of the pod's
    domain, which alone are places to spread over.
    """
    own = pod.spec.pod_affinity
    for term in own.anti_required if own is not None else ():
        if any(_share(term.topology_key, node, there) and is_about(term, pod, one) for one, there in standing):
            return False
    for one, there in standing:
        theirs = one.spec.pod_affinity
        if theirs is None:
            continue
        for term in theirs.anti_required:
            if _share(term.topology_key, node, there) and is_about(term, one, pod):
                return False
    if own is not None and own.required and not _has_company(pod, node, standing, own.required):
        return False
    rules = [rule for rule in pod.spec.spread if rule.is_hard]
    if not rules:
        return True
    selector, keys = pod.spec.affinity.node_selector, {rule.topology_key for rule in rules}
    places = [one for one in nodes if is_usable(one) and keys <= one.labels.keys()]
    reach = [one for one in places if all(r.matches_value(one.labels.get(r.key)) for r in selector)]
    return all(_is_level(pod, node, rule, reach, standing) for rule in rules)


def _has_company(pod: Pod, node: Node, standing: Collection[Standing], terms: Collection[PodAffinityTerm]) -> bool:
    if any(term.topology_key not in node.labels for term in terms):
        return False
    company = [there for one, there in standing if all(is_about(term, pod, one) for term in terms)]
    if all(any(_share(term.topology_key, node, there) for there in company) for term in terms):
        return True
    is_first = not any(term.topology_key in there.labels for there in company for term in terms)
    return is_first and all(is_about(term, pod, pod) for term in terms)


def _is_level(
    pod: Pod, node: Node, rule: SpreadConstraint, reach: Collection[Node], standing: Collection[Standing]
) -> bool:
    key = rule.topology_key
    if key not in node.labels or rule.selector is None:
        return key in node.labels
    reach = [one for one in reach if not rule.honors_taints or is_tolerated(pod, one)]
    counts = {one.labels[key]: 0 for one in reach}
    names = {one.name for one in reach}
    for one, there in standing if rule.selector.requirements else ():  # as upstream: an empty selector counts nobody
        is_counted = there.name in names and not one.is_deleting
        if is_counted and one.namespace == pod.namespace and rule.selector.matches(one.labels):
            counts[there.labels[key]] += 1
    fewest = min(counts.values(), default=0) if len(counts) >= rule.min_domains else 0
    more = int(rule.selector.matches(pod.labels))
    return counts.get(node.labels[key], 0) + more - fewest <= rule.max_skew


def is_tolerated(pod: Pod, node: Node) -> bool:
    """No taint of the node keeps the pod off."""
    hard = [taint for taint in node.taints if taint.effect in (NO_SCHEDULE, NO_EXECUTE)]
    return all(any(one.tolerates(taint) for one in pod.spec.tolerations) for taint in hard)


def _share(key: str, node: Node, other: Node) -> bool:
    return key in node.labels and node.labels[key] == other.labels.get(key)


def is_about(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Namespaces are selected by their names here, or all together."""
    if term.selector is None or not term.selector.matches(other.labels):
        return False
    selected, name = term.namespace_selector, {"kubernetes.io/metadata.name": other.namespace}
    return other.namespace in term.named_namespaces(owner.namespace) or (
        selected is not None and selected.matches(name)
    )
