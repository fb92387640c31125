"""Findings of the judge, and whether they are certain."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Rule = Literal[
    "resources",
    "hostPorts",
    "taints",
    "nodeAffinity",
    "podAffinity",
    "podAntiAffinity",
    "topologySpread",
    "volumes",
    "devices",
    "domain",
    "loans",
]
RULES: Final[tuple[Rule, ...]] = (
    "resources",
    "hostPorts",
    "taints",
    "nodeAffinity",
    "podAffinity",
    "podAntiAffinity",
    "topologySpread",
    "volumes",
    "devices",
    "domain",
    "loans",
)


class Fault(NamedTuple):
    """A required rule that a placement violates."""

    rule: Rule
    message: str
    is_sure: bool = True
    """False: by what the API shows, the placement may have been valid when it was made."""


class Finding(NamedTuple):
    """A pod on a node that violates a rule."""

    pod: str
    """namespace/name"""
    node: str
    rule: Rule
    message: str
    uid: str
    is_sure: bool
