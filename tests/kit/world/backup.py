"""Restores the store from a backup: every object, and the revision counter."""

from __future__ import annotations

from multisched.cluster.base.storage import Store

KEPT = ("leases.coordination.k8s.io", "events", "events.events.k8s.io")
"""Kinds that are not restored: a lease set back by seconds looks the same, and no decision depends on Events."""


def restore_backup(store: Store, version: int) -> bool:
    """Restores the store to an earlier version. Returns False if that is no longer available. The caller must break open
    watches.
    """
    going = {name: one for name, one in store.collections().items() if name not in KEPT}
    if any(version < collection.compacted for collection in going.values()):
        return False
    for collection in going.values():
        objects = dict(collection.items_at(version) or ())
        while collection.history and collection.history[-1].version > version:
            collection.history.pop()
        collection.restore(objects, version)
    store.version = version
    return True
