"""The RBAC authorizer over stored roles and bindings.

Owns an index of rules per subject, which is rebuilt after a role or binding has changed, and a bounded cache of decisions. Used
for requests, access reviews and rules reviews; messages are upstream's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from multisched.cluster.base import errors
from multisched.cluster.base.request import UserInfo
from multisched.cluster.base.selectors import from_label_selector
from multisched.cluster.base.storage import Store

GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
DECISIONS_MAX = 10_000
"""Maximum number of cached decisions; the cache is also cleared when a role or binding changes."""

_KINDS = ("clusterroles", "clusterrolebindings", "roles", "rolebindings")


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of a request. `path` is set for requests outside the resource API."""

    verb: str
    group: str = ""
    plural: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def resource(self) -> str:
        """Returns the resource as rules name it: `pods` or `pods/binding`."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


@dataclass(frozen=True, slots=True)
class Rule:
    """One PolicyRule."""

    verbs: frozenset[str]
    groups: frozenset[str]
    resources: frozenset[str]
    names: frozenset[str]
    paths: tuple[str, ...]

    def allows(self, asked: Attributes) -> bool:
        """Reports whether this rule allows the request."""
        if asked.verb not in self.verbs and "*" not in self.verbs:
            return False
        if asked.path:
            return any(_path_matches(path, asked.path) for path in self.paths)
        if asked.group not in self.groups and "*" not in self.groups:
            return False
        if self.names and asked.name not in self.names:
            return False
        resources = self.resources
        if "*" in resources or asked.resource in resources:
            return True
        return bool(asked.subresource) and f"*/{asked.subresource}" in resources


def _path_matches(pattern: str, path: str) -> bool:
    if pattern == "*":
        return True
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def _rule(document: Mapping[str, Any]) -> Rule:
    return Rule(
        frozenset(document.get("verbs") or ()),
        frozenset(document.get("apiGroups") or ()),
        frozenset(document.get("resources") or ()),
        frozenset(document.get("resourceNames") or ()),
        tuple(document.get("nonResourceURLs") or ()),
    )


def _subject(document: Mapping[str, Any], namespace: str) -> str:
    kind, name = document.get("kind"), document.get("name", "")
    if kind == "ServiceAccount":
        return f"User:system:serviceaccount:{document.get('namespace') or namespace}:{name}"
    return f"{kind}:{name}"


class Rbac:
    """The RBAC authorizer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: tuple[int, ...] = ()
        self._cluster: dict[str, list[Rule]] = {}
        self._namespaced: dict[str, dict[str, list[Rule]]] = {}
        self._decisions: dict[tuple[UserInfo, Attributes], bool] = {}

    def allows(self, user: UserInfo, asked: Attributes) -> bool:
        """Reports whether the user may send the request. Members of system:masters may do everything."""
        if MASTERS in user.groups:
            return True
        self._refresh()
        place = (user, asked)
        known = self._decisions.get(place)
        if known is None:
            known = any(rule.allows(asked) for rule in self.rules_for(user, asked.namespace))
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[place] = known
        return known

    def check(self, user: UserInfo, asked: Attributes) -> None:
        """Raises 403 with upstream's message if the request is not allowed."""
        if not self.allows(user, asked):
            raise refusal(user, asked)

    def rules_for(self, user: UserInfo, namespace: str) -> Iterator[Rule]:
        """Yields the user's rules, cluster-wide and in a namespace."""
        self._refresh()
        subjects = (f"User:{user.name}", *(f"Group:{group}" for group in user.groups))
        for subject in subjects:
            yield from self._cluster.get(subject, ())
        if namespace:
            for subject in subjects:
                yield from self._namespaced.get(subject, {}).get(namespace, ())

    def _refresh(self) -> None:
        collections = [self._store.collection(f"{kind}.{GROUP}") for kind in _KINDS]
        seen = tuple(collection.changed_at for collection in collections)
        if seen == self._seen:
            return
        self._seen = seen
        self._decisions.clear()
        self._cluster, self._namespaced = {}, {}
        roles, bindings, local_roles, local_bindings = (
            {key: stored.document() for key, stored in collection.objects.items()} for collection in collections
        )
        rules = {name: list(self._rules_of(role, roles.values())) for name, role in roles.items()}
        local_rules = {key: [_rule(entry) for entry in role.get("rules") or ()] for key, role in local_roles.items()}
        for binding in bindings.values():
            granted = rules.get(binding["roleRef"].get("name", ""), [])
            for entry in binding.get("subjects") or ():
                self._cluster.setdefault(_subject(entry, ""), []).extend(granted)
        for key, binding in local_bindings.items():
            namespace, reference = key.partition("/")[0], binding["roleRef"]
            name = reference.get("name", "")
            is_cluster_role = reference.get("kind") == "ClusterRole"
            granted = rules.get(name, []) if is_cluster_role else local_rules.get(f"{namespace}/{name}", [])
            for entry in binding.get("subjects") or ():
                subject = self._namespaced.setdefault(_subject(entry, namespace), {})
                subject.setdefault(namespace, []).extend(granted)

    def _rules_of(self, role: Mapping[str, Any], roles: Iterable[Mapping[str, Any]]) -> Iterator[Rule]:
        for entry in role.get("rules") or ():
            yield _rule(entry)
        aggregation = role.get("aggregationRule")
        if not aggregation:
            return
        tests = [from_label_selector(selector) for selector in aggregation.get("clusterRoleSelectors") or ()]
        for other in roles:
            if other is not role and any(test(other["metadata"].get("labels") or {}) for test in tests):
                for entry in other.get("rules") or ():
                    yield _rule(entry)


def refusal(user: UserInfo, asked: Attributes) -> errors.ApiError:
    """Returns 403 with upstream's message."""
    if asked.path:
        message = f'forbidden: User "{user.name}" cannot {asked.verb} path "{asked.path}"'
        return errors.ApiError(403, "Forbidden", message, {})
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {asked.verb} resource "{asked.resource}" in API group "{asked.group}" {where}'
    return errors.forbidden(asked.group, asked.plural, asked.name, why)
