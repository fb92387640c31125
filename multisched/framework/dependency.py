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
    STAMP = "stamp"
    """What the plugin's stamp says (`StampPlugin`), and node objects: renewed for all rows when either moved."""
    ROW_AND_STAMP = "row and stamp"
    """ROW and STAMP together: renewed where a row changed, and for all rows when the stamp or a node object moved."""
    ATTEMPT = "attempt"
    """Anything else (an answer from outside, chance): asked for all rows in every attempt."""

    def __init__(self, value: str) -> None:
        self.reads_pods = value in ("row", "cluster", "stamp", "row and stamp", "attempt")
        """True if a pod that comes to a row or leaves it may change the answer there."""
        self.reads_all_nodes = value in ("nodes", "cluster")
        self.reads_stamp = value in ("stamp", "row and stamp")


class Isolation(Enum):
    """Where a plugin's Filter and Score run. In-tree plugins run inline; code that may hang should not."""

    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"
