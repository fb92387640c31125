"""The held, borrowed and lent amounts of each level of the tree in force, for a snapshot of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.config.schema import Configuration
from multisched.framework.device_demand import DeviceDemands
from multisched.framework.registry import Registry
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.quota_tree import shown_amount
from multisched.plugins.quota.level_use import LevelUse, Use, level_uses
from multisched.plugins.quota.quota_ledger import QUOTA, QuotaLedger
from multisched.plugins.quota.quota_source import QUOTA_KINDS, QuotaSource
from multisched.state.object_store import ObjectStore
from multisched.whatif.sandbox import ClusterSnapshot, SchedulerSandbox


class QuotaUse(msgspec.Struct, frozen=True):
    """The use of a tree."""

    source: str
    """The object that defines the tree; empty if none is in force."""
    levels: tuple[LevelUse, ...]
    """Parents before children."""
    trouble: Mapping[str, str]
    """Object without effect -> reason."""
    notes: tuple[str, ...] = ()
    not_enforced: str = ""
    """Why no scheduler enforces the quotas; empty if one does."""

    def document(self) -> dict[str, Any]:
        """Returns the JSON document, with amounts as Kubernetes quantities."""
        return {
            "source": self.source,
            "isEnforced": bool(self.source) and not self.not_enforced,
            "levels": [
                {
                    "path": level.path,
                    "namespaces": list(level.namespaces),
                    "resources": {name: _shown(name, use) for name, use in level.resources.items()},
                }
                for level in self.levels
            ],
            "noEffect": dict(self.trouble),
            "notes": list(self.notes),
        }


NO_STATUS: Final = "no scheduler has set its status to in force; run one whose profile has the plugin ElasticQuota"
NO_DEMANDS: Final = DeviceDemands()
"""Used if no plugin assigns devices by other means than requests."""


def demands_of(configuration: Configuration, registry: Registry | None = None) -> DeviceDemands:
    """Returns what the plugins of a configuration report as device requests of pods."""
    return SchedulerSandbox(configuration, ClusterSnapshot((), ()), registry).cache.ledgers.demands


def enforcing_domains(configuration: Configuration) -> list[str]:
    """Returns the domains of a configuration whose profiles have the plugin."""
    sandbox = SchedulerSandbox(configuration, ClusterSnapshot((), ()))
    workers = sandbox.program.router.workers()
    return [worker.name for worker in workers if any(built.plugin.name == QUOTA for built in worker.plugins.built)]


def quota_use(snapshot: ClusterSnapshot, demands: DeviceDemands = NO_DEMANDS, *, not_enforced: str = "") -> QuotaUse:
    """Returns the use of the tree that the snapshot's objects define.

    `not_enforced`: why no scheduler would enforce it. The status of a tree also shows whether one does.
    """
    source = source_of(snapshot.objects)
    source.renew()
    levels: tuple[LevelUse, ...] = ()
    name, notes = "", snapshot.notes
    if source.in_force is not None:
        ledger = QuotaLedger(source, lambda: snapshot.placed, demands)
        ledger.renew()
        levels = tuple(level_uses(source.in_force.tree, ledger, snapshot.pending))
        definition = source.in_force.kind.definition
        key = f" {source.in_force.name}" if source.in_force.name else "s"
        name = f"{definition.name}{key} ({definition.api_version})"
        if source.trouble_of(source.in_force.kind, source.in_force.name):
            notes = (*notes, f"{source.in_force.name} is in force in its last valid version")
        if source.in_force.kind is ObjectKind.ELASTIC_QUOTA_TREE and source.in_force.name not in snapshot.enforced:
            not_enforced = not_enforced or NO_STATUS
    return QuotaUse(name, levels, source.trouble, notes, not_enforced if name else "")


def source_of(objects: Sequence[tuple[ObjectKind, ClusterObject]]) -> QuotaSource:
    """Returns the source for the quotas among the objects."""
    store = ObjectStore()
    for kind, one in objects:
        if kind in QUOTA_KINDS:
            store.set(kind, one)
    return QuotaSource(store)


def _shown(resource: str, use: Use) -> dict[str, str]:
    amounts = msgspec.structs.asdict(use)
    amounts["fairShare"] = amounts.pop("fair_share")
    return {field: shown_amount(resource, amount) for field, amount in amounts.items() if amount is not None}
