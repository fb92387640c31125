"""Checks each event of a process's watches: no version decreases, and no deleted object returns (I6)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multisched.shell.program import Program
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.world.policies import Policies


class _Metadata(msgspec.Struct, gc=False):
    uid: str
    version: str = msgspec.field(name="resourceVersion")


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata


_decoder = msgspec.json.Decoder(_Object)


class WatchChecker:
    """Wraps the ingest of one program, and records what it delivers."""

    def __init__(
        self,
        program: Program,
        delivered: DeliveredState,
        policies: Policies,
        identity: str,
        report_violation: Callable[[str], None],
        on_freed: Callable[[str], None],
    ) -> None:
        """`on_freed`: called with each node on which a pod requests less than before."""
        self._delivered, self._policies = delivered, policies
        self._identity = identity
        self._report_violation = report_violation
        self._on_freed = on_freed
        self._audit = program.audit
        self._versions: dict[str, int] = {}
        self._gone: set[str] = set()
        self._uids: dict[str, str] = {}
        self.was_restored = False
        """A backup was restored since the process started."""
        self.may_hear_twice = False
        """A disruption delivers objects directly: a version may be delivered twice."""
        self._upsert, self._delete, self._drop = program.pods.upsert, program.pods.delete, program.pods.drop
        program.pods.upsert = self.upsert  # type: ignore[method-assign]
        program.pods.delete = self.delete  # type: ignore[method-assign]
        program.pods.drop = self.drop  # type: ignore[method-assign]
        self._upsert_node, self._delete_node = program.nodes.upsert, program.nodes.delete
        program.nodes.upsert = self.upsert_node  # type: ignore[method-assign]
        program.nodes.delete = self.delete_node  # type: ignore[method-assign]
        ended = program.ended_pods
        self._upsert_ended, self._delete_ended = ended.upsert, ended.delete
        ended.upsert = self.upsert_ended  # type: ignore[method-assign]
        ended.delete = self.delete_ended  # type: ignore[method-assign]

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        """Wraps `PodIngest.upsert`: no version decreases, and no deleted uid returns (I6)."""
        freed = self._delivered.pod_delivered(key, raw)
        if freed:
            self._on_freed(freed)
        try:
            metadata = _decoder.decode(raw).metadata
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._upsert(key, raw)
            return
        uid, version = metadata.uid, int(metadata.version)
        if uid in self._gone and not self.was_restored:
            self._report_violation(f"I6: {key} ({uid}), which was deleted, came back")
        if version < self._versions.get(uid, 0) and not self.was_restored:
            self._report_violation(f"I6: {key} went back from version {self._versions[uid]} to {version}")
        may_repeat = self.may_hear_twice or self.was_restored or self._audit.statistics().lost
        if version == self._versions.get(uid) and not may_repeat:
            self._report_violation(f"I6: {key} was handed on in version {version} twice")
        if uid not in self._versions:
            self._policies.on_pod_delivered(self._identity, uid)
        self._versions[uid] = version
        self._uids[key] = uid
        self._upsert(key, raw)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        uid = self._uids.pop(key, "")
        self._gone.add(_decoder.decode(raw).metadata.uid if raw is not None else uid)
        self._delivered.pod_gone(key)
        self._delete(key, raw)

    def drop(self, uid: str) -> None:
        self._delivered.drop(uid)
        self._drop(uid)

    def upsert_node(self, key: str, raw: msgspec.Raw) -> None:
        self._delivered.node_delivered(key, raw)
        self._upsert_node(key, raw)

    def delete_node(self, key: str, raw: msgspec.Raw | None) -> None:
        self._delivered.node_gone(key)
        self._delete_node(key, raw)

    def upsert_ended(self, key: str, raw: msgspec.Raw) -> None:
        self._delivered.ended_delivered(key, raw)
        self._upsert_ended(key, raw)

    def delete_ended(self, key: str, raw: msgspec.Raw | None) -> None:
        self._delivered.ended_gone(key)
        self._delete_ended(key, raw)

    def on_restored(self) -> None:
        """Records that a backup was restored: versions decrease, and deleted objects may return."""
        self._versions.clear()
        self.was_restored = True
