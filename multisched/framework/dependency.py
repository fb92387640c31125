"""What a plugin's answers are computed from, and where they are computed."""

from __future__ import annotations

from enum import Enum
from typing import Final


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


UNSTATED: Final = Dependency.ATTEMPT
"""Of a plugin that does not say what it depends on: it may read anything."""


def dependency_of(plugin: object) -> Dependency:
    """What a plugin that was built says, or UNSTATED."""
    found: Dependency = getattr(plugin, "depends_on", UNSTATED)
    return found


def why_wrong_dependency(plugin: object) -> str:
    """What is wrong with what a plugin says of its dependency, and how to mend it; empty: nothing.

    A Dependency under another public name is a slip of the pen: nobody would read it.
    """
    declared = getattr(plugin, "depends_on", UNSTATED)
    if not isinstance(declared, Dependency):
        return f"depends_on is {declared!r}; write a Dependency (multisched.framework.dependency)"
    parts = [*getattr(type(plugin), "__mro__", ()), plugin]
    for name, value in (item for part in parts for item in getattr(part, "__dict__", {}).items()):
        if isinstance(value, Dependency) and name != "depends_on" and not name.startswith("_"):
            return f"{name} is {value}, and nobody reads it; write depends_on"
    return ""


class Isolation(Enum):
    """Where a plugin's Filter and Score run. In-tree plugins run inline; code that may hang should not."""

    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"
