"""Room on a node, in plain arithmetic from requests: what pods take together, and whether there is room for one more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from multisched.model.objects import PODS, Node, Pod


def taken_by(pods: Iterable[Pod]) -> Counter[str]:
    """Resource -> sum of the requests, and how many they are."""
    sums = Counter({PODS: 0})
    for pod in pods:
        sums.update({**pod.requests, PODS: 1})
    return sums


def has_room(pod: Pod, node: Node, taken: Mapping[str, int]) -> bool:
    """Of each resource that the pod asks for, the node has enough beside what is taken; what is short of others does not count."""
    asked = {**pod.requests, PODS: 1}
    return all(
        taken.get(resource, 0) + amount <= node.allocatable.get(resource, 0) for resource, amount in asked.items()
    )
