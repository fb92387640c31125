"""What the judge says: findings, and how sure they are."""

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
)


class Fault(NamedTuple):
    """A required rule that a placement stands against."""

    rule: Rule
    message: str
    is_sure: bool = True
    """False: what the API shows leaves open that it was all right when the pod was placed."""


class Finding(NamedTuple):
    """A pod on a node, against a rule."""

    pod: str
    """namespace/name"""
    node: str
    rule: Rule
    message: str
    uid: str
    is_sure: bool
