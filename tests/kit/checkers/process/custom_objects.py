"""Quota trees and PodGroups that the watches of one process deliver, kept as documents for the judges."""

from __future__ import annotations

from collections.abc import Mapping

from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.shell.program import Program
from multisched.verify.gangs import GangJudge
from multisched.verify.quotas import QuotaJudge
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.api.followed_store import Document
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.quota_messages import bounds_of
from tests.kit.world.definitions import LINKED_QUOTA, POD_GROUP, QUOTA_TREE


class CustomObjects:
    """Wraps the object store of one program. The documents are the server's, of the version that the program has read."""

    def __init__(self, program: Program, delivered: DeliveredState, bind_checker: BindChecker) -> None:
        self._bind_checker = bind_checker
        self._delivered = delivered
        self._judges: dict[str, QuotaJudge | GangJudge] = {
            QUOTA_TREE.storage: delivered.quotas,
            LINKED_QUOTA.storage: delivered.quotas,
        }
        self._documents: dict[str, Mapping[str, Document]] = {
            QUOTA_TREE.storage: bind_checker.quotas.trees,
            LINKED_QUOTA.storage: bind_checker.quotas.trees,
            POD_GROUP.storage: bind_checker.gangs.groups,
        }
        if delivered.gangs is not None:
            self._judges[POD_GROUP.storage] = delivered.gangs
        self._store = program.cache.objects
        self._set, self._remove = program.cache.objects.set, program.cache.objects.remove
        program.cache.objects.set = self.set  # type: ignore[method-assign]
        self._set_last_removed = program.cache.objects.set_last_removed
        program.cache.objects.remove = self.remove  # type: ignore[method-assign]
        program.cache.objects.set_last_removed = self.set_last_removed  # type: ignore[method-assign]

    def set(self, kind: ObjectKind, item: ClusterObject) -> ClusterObject | None:
        """Wraps `ObjectStore.set`."""
        storage = f"{kind.definition.plural}.{kind.definition.group}"
        judge = self._judges.get(storage)
        if judge is not None:
            self._bind_checker.quotas.follow()
            self._bind_checker.gangs.follow()
            judge.add(kind.definition.name, self._documents[storage][str(item.version)])
            self._delivered.quota_bounds |= bounds_of(self._delivered.quotas.tree)
        return self._set(kind, item)

    def remove(self, kind: ObjectKind, namespace: str, name: str) -> ClusterObject | None:
        """Wraps `ObjectStore.remove`."""
        storage = f"{kind.definition.plural}.{kind.definition.group}"
        judge, item = self._judges.get(storage), self._store.get(kind, namespace, name)
        if judge is not None and item is not None:
            judge.forget(kind.definition.name, self._documents[storage][str(item.version)])
            self._delivered.quota_bounds |= bounds_of(self._delivered.quotas.tree)
        return self._remove(kind, namespace, name)

    def set_last_removed(self, kind: ObjectKind, item: ClusterObject) -> None:
        """Wraps `ObjectStore.set_last_removed`: the kept tree is the one that was in force last."""
        if kind is ObjectKind.ELASTIC_QUOTA_TREE:
            self._bind_checker.quotas.follow()
            self._delivered.quotas.recall(self._bind_checker.quotas.judge.tree)
            self._delivered.quota_bounds |= bounds_of(self._delivered.quotas.tree)
        self._set_last_removed(kind, item)
