"""Which pods stand where, found by what they are asked for: label, namespace, and domain of a topology.

`Standing` owns the index. Whoever asks about pods does it by a `Query`. One that names a label is *exact*: the pods it
is about are kept together, so that asking again costs nothing. One that does not (NotIn, Exists, …) is *loose*, and as
a rule about many. It is put to kinds of pods. Pods of a kind share their namespace and all labels that loose queries
look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from multisched.verify.objects import Node, Pod, Query
from multisched.verify.selectors import Labels

Pods = dict[str, Pod]
"""By uid."""
NOBODY: Mapping[str, Pod] = {}


class Crowd:
    """Pods that are taken together, and those whose anti-affinity is about them."""

    __slots__ = ("_by_domain", "_owners", "pods")

    def __init__(self) -> None:
        self.pods: Pods = {}
        self._by_domain: dict[str, dict[str, Pods]] = {}
        self._owners: dict[str, dict[str, Pods]] = {}

    def at(self, key: str, domain: str, nodes: Mapping[str, Node]) -> Mapping[str, Pod]:
        """The pods on nodes whose label `key` has that value."""
        found = self._by_domain.get(key)
        if found is None:
            found = self._by_domain[key] = {}
            for pod in self.pods.values():
                _put(found, nodes[pod.node].labels.get(key), pod)
        return found.get(domain, NOBODY)

    def owners(self) -> Mapping[str, Mapping[str, Pods]]:
        """Topology key -> domain -> pods there that bear none of these beside them."""
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
        _take(self._owners.get(key, {}), labels.get(key), pod)


class Exact(Crowd):
    """The standing pods that one query is about."""

    __slots__ = ("query",)

    def __init__(self, query: Query) -> None:
        super().__init__()
        self.query = query


class Kind(Crowd):
    """Pods that are alike to every loose query."""

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
        self._exact: dict[Query, Exact] = {}
        self._by_pair: dict[tuple[str, str], list[Exact]] = {}
        self._kinds: dict[tuple[str, frozenset[tuple[str, str]]], Kind] = {}
        self._kind_of: dict[str, Kind] = {}
        self._loose_owners: dict[Query, Pods] = {}
        """Loose query -> pods with an anti-affinity term of it."""
        self._looked_at: set[str] = set()
        """Label keys that loose queries look at."""
        self._borne: Counter[str] = Counter()
        """Label key -> standing pods that have it."""

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
        self._exact.clear()
        self._by_pair.clear()
        self._kinds.clear()
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
        self._borne.update(pod.labels.keys())
        for exact in self._about(pod):
            exact.add(pod, node.labels)
        self._join_kind(pod, node.labels)
        for term in pod.anti_affinity:
            if term.query is not None:
                for crowd in self._crowds(term.query):
                    crowd.own(pod, term.topology_key, node.labels)
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
                for crowd in self._crowds(term.query):
                    crowd.disown(pod, term.topology_key, node.labels)
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
            kind = self._kinds[at] = Kind(pod.namespace, seen)
            for query, owners in self._loose_owners.items():
                if self._is_about(query, kind):
                    for owner in owners.values():
                        self._own(kind, query, owner)
        self._kind_of[pod.uid] = kind
        kind.add(pod, labels)

    def _own(self, kind: Kind, query: Query, owner: Pod) -> None:
        for term in owner.anti_affinity:
            if term.query == query:
                kind.own(owner, term.topology_key, self.nodes[owner.node].labels)

    def _look_at(self, query: Query) -> None:
        """Pods that differ in what a loose query looks at are of different kinds."""
        new = {one.key for one in query.selector.expressions} - self._looked_at
        self._looked_at |= new
        if not any(self._borne[key] for key in new):
            return
        self._kinds.clear()
        for uid in self._kind_of:
            pod = self.pods[uid]
            self._join_kind(pod, self.nodes[pod.node].labels)

    # -- asking ----------------------------------------------------------------------------------------------------

    def matches(self, query: Query, pod: Pod) -> bool:
        return self._is_near(query, pod.namespace) and query.selector.matches(pod.labels)

    def in_domain(self, query: Query, key: str, domain: str) -> Iterator[Pod]:
        """The pods that the query is about on nodes whose label `key` has that value."""
        for crowd in self._crowds(query):
            yield from crowd.at(key, domain, self.nodes).values()

    def everywhere(self, query: Query) -> Iterator[Pod]:
        """The pods that the query is about."""
        for crowd in self._crowds(query):
            yield from crowd.pods.values()

    def kept_away(self, pod: Pod) -> Iterator[tuple[str, Mapping[str, Pods]]]:
        """(Topology key, domain -> pods there whose anti-affinity is about this pod)."""
        for exact in self._about(pod):
            yield from exact.owners().items()
        yield from self._kind_of[pod.uid].owners().items()

    def all_of(self, queries: Iterable[Query]) -> Callable[[Pod], bool]:
        """Whether a standing pod is meant by all of the queries."""
        exact = [self._select(query).pods for query in queries if not _is_loose(query)]
        loose = [query for query in queries if _is_loose(query)]
        for query in loose:
            self._look_at(query)
        known: dict[Kind, bool] = {}

        def is_meant(pod: Pod) -> bool:
            if not all(pod.uid in pods for pods in exact):
                return False
            kind = self._kind_of[pod.uid]
            if kind not in known:
                known[kind] = all(self._is_about(query, kind) for query in loose)
            return known[kind]

        return is_meant

    def _select(self, query: Query) -> Exact:
        found = self._exact.get(query)
        if found is not None:
            return found
        exact = self._exact[query] = Exact(query)
        pairs = sorted(query.selector.pairs(), key=lambda pair: len(self._by_label.get(pair, NOBODY)))
        for pod in self._by_label.get(pairs[0], NOBODY).values():
            if self.matches(query, pod):
                exact.pods[pod.uid] = pod
        self._by_pair.setdefault(pairs[0], []).append(exact)
        return exact

    def _crowds(self, query: Query) -> Iterator[Crowd]:
        """Which together are the pods that the query is about."""
        if not _is_loose(query):
            yield self._select(query)
            return
        self._look_at(query)
        for kind in self._kinds.values():
            if self._is_about(query, kind):
                yield kind

    def _about(self, pod: Pod) -> Iterator[Exact]:
        """Every exact query in use that is about the pod."""
        for pair in pod.labels.items():
            for exact in self._by_pair.get(pair, ()):
                if self.matches(exact.query, pod):
                    yield exact

    def _is_about(self, query: Query, kind: Kind) -> bool:
        return self._is_near(query, kind.namespace) and query.selector.matches(kind.labels)

    def _is_near(self, query: Query, namespace: str) -> bool:
        if namespace in query.namespaces:
            return True
        selector = query.namespace_selector
        return selector is not None and selector.matches(self._namespaces.get(namespace, {}))


def _is_loose(query: Query) -> bool:
    return not any(True for _ in query.selector.pairs())
