"""An etcd that is restored from a backup: every object as it was, and the revision counter with them."""

from __future__ import annotations

from multisched.cluster.base.storage import Store

KEPT = ("leases.coordination.k8s.io", "events", "events.events.k8s.io")
"""What goes on: a lease that jumps back by seconds looks the same, and nobody decides by events."""


def restore_backup(store: Store, version: int) -> bool:
    """Back to a version that is still remembered; False where it is not. Open watches are the caller's to break."""
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
