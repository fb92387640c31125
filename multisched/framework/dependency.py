"""What a plugin's answers are computed from, and where they are computed."""

from __future__ import annotations

from enum import Enum


class Dependency(Enum):
    """What a plugin's Filter codes or raw scores are computed from; says when a cached answer must be renewed."""

    NODE = "node"
    """The row's node object and the pod's class only."""
    NODES = "nodes"
    """Any node object and the number of nodes, no pods: renewed for all rows when a node object changes."""
    ROW = "row"
    """The row's node object and the pods on it."""
    CLUSTER = "cluster"
    """NODES and ROW together."""
    CACHE_KEY = "cache key"
    """What the plugin's cache key says (`CacheKeyPlugin`), and node objects: renewed for all rows when either moved."""
    ROW_AND_CACHE_KEY = "row and cache key"
    """ROW and CACHE_KEY together: renewed where a row changed, and for all rows when the cache key or a node object moved."""
    ATTEMPT = "attempt"
    """Anything else (an answer from outside, chance): asked for all rows in every attempt."""

    def __init__(self, value: str) -> None:
        self.reads_pods = value in ("row", "cluster", "cache key", "row and cache key", "attempt")
        """True if a pod that comes to a row or leaves it may change the answer there."""
        self.reads_all_nodes = value in ("nodes", "cluster")
        self.reads_cache_key = value in ("cache key", "row and cache key")


class Isolation(Enum):
    """Where a plugin's Filter and Score run. In-tree plugins run inline; code that may hang should not."""

    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"
