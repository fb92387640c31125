"""An index of the pods on nodes, by label, namespace and topology domain.

`PlacedPods` owns the index. Pods are selected by a `Query`. A query that names a label value is *exact*: the index keeps its pods
together, so that repeated queries cost nothing. A query that does not (NotIn, Exists, …) is *loose*, and usually matches many
pods. It is evaluated on kinds of pods. Pods of a kind have the same namespace and the same values of all labels that loose
queries read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from multisched.verify.objects import Node, Pod, Query
from multisched.verify.selectors import Labels

Pods = dict[str, Pod]
"""uid -> pod."""
NO_PODS: Mapping[str, Pod] = {}


class PodSet:
    """A set of pods, and the owners of anti-affinity terms that match them."""

    __slots__ = ("_by_domain", "_owners", "pods")

    def __init__(self) -> None:
        self.pods: Pods = {}
        self._by_domain: dict[str, dict[str, Pods]] = {}
        self._owners: dict[str, dict[str, Pods]] = {}

    def at(self, key: str, domain: str, nodes: Mapping[str, Node]) -> Mapping[str, Pod]:
        """Returns the pods on nodes whose label `key` has this value."""
        found = self._by_domain.get(key)
        if found is None:
            found = self._by_domain[key] = {}
            for pod in self.pods.values():
                _put(found, nodes[pod.node].labels.get(key), pod)
        return found.get(domain, NO_PODS)

    def owners(self) -> Mapping[str, Mapping[str, Pods]]:
        """Returns topology key -> domain -> pods there whose anti-affinity matches the pods of this set."""
        return self._owners

    def add(self, pod: Pod, labels: Labels) -> None:
        self.pods[pod.uid] = pod
        for key, domains in self._by_domain.items():
            _put(domains, labels.get(key), pod)

    def remove(self, pod: Pod, labels: Labels) -> None:
        del self.pods[pod.uid]
        for key, domains in self._by_domain.items():
            _take(domains, labels.get(key), pod)

    def add_owner(self, pod: Pod, key: str, labels: Labels) -> None:
        _put(self._owners.setdefault(key, {}), labels.get(key), pod)

    def remove_owner(self, pod: Pod, key: str, labels: Labels) -> None:
        _take(self._owners.get(key, {}), labels.get(key), pod)


class ExactQueryPods(PodSet):
    """The pods on nodes that one exact query selects."""

    __slots__ = ("query",)

    def __init__(self, query: Query) -> None:
        super().__init__()
        self.query = query


class LoosePodKind(PodSet):
    """Pods that every loose query treats the same."""

    __slots__ = ("labels", "namespace")

    def __init__(self, namespace: str, labels: Labels) -> None:
        super().__init__()
        self.namespace = namespace
        self.labels = labels


def _put(domains: dict[str, Pods], domain: str | None, pod: Pod) -> None:
    if domain is not None:
        domains.setdefault(domain, {})[pod.uid] = pod


def _take(domains: dict[str, Pods], domain: str | None, pod: Pod) -> None:
    if domain is not None and domain in domains:
        domains[domain].pop(pod.uid, None)
        if not domains[domain]:
            del domains[domain]


class PlacedPods:
    """Nodes, the pods on them, and labels of namespaces. Pods on unknown nodes are kept but not indexed."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.nodes_version = 0
        """Incremented whenever a node is added, removed or changed."""
        self.version = 0
        """Incremented at every change."""
        self.pods: Pods = {}
        self.on: dict[str, Pods] = {}
        """Node -> its pods."""
        self.claim_users: dict[str, Pods] = {}
        """Namespace/claim -> pods that use it."""
        self._namespaces: dict[str, Labels] = {}
        self._by_label: dict[tuple[str, str], Pods] = {}
        self._exact: dict[Query, ExactQueryPods] = {}
        self._by_pair: dict[tuple[str, str], list[ExactQueryPods]] = {}
        self._kinds: dict[tuple[str, frozenset[tuple[str, str]]], LoosePodKind] = {}
        self._kind_of: dict[str, LoosePodKind] = {}
        self._loose_owners: dict[Query, Pods] = {}
        """Loose query -> pods with an anti-affinity term of that query."""
        self._looked_at: set[str] = set()
        """Label keys that loose queries read."""
        self._borne: Counter[str] = Counter()
        """Label key -> number of indexed pods that have it."""

    # -- updates ---------------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        here = list(self.on.get(node.name, NO_PODS).values())
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
        for pod in self.on.get(name, NO_PODS).values():
            self._unindex(pod)
        del self.nodes[name]
        self.nodes_version += 1
        self.version += 1

    def set_namespace(self, name: str, labels: Labels | None) -> None:
        """Sets a namespace's labels; None: it was deleted."""
        if self._namespaces.get(name) == labels:
            return
        for pod in self.pods.values():
            self._unindex(pod)
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        self._exact.clear()
        self._by_pair.clear()
        self._kinds.clear()
        for pod in self.pods.values():
            self._index(pod)

    def add(self, pod: Pod) -> None:
        """Adds or replaces a pod."""
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
        self._borne.update(pod.labels.keys())
        for exact in self._about(pod):
            exact.add(pod, node.labels)
        self._join_kind(pod, node.labels)
        for term in pod.anti_affinity:
            if term.query is not None:
                for crowd in self._pod_sets(term.query):
                    crowd.add_owner(pod, term.topology_key, node.labels)
                if _is_loose(term.query):
                    self._loose_owners.setdefault(term.query, {})[pod.uid] = pod

    def _unindex(self, pod: Pod) -> None:
        self.version += 1
        node = self.nodes.get(pod.node)
        if node is None:
            return
        for pair in pod.labels.items():
            del self._by_label[pair][pod.uid]
        self._borne.subtract(pod.labels.keys())
        for key in pod.labels:
            if not self._borne[key]:
                del self._borne[key]
        for exact in self._about(pod):
            exact.remove(pod, node.labels)
        kind = self._kind_of.pop(pod.uid)
        kind.remove(pod, node.labels)
        if not kind.pods:
            del self._kinds[kind.namespace, frozenset(kind.labels.items())]
        for term in pod.anti_affinity:
            if term.query is not None:
                for crowd in self._pod_sets(term.query):
                    crowd.remove_owner(pod, term.topology_key, node.labels)
                if _is_loose(term.query):
                    self._release(term.query, pod)

    def _release(self, query: Query, owner: Pod) -> None:
        owners = self._loose_owners.get(query, {})
        owners.pop(owner.uid, None)
        if not owners:
            self._loose_owners.pop(query, None)

    def _join_kind(self, pod: Pod, labels: Labels) -> None:
        seen = {key: value for key, value in pod.labels.items() if key in self._looked_at}
        at = (pod.namespace, frozenset(seen.items()))
        kind = self._kinds.get(at)
        if kind is None:
            kind = self._kinds[at] = LoosePodKind(pod.namespace, seen)
            for query, owners in self._loose_owners.items():
                if self._is_about(query, kind):
                    for owner in owners.values():
                        self._own(kind, query, owner)
        self._kind_of[pod.uid] = kind
        kind.add(pod, labels)

    def _own(self, kind: LoosePodKind, query: Query, owner: Pod) -> None:
        for term in owner.anti_affinity:
            if term.query == query:
                kind.add_owner(owner, term.topology_key, self.nodes[owner.node].labels)

    def _look_at(self, query: Query) -> None:
        """Makes the keys of a loose query part of the kinds; rebuilds the kinds if pods have new keys."""
        new = {one.key for one in query.selector.expressions} - self._looked_at
        self._looked_at |= new
        if not any(self._borne[key] for key in new):
            return
        self._kinds.clear()
        for uid in self._kind_of:
            pod = self.pods[uid]
            self._join_kind(pod, self.nodes[pod.node].labels)

    # -- queries ---------------------------------------------------------------------------------------------------

    def matches(self, query: Query, pod: Pod) -> bool:
        return self._is_near(query, pod.namespace) and query.selector.matches(pod.labels)

    def in_domain(self, query: Query, key: str, domain: str) -> Iterator[Pod]:
        """Yields the selected pods on nodes whose label `key` has this value."""
        for crowd in self._pod_sets(query):
            yield from crowd.at(key, domain, self.nodes).values()

    def everywhere(self, query: Query) -> Iterator[Pod]:
        """Yields the selected pods."""
        for crowd in self._pod_sets(query):
            yield from crowd.pods.values()

    def kept_away(self, pod: Pod) -> Iterator[tuple[str, Mapping[str, Pods]]]:
        """Yields (topology key, domain -> pods there whose anti-affinity matches this pod)."""
        for exact in self._about(pod):
            yield from exact.owners().items()
        yield from self._kind_of[pod.uid].owners().items()

    def all_of(self, queries: Iterable[Query]) -> Callable[[Pod], bool]:
        """Returns a function that reports whether all queries select a pod."""
        exact = [self._select(query).pods for query in queries if not _is_loose(query)]
        loose = [query for query in queries if _is_loose(query)]
        for query in loose:
            self._look_at(query)
        known: dict[LoosePodKind, bool] = {}

        def is_meant(pod: Pod) -> bool:
            if not all(pod.uid in pods for pods in exact):
                return False
            kind = self._kind_of[pod.uid]
            if kind not in known:
                known[kind] = all(self._is_about(query, kind) for query in loose)
            return known[kind]

        return is_meant

    def _select(self, query: Query) -> ExactQueryPods:
        found = self._exact.get(query)
        if found is not None:
            return found
        exact = self._exact[query] = ExactQueryPods(query)
        pairs = sorted(query.selector.pairs(), key=lambda pair: len(self._by_label.get(pair, NO_PODS)))
        for pod in self._by_label.get(pairs[0], NO_PODS).values():
            if self.matches(query, pod):
                exact.pods[pod.uid] = pod
        self._by_pair.setdefault(pairs[0], []).append(exact)
        return exact

    def _pod_sets(self, query: Query) -> Iterator[PodSet]:
        """Yields the sets that together contain the selected pods."""
        if not _is_loose(query):
            yield self._select(query)
            return
        self._look_at(query)
        for kind in self._kinds.values():
            if self._is_about(query, kind):
                yield kind

    def _about(self, pod: Pod) -> Iterator[ExactQueryPods]:
        """Yields every exact query in use that selects the pod."""
        for pair in pod.labels.items():
            for exact in self._by_pair.get(pair, ()):
                if self.matches(exact.query, pod):
                    yield exact

    def _is_about(self, query: Query, kind: LoosePodKind) -> bool:
        return self._is_near(query, kind.namespace) and query.selector.matches(kind.labels)

    def _is_near(self, query: Query, namespace: str) -> bool:
        if namespace in query.namespaces:
            return True
        selector = query.namespace_selector
        return selector is not None and selector.matches(self._namespaces.get(namespace, {}))


def _is_loose(query: Query) -> bool:
    return not any(True for _ in query.selector.pairs())
