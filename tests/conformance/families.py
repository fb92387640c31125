"""Which families of problems are claimed: all that pytest demands of tests/conformance hangs on this list.

An author whose plugin makes a family exact (`python tests/conformance/answer.py --compare --family NAME`) adds it here, in
the same commit; a family never leaves the list.
"""

from __future__ import annotations

CLAIMED = (
    "resources",
    "scoring",
    "taints",
    "node_affinity",
    "pod_affinity",
    "spread",
    "default_spread",
    "ports",
    "images",
    "preemption",
    "nominated",
    "volumes",
    "mixed",
    "profiles",
    "large",
)
"""Families that are answered exactly, cold and warm."""
