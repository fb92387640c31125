"""Which pods stand where, found by what they are asked for: label, namespace, and domain of a topology.

`Standing` owns the index. Whoever asks about pods does it by a `Query`; its answer, a `Selection`, is kept up to date as
pods come and go, so that asking again costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multisched.verify.objects import Node, Pod, Query
from multisched.verify.selectors import Labels

Pods = dict[str, Pod]
"""By uid."""
NOBODY: Mapping[str, Pod] = {}


class Selection:
    """The standing pods that one query is about, and those whose anti-affinity asks that query."""

    __slots__ = ("_by_domain", "_owners", "pods", "query")

    def __init__(self, query: Query) -> None:
        self.query = query
        self.pods: Pods = {}
        self._by_domain: dict[str, dict[str, Pods]] = {}
        self._owners: dict[str, dict[str, Pods]] = {}

    def domains(self, key: str, nodes: Mapping[str, Node]) -> Mapping[str, Pods]:
        """Value of the node label -> its pods."""
        found = self._by_domain.get(key)
        if found is None:
            found = self._by_domain[key] = {}
            for pod in self.pods.values():
                _put(found, nodes[pod.node].labels.get(key), pod)
        return found

    def owners(self) -> Mapping[str, Mapping[str, Pods]]:
        """Topology key -> domain -> pods there that bear none of this selection beside them."""
        return self._owners

    def add(self, pod: Pod, labels: Labels) -> None:
        self.pods[pod.uid] = pod
        for key, domains in self._by_domain.items():
            _put(domains, labels.get(key), pod)

    def remove(self, pod: Pod, labels: Labels) -> None:
        del self.pods[pod.uid]
        for key, domains in self._by_domain.items():
            _take(domains, labels.get(key), pod)

    def own(self, pod: Pod, key: str, labels: Labels) -> None:
        _put(self._owners.setdefault(key, {}), labels.get(key), pod)

    def disown(self, pod: Pod, key: str, labels: Labels) -> None:
        _take(self._owners[key], labels.get(key), pod)


def _put(domains: dict[str, Pods], domain: str | None, pod: Pod) -> None:
    if domain is not None:
        domains.setdefault(domain, {})[pod.uid] = pod


def _take(domains: dict[str, Pods], domain: str | None, pod: Pod) -> None:
    if domain is not None and domain in domains:
        domains[domain].pop(pod.uid, None)
        if not domains[domain]:
            del domains[domain]


class Standing:
    """Nodes, the pods on them, labels of namespaces. Pods on nodes that nobody knows are kept, and count nowhere."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.nodes_version = 0
        """Raised whenever a node comes, goes or changes."""
        self.version = 0
        """Raised whenever anything does."""
        self.pods: Pods = {}
        self.on: dict[str, Pods] = {}
        """Node -> its pods."""
        self.claim_users: dict[str, Pods] = {}
        """Namespace/claim -> pods that use it."""
        self._namespaces: dict[str, Labels] = {}
        self._by_label: dict[tuple[str, str], Pods] = {}
        self._selections: dict[Query, Selection] = {}
        self._by_pair: dict[tuple[str, str], list[Selection]] = {}
        self._loose: list[Selection] = []

    # -- what there is ---------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        here = list(self.on.get(node.name, NOBODY).values())
        for pod in here:
            self._unindex(pod)
        self.nodes[node.name] = node
        self.nodes_version += 1
        self.version += 1
        for pod in here:
            self._index(pod)

    def remove_node(self, name: str) -> None:
        if name not in self.nodes:
            return
        for pod in self.on.get(name, NOBODY).values():
            self._unindex(pod)
        del self.nodes[name]
        self.nodes_version += 1
        self.version += 1

    def set_namespace(self, name: str, labels: Labels | None) -> None:
        """None: it is gone."""
        if self._namespaces.get(name) == labels:
            return
        for pod in self.pods.values():
            self._unindex(pod)
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        self._selections.clear()
        self._by_pair.clear()
        self._loose.clear()
        for pod in self.pods.values():
            self._index(pod)

    def add(self, pod: Pod) -> None:
        """In place of what was known of it."""
        self.remove(pod.uid)
        self.pods[pod.uid] = pod
        self.on.setdefault(pod.node, {})[pod.uid] = pod
        for claim in pod.claims:
            self.claim_users.setdefault(f"{pod.namespace}/{claim}", {})[pod.uid] = pod
        self._index(pod)

    def remove(self, uid: str) -> Pod | None:
        pod = self.pods.get(uid)
        if pod is None:
            return None
        self._unindex(pod)
        del self.pods[uid]
        del self.on[pod.node][uid]
        for claim in pod.claims:
            self.claim_users[f"{pod.namespace}/{claim}"].pop(uid, None)
        return pod

    def _index(self, pod: Pod) -> None:
        self.version += 1
        node = self.nodes.get(pod.node)
        if node is None:
            return
        for pair in pod.labels.items():
            self._by_label.setdefault(pair, {})[pod.uid] = pod
        for selection in self.about(pod):
            selection.add(pod, node.labels)
        for term in pod.anti_affinity:
            if term.query is not None:
                self.select(term.query).own(pod, term.topology_key, node.labels)

    def _unindex(self, pod: Pod) -> None:
        self.version += 1
        node = self.nodes.get(pod.node)
        if node is None:
            return
        for pair in pod.labels.items():
            del self._by_label[pair][pod.uid]
        for selection in self.about(pod):
            selection.remove(pod, node.labels)
        for term in pod.anti_affinity:
            if term.query is not None:
                self.select(term.query).disown(pod, term.topology_key, node.labels)

    # -- asking ----------------------------------------------------------------------------------------------------

    def matches(self, query: Query, pod: Pod) -> bool:
        return self._is_near(query, pod.namespace) and query.selector.matches(pod.labels)

    def select(self, query: Query) -> Selection:
        """The pods that the query is about."""
        found = self._selections.get(query)
        if found is not None:
            return found
        selection = self._selections[query] = Selection(query)
        pairs = sorted(query.selector.pairs(), key=lambda pair: len(self._by_label.get(pair, NOBODY)))
        for pod in self._candidates(pairs):
            if self.matches(query, pod):
                selection.pods[pod.uid] = pod
        if pairs:
            self._by_pair.setdefault(pairs[0], []).append(selection)
        else:
            self._loose.append(selection)
        return selection

    def about(self, pod: Pod) -> Iterator[Selection]:
        """Every selection in use that the pod belongs to."""
        for pair in pod.labels.items():
            for selection in self._by_pair.get(pair, ()):
                if self.matches(selection.query, pod):
                    yield selection
        for selection in self._loose:
            if self.matches(selection.query, pod):
                yield selection

    def _candidates(self, pairs: list[tuple[str, str]]) -> Iterator[Pod]:
        if pairs:
            yield from self._by_label.get(pairs[0], NOBODY).values()
            return
        for pod in self.pods.values():
            if pod.node in self.nodes:
                yield pod

    def _is_near(self, query: Query, namespace: str) -> bool:
        if namespace in query.namespaces:
            return True
        selector = query.namespace_selector
        return selector is not None and selector.matches(self._namespaces.get(namespace, {}))
