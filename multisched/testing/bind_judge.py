"""`multisched verify`'s judge at the API server's door: each binding against all required rules, as it takes effect.

A scheduler cannot know what happened a moment ago, and a bind may be on its way meanwhile. So a placement counts as wrong
only if it was wrong at every moment of the last `NEWS_S`: what others changed since is taken back, change by change. What
the program under test has bound itself is never taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson

from multisched.cluster.server import ApiServer
from multisched.cluster.storage import Stored
from multisched.config_domains import judged_domains
from multisched.config_schema import Configuration
from multisched.verify import Finding, Judge

NEWS_S: Final = 30.0
"""How long a change by somebody else may stay unheard of: every watch may be broken, and the server away."""

STORAGE: Final = {
    "namespaces": "Namespace",
    "nodes": "Node",
    "storageclasses.storage.k8s.io": "StorageClass",
    "csinodes.storage.k8s.io": "CSINode",
    "persistentvolumes": "PersistentVolume",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "pods": "Pod",
}
"""Key of the store -> kind."""


class _Change(NamedTuple):
    at_s: float
    kind: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class BindJudge:
    """Follows the server's store; asked about a pod that was just bound."""

    def __init__(
        self,
        server: ApiServer,
        configuration: Configuration,
        now_s: Callable[[], float],
        is_ours: Callable[[str], bool],
    ) -> None:
        """`is_ours`: the program under test has bound this uid."""
        self._server = server
        self._now_s = now_s
        self._is_ours = is_ours
        self._judge = Judge(judged_domains(configuration))
        self._known: dict[str, dict[str, tuple[Stored, dict[str, Any]]]] = {storage: {} for storage in STORAGE}
        self._read: dict[str, tuple[int, int]] = {}
        self._changes: deque[_Change] = deque()

    def follow(self) -> None:
        """Takes in what has changed in the store. Cheap where nothing has; also after history went back."""
        now_s = self._now_s()
        while self._changes and self._changes[0].at_s < now_s - NEWS_S:
            self._changes.popleft()
        for storage, kind in STORAGE.items():
            collection = self._server.store.collection(storage)
            seen = (id(collection.objects), collection.changed_at)
            if self._read.get(storage) == seen:
                continue
            self._read[storage] = seen
            known = self._known[storage]
            for key in [key for key in known if key not in collection.objects]:
                self._changed(_Change(now_s, kind, known.pop(key)[1], None))
            for key, stored in collection.objects.items():
                old = known.get(key)
                if old is None or old[0] is not stored:
                    document = orjson.loads(stored.raw)
                    known[key] = (stored, document)
                    self._changed(_Change(now_s, kind, old[1] if old is not None else None, document))

    def findings(self, uid: str) -> list[Finding]:
        """What speaks against a pod that was bound just now, and did at every moment of the last NEWS_S."""
        self.follow()
        found = self._judge.placement(uid)
        undone: list[_Change] = []
        kept: set[str] = set()
        for change in reversed(self._changes):
            if not found:
                break
            if self._may_be_news(change, uid, kept):
                undone.append(change)
                self._tell(change.kind, change.after, change.before)
                rules = {finding.rule for finding in self._judge.placement(uid)}
                found = [finding for finding in found if finding.rule in rules]
        for change in reversed(undone):
            self._tell(change.kind, change.before, change.after)
        return found

    def _may_be_news(self, change: _Change, uid: str, kept: set[str]) -> bool:
        """Somebody else did it, and the pod in question and its node were there before.

        `kept`: uids of pods that we have bound later; what happened to them before that is not taken back either.
        """
        if change.kind == "Node":
            return change.before is not None
        if change.kind != "Pod" or change.after is None:
            return True
        bound = (change.after["spec"].get("nodeName"), (change.before or change.after)["spec"].get("nodeName"))
        is_bind = bound[0] is not None and (change.before is None or bound[1] is None)
        changed = str(change.after["metadata"]["uid"])
        if is_bind and self._is_ours(changed):
            kept.add(changed)
        return changed != uid and changed not in kept

    def _changed(self, change: _Change) -> None:
        self._tell(change.kind, change.before, change.after)
        self._changes.append(change)

    def _tell(self, kind: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        if before is not None and (after is None or before["metadata"]["uid"] != after["metadata"]["uid"]):
            self._judge.forget(kind, before)
        if after is not None:
            self._judge.tell(kind, after)
