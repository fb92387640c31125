"""The inputs from which a plugin's answers are computed, and the rows for which they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Final


class Dependency(Enum):
    """The inputs of a plugin's Filter codes or raw scores; a cached answer is computed again if one of them changes."""

    NODE = "node"
    """Only the row's node object and the pod's class."""
    NODES = "nodes"
    """Any node object and the number of nodes, but no pods: all rows are renewed when a node object changes."""
    ROW = "row"
    """The row's node object and the pods on it."""
    CLUSTER = "cluster"
    """NODES and ROW together."""
    CACHE_KEY = "cache key"
    """The plugin's cache key (`CacheKeyPlugin`) and node objects: all rows are renewed when either changes."""
    ROW_AND_CACHE_KEY = "row and cache key"
    """ROW and CACHE_KEY together: a row is renewed when it changes, all rows when the cache key or a node object changes."""
    ATTEMPT = "attempt"
    """Anything else (external responses, randomness): computed for all rows in every attempt."""

    def __init__(self, value: str) -> None:
        self.reads_pods = value in ("row", "cluster", "cache key", "row and cache key", "attempt")
        """True if adding a pod to a row or removing one may change the answer for that row."""
        self.reads_all_nodes = value in ("nodes", "cluster")
        self.reads_cache_key = value in ("cache key", "row and cache key")


UNSTATED: Final = Dependency.ATTEMPT
"""The dependency of a plugin that declares none: it may read anything."""


def dependency_of(plugin: object) -> Dependency:
    """Returns the dependency that a plugin instance declares, or UNSTATED."""
    found: Dependency = getattr(plugin, "depends_on", UNSTATED)
    return found


def why_wrong_dependency(plugin: object) -> str:
    """Returns what is wrong with a plugin's declared dependency and the fix; empty if nothing is.

    A Dependency in another public attribute is a mistake: the framework never reads it.
    """
    declared = getattr(plugin, "depends_on", UNSTATED)
    if not isinstance(declared, Dependency):
        return f"depends_on is {declared!r}; write a Dependency (multisched.framework.dependency)"
    made: type = type(plugin)
    name = _other_attribute(made) or _misplaced(getattr(plugin, "__dict__", {}))
    if name:
        return f"{name} is {getattr(plugin, name)}, but the framework reads only depends_on; rename it"
    return ""


@cache
def _other_attribute(made: type) -> str:
    """Returns an attribute of the class that is a Dependency and not read; empty for none. Cached: sandboxes build plugins often."""
    return next(filter(None, (_misplaced(part.__dict__) for part in made.__mro__)), "")


def _misplaced(attributes: Mapping[str, object]) -> str:
    found = (name for name, value in attributes.items() if isinstance(value, Dependency))
    return next((name for name in found if name != "depends_on" and not name.startswith("_")), "")


class Isolation(Enum):
    """Where a plugin's Filter and Score run. In-tree plugins run inline; code that may hang should run in a thread or process."""

    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"
