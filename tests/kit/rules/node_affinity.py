"""Which nodes a pod asks for by their labels and names."""

from __future__ import annotations

from multisched.model.objects import Node, Pod


def wants(pod: Pod, node: Node) -> bool:
    """The pod's node selector and required node affinity let it onto the node."""
    affinity = pod.spec.affinity
    if not all(one.matches_value(node.labels.get(one.key)) for one in affinity.node_selector):
        return False
    return affinity.required is None or affinity.required.matches(node.labels, node.name)
