"""PolicyTable: all policies, and which of them apply to a pod."""

from __future__ import annotations

from typing import NamedTuple, cast

from domains.job.units.policy import NO_GROUP, Policy
from domains.job.units.reading import object_policy
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import ResourcePolicy
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

_NONE: tuple[Policy, ...] = ()


class Match(NamedTuple):
    """The policy of a pod, or why it has none that can be used."""

    policy: Policy
    group: tuple[str, ...] = NO_GROUP
    problem: str = ""
    """Policy and fix, if no pod like this can be placed."""
    is_counted: bool = True
    """False: `problem` is that the pods of the policy are being counted."""


class PolicyTable:
    """Policies of objects and of the args. `refresh` must be called before it is read."""

    def __init__(self, objects: ObjectsView) -> None:
        self.objects = objects
        self.generation = 0
        """Raised when the policies change."""
        self.is_empty = True
        self.changed: frozenset[str] = frozenset()
        """Keys of the policies that the last `refresh` has added, replaced or removed."""
        self._configured: dict[str, tuple[Policy, ...]] = {}
        self._sequence = -1
        self._version = -1
        self._everywhere: tuple[Policy, ...] = _NONE
        self._by_namespace: dict[str, tuple[Policy, ...]] = {}
        self._by_key: dict[str, Policy] = {}
        self._read: dict[str, tuple[ResourcePolicy, Policy]] = {}

    def configure(self, domain: str, policies: tuple[Policy, ...]) -> None:
        """Sets the policies of a domain's args."""
        self._configured[domain] = policies
        self._sequence = self._version = -1

    def copy(self) -> PolicyTable:
        found = PolicyTable(self.objects)
        found._configured = dict(self._configured)
        found.refresh()
        return found

    def refresh(self) -> bool:
        """Reads objects that have changed. Returns True if the policies have changed. Cheap if no object changed."""
        if self.objects.sequence == self._sequence:
            return False
        self._sequence = self.objects.sequence
        version = self.objects.version(ObjectKind.RESOURCE_POLICY)
        if version == self._version:
            return False
        self._version = version
        self.generation += 1
        self._build()
        return True

    def _build(self) -> None:
        read: dict[str, tuple[ResourcePolicy, Policy]] = {}
        for found in self.objects.all(ObjectKind.RESOURCE_POLICY):
            one = cast(ResourcePolicy, found)
            known = self._read.get(one.key)
            read[one.key] = known if known is not None and known[0] is one else (one, object_policy(one))
        self._read = read
        policies = [policy for _, policy in read.values()]
        policies += [policy for configured in self._configured.values() for policy in configured]
        before, self._by_key = self._by_key, {policy.key: policy for policy in policies}
        keys = before.keys() | self._by_key.keys()
        self.changed = frozenset(key for key in keys if before.get(key) is not self._by_key.get(key))
        self._everywhere = tuple(policy for policy in policies if not policy.namespaces)
        by_namespace: dict[str, tuple[Policy, ...]] = {}
        for policy in policies:
            for namespace in policy.namespaces:
                by_namespace[namespace] = (*by_namespace.get(namespace, _NONE), policy)
        self._by_namespace = by_namespace
        self.is_empty = not policies

    def policies(self) -> tuple[Policy, ...]:
        return tuple(self._by_key.values())

    def named(self, key: str) -> Policy | None:
        return self._by_key.get(key)

    def selecting(self, pod: Pod) -> tuple[Policy, ...]:
        """Returns all policies that select the pod."""
        if self.is_empty:
            return _NONE
        near = self._by_namespace.get(pod.namespace, _NONE)
        if not near and not self._everywhere:
            return _NONE
        return tuple(policy for policy in (*near, *self._everywhere) if policy.selects(pod))

    def match(self, pod: Pod) -> Match | None:
        """Returns the pod's policy; None if no policy selects it."""
        found = self.selecting(pod)
        if not found:
            return None
        policy = found[0]
        if len(found) > 1:
            names = " and ".join(sorted(one.name for one in found))
            return Match(policy, problem=f"{names} select this pod; narrow the selector of one, or delete one")
        if policy.problem:
            return Match(policy, problem=policy.problem)
        missing = policy.missing_key(pod)
        if missing:
            why = f"matchLabelKeys names {missing}, and the pod has no such label; add it, or remove the key"
            return Match(policy, problem=f"{policy.name}: {why}")
        return Match(policy, policy.group_of(pod))
