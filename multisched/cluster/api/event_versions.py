"""Events in their two API versions: core/v1, as stored, and events.k8s.io/v1.

Both functions return a new document.
"""

from __future__ import annotations

from multisched.cluster.base.resources import Document

_RENAMED = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: new for new, core in _RENAMED.items()}


def to_core(event: Document) -> Document:
    """Converts events.k8s.io/v1 to core/v1."""
    stored = {_RENAMED.get(key, key): value for key, value in event.items()}
    stored |= {"kind": "Event", "apiVersion": "v1"}
    stored.setdefault("source", {})
    stored.setdefault("firstTimestamp", None)
    stored.setdefault("lastTimestamp", None)
    return stored


def from_core(event: Document) -> Document:
    """Converts core/v1 to events.k8s.io/v1."""
    shown = {_BACK.get(key, key): value for key, value in event.items()}
    shown |= {"kind": "Event", "apiVersion": "events.k8s.io/v1"}
    shown.setdefault("eventTime", None)
    return shown
