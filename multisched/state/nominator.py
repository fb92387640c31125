"""Pods that were promised a node by preemption: others of lower priority must leave them their room."""

from __future__ import annotations

from collections.abc import Iterator

from multisched.model.objects import Pod


class Nominator:
    """Pending pods by the node they are nominated to, over all domains."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._node_of: dict[str, str] = {}

    def set(self, pod: Pod) -> None:
        """The pending pod's nomination, as it stands now; none removes it."""
        self.remove(pod.uid)
        if pod.nominated_node:
            self._by_node.setdefault(pod.nominated_node, {})[pod.uid] = pod
            self._node_of[pod.uid] = pod.nominated_node

    def remove(self, uid: str) -> None:
        node = self._node_of.pop(uid, None)
        if node is not None:
            del self._by_node[node][uid]
            if not self._by_node[node]:
                del self._by_node[node]

    def ahead_of(self, pod: Pod) -> Iterator[tuple[str, list[Pod]]]:
        """Nodes with nominated pods whose room this pod must leave: of equal or higher priority, and not itself."""
        for node, pods in self._by_node.items():
            ahead = [p for p in pods.values() if p.spec.priority >= pod.spec.priority and p.uid != pod.uid]
            if ahead:
                yield node, ahead

    def __len__(self) -> int:
        return len(self._node_of)
